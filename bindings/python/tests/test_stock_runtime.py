"""An agent's tools on agent-sandbox's first runtime, without our guest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandpod import KubernetesProvider, KubernetesProviderConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandpod import KubernetesSandbox

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def sandbox(stock_runtime_config: Callable[..., KubernetesProviderConfig]) -> Iterator[KubernetesSandbox]:
    """One sandbox of the template."""
    provider = KubernetesProvider(stock_runtime_config())
    sandbox = provider.get_or_create()
    try:
        yield sandbox
    finally:
        provider.delete(sandbox_id=sandbox.id)


def test_a_file_is_written_read_and_edited(sandbox: KubernetesSandbox) -> None:
    path = "/app/files/main.py"
    assert sandbox.write(path, "one = 1\nprint('two')\n").error is None
    assert sandbox.edit(path, "two", "2").occurrences == 1
    assert (sandbox.read(path, offset=1, limit=1).file_data or {}).get("content") == "print('2')"
    assert sandbox.read("/app/files/none").error == "File '/app/files/none': file_not_found"


def test_glob_and_grep_find_files_and_hidden_names_only_if_named(sandbox: KubernetesSandbox) -> None:
    for name in ("a.py", "deep/b.py", ".hidden/c.py"):
        assert sandbox.write(f"/app/tree/{name}", "x = 'needle'\n").error is None

    def found(pattern: str) -> list[str]:
        return [each["path"].removeprefix("/app/tree/") for each in sandbox.glob(pattern, "/app/tree").matches or []]

    assert found("**/*.py") == ["a.py", "deep/b.py"]
    assert found(".hidden/*.py") == [".hidden/c.py"]
    matches = sandbox.grep("needle", "/app/tree", "deep/*.py").matches or []
    assert [(each["path"], each["line"]) for each in matches] == [("/app/tree/deep/b.py", 1)]


def test_a_command_has_output_an_exit_code_and_a_timeout(sandbox: KubernetesSandbox) -> None:
    ran = sandbox.execute("python3 -c 'print(6 * 7)'; pwd; echo wrong >&2; exit 3")
    assert (ran.output, ran.exit_code, ran.truncated) == ("42\n/app\nwrong\n", 3, False)
    late = sandbox.execute("echo begun; sleep 600", timeout=1)
    assert (late.output, late.exit_code) == ("begun\nCommand timed out after 1s", 124)
