"""A pytest plugin that runs another package's own tests against this package.

`--peer` names the package and its version, `--place` the template and connection (see tests/stage.py), or `nowhere`.
exceptions.toml lists the tests that are expected to fail; such a test that passes is a failure.
"""

from __future__ import annotations

import os
import tempfile
import time
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
NOWHERE = "nowhere"


class Run:
    """The options of a run."""

    def __init__(self, peer: str, place: str) -> None:
        """Choose a namespace and a kubeconfig path, without creating them."""
        self.peer = peer
        self.place = place
        self.namespace = f"peers-{place}-{peer.rpartition('-')[2].replace('.', '-')}-{os.getpid()}-{int(time.time())}"
        self.kubeconfig = Path(tempfile.mkdtemp(prefix="sandpod-peers-")) / "kubeconfig"


RUN = pytest.StashKey[Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("peers")
    group.addoption("--peer", help="package and version of the tests, such as langchain-k8s-0.7.1")
    group.addoption("--place", default=NOWHERE, help="template and connection, such as stock-by-exec")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Set KUBECONFIG before their conftest.py imports a Kubernetes client, which reads it on import."""
    options = early_config.known_args_namespace
    early_config.stash[RUN] = run = Run(options.peer, options.place)
    os.environ["KUBECONFIG"] = str(run.kubeconfig)
    os.environ["PATH"] = f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="session", autouse=True)
def _stage(request: pytest.FixtureRequest) -> Iterator[None]:
    run = request.config.stash[RUN]
    if run.place == NOWHERE:
        yield
        return
    from stage import stage

    with stage(run.place, run.namespace, run.kubeconfig):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash[RUN]
    modules: set[Any] = {item.module for item in items if isinstance(item, pytest.Function)}
    for module in modules:
        if hasattr(module, "NAMESPACE"):
            module.NAMESPACE = run.namespace
    if run.peer == "langchain-k8s-0.4.0":
        _take_templates()
    for exception in _exceptions(run):
        mark = pytest.mark.xfail(reason=exception["reason"], strict=True)
        for pattern in exception["tests"]:
            found = [item for item in items if fnmatchcase(item.nodeid, pattern)]
            for item in found:
                item.add_marker(mark)


def _exceptions(run: Run) -> list[dict[str, Any]]:
    listed = tomllib.loads((HERE / "exceptions.toml").read_text()).get("exception", [])
    return [each for each in listed if run.peer in each["peers"] and run.place in each.get("places", [run.place])]


def _take_templates() -> None:
    """Let the SDK's client accept `template=`, as the version of these tests did, and map it to a pool."""
    import k8s_agent_sandbox

    client: Any = k8s_agent_sandbox.SandboxClient  # pyright: ignore[reportPrivateImportUsage]
    create = client.create_sandbox

    def create_sandbox(self: Any, *args: Any, template: str | None = None, **options: Any) -> Any:
        if template is not None:
            options["warmpool"] = template.replace("-template", "-pool")
        return create(self, *args, **options)

    client.create_sandbox = create_sandbox
