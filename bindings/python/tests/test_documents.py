"""The Python code of README.md and docs: the blocks of a page run in order, as one program.

Pages that name only local sandboxes run on this machine. The others run on a cluster, where the place differs (the
namespace and the image), and the model, which is scripted. A comment `<!-- not run: REASON -->` in the line above a
block excludes it.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import sandpod
from scripted import ObedientModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from sandpod import KubernetesProviderConfig

    Config = Callable[..., KubernetesProviderConfig]

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"(?:^<!-- (?P<note>.*) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[int, str]]:
    """The blocks of a page that run, each with its line."""
    text = page.read_text()
    found = [match for match in BLOCK.finditer(text) if not (match["note"] or "").startswith("not run: ")]
    return [(text.count("\n", 0, match.start("code")) + 1, match["code"]) for match in found]


def pages(*, local: bool) -> list[str]:
    """The pages whose blocks run on this machine, or on a cluster."""
    with_blocks = {page: "".join(code for _, code in blocks(page)) for page in PAGES}
    needs_cluster = re.compile(r'mode="raw"|template_name=')
    chosen = [page for page, code in with_blocks.items() if code and bool(needs_cluster.search(code)) != local]
    return [str(page.relative_to(ROOT)) for page in chosen]


async def run(page: str, names: dict[str, Any]) -> None:
    """Runs the blocks of a page in one namespace."""
    for line, code in blocks(ROOT / page):
        # The padding gives a traceback the line on the page.
        padded = "\n" * (line - 1) + code
        compiled: CodeType = compile(padded, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        pending = eval(compiled, names)  # noqa: S307 - code of this repository
        if asyncio.iscoroutine(pending):
            await pending


def of_the_reader() -> dict[str, Any]:
    """Names that a page expects its reader to have."""
    return {"__builtins__": builtins, "model": ObedientModel(), "checkpointer": InMemorySaver()}


@pytest.mark.parametrize("page", pages(local=True))
async def test_the_blocks_of_a_page_run_on_this_machine(page: str, local_config: Config) -> None:
    assert local_config  # sets the state directory, and fails if a sandbox is left
    await run(page, of_the_reader())


@pytest.mark.cluster
@pytest.mark.parametrize("page", pages(local=False))
async def test_the_blocks_of_a_page_run_on_a_cluster(
    page: str, raw_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(**fields: Any) -> KubernetesProviderConfig:
        fields.pop("mode", None)
        fields.pop("namespace", None)
        return raw_config(image="sandpod.test/python:1", **fields)

    monkeypatch.setattr(sandpod, "KubernetesProviderConfig", place)
    names = of_the_reader()

    def resolve(model: Any) -> Any:
        return names["model"] if isinstance(model, str) else model

    monkeypatch.setattr("deepagents.graph.resolve_model", resolve)
    await run(page, names)
    for value in names.values():
        if isinstance(value, sandpod.KubernetesSandboxManager):
            await value.ashutdown()
