"""The statements of the package's README."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import sandpod
from sandpod import KubernetesProviderConfig

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_every_option_is_listed_with_its_default() -> None:
    listed: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[a-z_`, ]+`) \| (`.+?`) \|", README, re.MULTILINE):
        fields, shown = (re.findall(r"`([^`]+)`", cell) for cell in (names, defaults))
        listed |= dict(zip(fields, shown * len(fields) if len(shown) == 1 else shown, strict=True))
    defaults = KubernetesProviderConfig()
    known = {field.name: repr(getattr(defaults, field.name)) for field in dataclasses.fields(defaults)}
    assert {name: default for name, default in listed.items() if name in known} == known


def test_its_examples_are_valid_python_with_existing_imports() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) > 5
    for block in blocks:
        for node in ast.walk(compile(block, "README.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
            if isinstance(node, ast.ImportFrom) and node.module == "sandpod":
                assert all(alias.name in sandpod.__all__ for alias in node.names)
