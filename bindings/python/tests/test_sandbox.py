"""Operations beyond LangChain's suite, in an image with only a shell."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from sandpod import KubernetesProvider, SandboxNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandpod import KubernetesProviderConfig, KubernetesSandbox

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def provider(raw_config: Callable[..., KubernetesProviderConfig]) -> KubernetesProvider:
    return KubernetesProvider(raw_config(image="sandpod.test/busybox:1", default_exec_timeout=2))


@pytest.fixture(scope="module")
def sandbox(provider: KubernetesProvider) -> Iterator[KubernetesSandbox]:
    sandbox = provider.get_or_create()
    yield sandbox
    provider.delete(sandbox_id=sandbox.id)


def test_a_command_is_killed_at_its_timeout_with_exit_code_124(sandbox: KubernetesSandbox) -> None:
    result = sandbox.execute("echo begun; sleep 7777", timeout=1)
    assert (result.output, result.exit_code) == ("begun\nCommand timed out after 1s", 124)
    assert not sandbox.execute("grep -ls '777[7]' /proc/[0-9]*/cmdline").output


def test_the_default_timeout_is_configured_and_zero_disables_it(sandbox: KubernetesSandbox) -> None:
    assert sandbox.execute("sleep 3").exit_code == 124
    assert sandbox.execute("sleep 3; echo done", timeout=0).output == "done\n"


async def test_cancelling_kills_the_command(sandbox: KubernetesSandbox) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.aexecute("sleep 8888", timeout=0), 0.5)
    for _ in range(20):
        if not (await sandbox.aexecute("grep -ls '888[8]' /proc/[0-9]*/cmdline")).output:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the command continues without a caller")


def test_a_command_may_be_longer_than_an_argument(sandbox: KubernetesSandbox) -> None:
    line = "x" * 300_000
    assert sandbox.execute(f"wc -c <<'END'\n{line}\nEND").output.strip() == "300001"


def test_output_is_what_the_command_wrote_in_order(sandbox: KubernetesSandbox) -> None:
    result = sandbox.execute("echo one; echo two >&2; printf 'th\\000ree\\n'; exit 3")
    assert (result.output, result.exit_code) == ("one\ntwo\nth\0ree\n", 3)


def test_glob_finds_regular_files_by_absolute_path(sandbox: KubernetesSandbox) -> None:
    sandbox.write("/workspace/glob/a.txt", "a")
    sandbox.write("/workspace/glob/sub/b.txt", "bb")
    matches = sandbox.glob("**/*", "/workspace/glob").matches or []
    assert [(found["path"], found.get("size")) for found in matches] == [
        ("/workspace/glob/a.txt", 1),
        ("/workspace/glob/sub/b.txt", 2),
    ]


def test_write_replaces_and_delete_removes(sandbox: KubernetesSandbox) -> None:
    for content in ("first", "second"):
        assert sandbox.write("/workspace/f.txt", content).error is None
    assert (sandbox.read("/workspace/f.txt").file_data or {}).get("content") == "second"
    assert sandbox.delete("/workspace/f.txt").path == "/workspace/f.txt"
    assert sandbox.delete("/workspace/f.txt").error == "Error: '/workspace/f.txt' not found"


def test_invalid_arguments_of_a_model_are_results_and_not_exceptions(sandbox: KubernetesSandbox) -> None:
    assert sandbox.write("/workspace/bad.txt", "\ud800").error
    assert sandbox.execute("echo \ud800").exit_code == 125
    sandbox.write("/workspace/short.txt", "one line")
    assert "exceeds file length (1 lines)" in str(sandbox.read("/workspace/short.txt", offset=10**30).error)
    assert sandbox.ls("relative").error
    assert sandbox.glob("../*").error


def test_upload_and_download_have_an_outcome_for_each_file(sandbox: KubernetesSandbox) -> None:
    uploads = sandbox.upload_files([("/workspace/up", b"\0\1"), ("relative", b""), ("/workspace", b"")])
    assert [upload.error for upload in uploads] == [None, "invalid_path", "is_directory"]
    downloads = sandbox.download_files(["/workspace/up", "/nowhere", "/workspace"])
    assert [(download.content, download.error) for download in downloads] == [
        (b"\0\1", None),
        (None, "file_not_found"),
        (None, "is_directory"),
    ]


def test_one_sandbox_serves_many_threads_and_loops(sandbox: KubernetesSandbox) -> None:
    def one(number: int) -> str:
        if number % 2:
            return sandbox.execute(f"echo {number}").output
        return asyncio.run(sandbox.aexecute(f"echo {number}")).output

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(32))) == [f"{number}\n" for number in range(32)]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_finds_the_sandbox_again(provider: KubernetesProvider, sandbox: KubernetesSandbox) -> None:
    child = os.fork()
    if child == 0:
        refused = "forked" in sandbox.execute("true").output
        found = provider.reconnect(sandbox.id).execute("echo again").output == "again\n"
        os._exit(0 if refused and found else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sandbox.execute("echo parent").output == "parent\n"


async def test_a_sandbox_is_found_again_by_its_id(provider: KubernetesProvider, sandbox: KubernetesSandbox) -> None:
    sandbox.write("/workspace/mark", "here")
    for found in (provider.get_or_create(sandbox_id=sandbox.id), await provider.areconnect(sandbox.id)):
        assert found.id == sandbox.id
        assert found.execute("cat mark").output == "here"


async def test_every_result_reports_a_deleted_sandbox(provider: KubernetesProvider) -> None:
    sandbox = await provider.aget_or_create()
    await provider.adelete(sandbox_id=sandbox.id)
    await provider.adelete(sandbox_id=sandbox.id)
    executed = await sandbox.aexecute("true")
    assert executed.exit_code != 0
    assert "gone" in executed.output
    assert "gone" in str(sandbox.read("/f").error)
    with pytest.raises(SandboxNotFoundError, match=sandbox.id):
        await provider.areconnect(sandbox.id)
