"""The drop-in modules have the names, parameters and defaults of the published packages."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sandpod.compat import langchain_agent_sandbox

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHED = {
    "langchain-kubernetes==0.4.0": "langchain_kubernetes",
    "langchain-k8s==0.4.0": "langchain_k8s",
    "langchain-k8s==0.7.1": "langchain_k8s",
    "langchain-kubernetes-agent-sandbox==0.2.1": "langchain_kubernetes_agent_sandbox",
}
INTERNAL = {"langchain_kubernetes.KubernetesSandbox.__init__"}
"""Classes that only providers construct."""

MEANS_THE_SAME = {("glob", "path", "None"), ("aglob", "path", "None")}
"""The default path of searches is "/" in langchain-k8s 0.4, and None in 0.7."""

DESCRIBE = """
import importlib, inspect, json, sys

def parameters(function):
    found = inspect.signature(function).parameters.values()
    return [[p.name, p.kind.name, None if p.default is p.empty else repr(p.default)] for p in found]

module = importlib.import_module(sys.argv[1])
described = {"__all__": list(module.__all__)}
for name in module.__all__:
    thing = getattr(module, name)
    if inspect.isclass(thing):
        bases = [base for base in reversed(thing.__mro__) if base.__module__.startswith(sys.argv[1])]
        own = {key: value for base in bases for key, value in vars(base).items()}
        for key, value in own.items():
            value = getattr(value, "__func__", value)
            if inspect.isfunction(value) and (key == "__init__" or not key.startswith("_")):
                described[name + "." + key] = parameters(value)
    elif inspect.isfunction(thing):
        described[name] = parameters(thing)
print(json.dumps(described))
"""

AGENT_SANDBOX = {
    "AgentSandboxBackend.__init__": ["self", "client", "root_dir='/app'", "manage_client=False"],
    "AgentSandboxBackend.from_template": [
        "template_name",
        "namespace='default'",
        "gateway_name=None",
        "gateway_namespace='default'",
        "api_url=None",
        "server_port=8888",
        "root_dir='/app'",
    ],
    "create_sandbox_backend_factory": ["template_name", "namespace='default'"],
    "SandboxPolicyWrapper.__init__": ["self", "backend", "deny_prefixes=None", "deny_commands=None", "audit_log=None"],
    "WarmPoolBackend.from_warmpool": ["template_name", "namespace='default'", "warmpool_name=None"],
}


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """A module, and the description of the published package, installed in a separate directory."""
    place = tmp_path_factory.mktemp("published")
    # Without dependencies, which are those of our tests, and with newer Pythons where old ones are excluded.
    install = ["install", "--quiet", "--no-deps", "--python-version=3.12", "--only-binary=:all:", f"--target={place}"]
    done = subprocess.run([sys.executable, "-m", "pip", *install, request.param], check=False, capture_output=True)
    if done.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(done.stderr.decode())
        pytest.skip(f"{request.param} can't be installed: {done.stderr.decode()[-200:]}")
    module = PUBLISHED[request.param]
    return module, _described(module, place)


def _described(module: str, place: Path) -> dict[str, Any]:
    described = subprocess.run(
        [sys.executable, "-c", DESCRIBE, module],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(place)},
    )
    return json.loads(described.stdout)


def _ours(module: str, name: str) -> inspect.Signature:
    thing: Any = importlib.import_module(f"sandpod.compat.{module}")
    for part in name.split("."):
        thing = inspect.getattr_static(thing, part) if part == "__init__" else getattr(thing, part)
    return inspect.signature(thing)


def test_all_names_of_a_published_package_exist(published: tuple[str, dict[str, Any]]) -> None:
    module, described = published
    ours = importlib.import_module(f"sandpod.compat.{module}")
    assert set(described["__all__"]) <= set(ours.__all__)


def test_published_signatures_keep_their_meaning(published: tuple[str, dict[str, Any]]) -> None:
    module, described = published
    differences: list[str] = []
    for name, parameters in described.items():
        if name == "__all__" or f"{module}.{name}" in INTERNAL:
            continue
        ours = _ours(module, name).parameters
        differences += [
            f"{name}({parameter}: {kind} = {default}) is {ours.get(parameter)}"
            for parameter, kind, default in parameters
            if not (_takes_any(ours) and kind in {"VAR_KEYWORD", "KEYWORD_ONLY"})
            and (name.rpartition(".")[2], parameter, default) not in MEANS_THE_SAME
            and not _same(ours.get(parameter), kind, default)
        ]
        positional = [parameter for parameter, kind, _ in parameters if kind == "POSITIONAL_OR_KEYWORD"]
        assert [known for known in ours if known in positional] == positional, name
    assert differences == []


def _takes_any(parameters: Any) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def _same(ours: inspect.Parameter | None, kind: str, default: str | None) -> bool:
    if ours is None or default is None:
        # A parameter that is required there may be optional here.
        return ours is not None and ours.kind.name == kind
    # Default factories of dataclasses have no comparable text.
    is_made = "factory" in default.lower() or isinstance(ours.default, dataclasses.MISSING.__class__)
    return ours.kind.name == kind and (is_made or str(repr(ours.default)) == default or ours.default == _value(default))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize("name", AGENT_SANDBOX)
def test_langchain_agent_sandbox_is_called_as_in_its_readme(name: str) -> None:
    assert langchain_agent_sandbox.__all__ == [
        "AgentSandboxBackend",
        "SandboxPolicyWrapper",
        "WarmPoolBackend",
        "create_sandbox_backend_factory",
    ]
    written = [str(parameter).split(":")[0] for parameter in _ours("langchain_agent_sandbox", name).parameters.values()]
    defaults = {
        parameter.name: parameter.default for parameter in _ours("langchain_agent_sandbox", name).parameters.values()
    }
    for at, documented in enumerate(AGENT_SANDBOX[name]):
        parameter, _, default = documented.partition("=")
        assert written[at].split("=")[0] == parameter
        assert not default or repr(defaults[parameter]) == default
