"""Streams, background commands, terminals and directory transfers."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from sandpod import KubernetesProvider, KubernetesProviderConfig, KubernetesSandbox, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sandpod.process import OutputChunk
    from sandpod.transfer import TransferProgress

LONG = "echo begun; sleep 300"


@pytest.fixture(scope="module")
def sandbox(local_config: Callable[..., KubernetesProviderConfig]) -> Iterator[KubernetesSandbox]:
    provider = KubernetesProvider(local_config())
    sandbox = provider.get_or_create()
    yield sandbox
    provider.delete(sandbox_id=sandbox.id)


def running(sandbox: KubernetesSandbox, marker: str) -> bool:
    return any(info.exit is None and marker in info.command for info in sandbox.processes())


def test_output_is_streamed_and_followed_by_the_exit(sandbox: KubernetesSandbox) -> None:
    stream = sandbox.stream("echo one; read line < /tmp/go; echo two >&2; exit 3", timeout=60)
    sandbox.execute("rm -f /tmp/go; mkfifo /tmp/go")
    chunks = iter(stream)
    assert str(next(chunks)) == "one\n"
    assert stream.exit is None
    sandbox.execute("echo > /tmp/go")
    assert [(chunk.text, chunk.stderr) for chunk in chunks] == [("two\n", True)]
    assert stream.exit_code == 3


async def test_output_is_streamed_with_async_for(sandbox: KubernetesSandbox) -> None:
    stream = sandbox.stream("printf %s $GREETING; pwd", env={"GREETING": "hi,"}, cwd="/tmp")  # noqa: S108
    assert "".join([chunk.text async for chunk in stream]) == "hi,/tmp\n"
    assert stream.exit_code == 0


def test_a_character_written_in_two_parts_arrives_whole(sandbox: KubernetesSandbox) -> None:
    command = r"printf '\303'; sleep 0.2; printf '\244'"
    chunks: list[OutputChunk] = list(sandbox.stream(command))
    assert "".join(chunk.text for chunk in chunks) == "ä"
    assert b"".join(chunk.data for chunk in chunks) == "ä".encode()


def test_a_stream_ends_at_the_timeout_of_its_command(sandbox: KubernetesSandbox) -> None:
    stream = sandbox.stream(LONG, timeout=1)
    assert "".join(map(str, stream)).startswith("begun\n")
    assert stream.exit is not None
    assert (stream.exit.exit_code, stream.exit.timed_out) == (124, True)


def test_leaving_a_stream_kills_the_command(sandbox: KubernetesSandbox) -> None:
    chunks = iter(sandbox.stream(LONG + " # left"))
    next(chunks)
    assert running(sandbox, "# left")
    del chunks
    (info,) = [info for info in sandbox.processes() if "# left" in info.command]
    assert info.process.wait_exit().exit_code == 137


async def test_cancelling_a_stream_kills_the_command(sandbox: KubernetesSandbox) -> None:
    begun = asyncio.Event()

    async def follow() -> None:
        async for _ in sandbox.stream(LONG + " # cancelled"):
            begun.set()

    task = asyncio.create_task(follow())
    await asyncio.wait_for(begun.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (info,) = [info for info in await sandbox.aprocesses() if "# cancelled" in info.command]
    assert (await info.process.await_exit()).exit_code == 137


def test_a_background_process_is_listed_attached_to_and_killed(sandbox: KubernetesSandbox) -> None:
    name = sandbox.start(LONG + " # server").name
    (info,) = [info for info in sandbox.processes() if info.process.name == name]
    assert info.exit is None
    assert info.pid is not None
    output = iter(info.process.attach())
    assert str(next(output)) == "begun\n"
    del output
    assert running(sandbox, "# server"), "leaving an attachment ends nothing"
    info.process.kill()
    assert info.process.wait_exit().exit_code == 137
    assert "".join(map(str, info.process.attach(from_offset=3))) == "un\n"


async def test_a_process_reads_its_stdin(sandbox: KubernetesSandbox) -> None:
    process = await sandbox.astart("cat; exit 7", stdin=True)
    await process.awrite("one\n")
    await process.awrite(b"two\n")
    await process.aclose_stdin()
    assert "".join([chunk.text async for chunk in process.attach()]) == "one\ntwo\n"
    assert (await process.await_exit()).exit_code == 7


def test_a_terminal_has_a_size_that_can_change(sandbox: KubernetesSandbox) -> None:
    process = sandbox.start("stty size; read line; stty size", terminal=(24, 80))
    output = iter(process.attach())
    assert "24 80" in str(next(output))
    process.resize(50, 132)
    process.write("\n")
    assert "50 132" in "".join(map(str, output))
    (info,) = [info for info in sandbox.processes() if info.process.name == process.name]
    assert info.terminal


def test_a_command_that_cannot_be_started_has_exit_code_125(sandbox: KubernetesSandbox) -> None:
    stream = sandbox.stream("true", cwd="/no/such/directory")
    assert "/no/such/directory" in "".join(map(str, stream))
    assert stream.exit_code == 125


def test_a_directory_is_transferred_both_ways_with_its_modes_and_links(
    sandbox: KubernetesSandbox, tmp_path: Path
) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run.sh").write_text("echo hello\n")
    (source / "sub" / "run.sh").chmod(0o755)
    (source / "big").write_bytes(os.urandom(3 << 20))
    (source / "link").symlink_to("sub/run.sh")
    back.mkdir()
    steps: list[TransferProgress] = []

    sent = sandbox.upload_directory(source, "/workspace/tree", progress=steps.append)
    assert (sent.files, sent.directories, sent.links) == (2, 1, 1)
    assert steps[-1].bytes == sent.bytes
    assert sandbox.execute("tree/link").output == "hello\n"
    received = sandbox.download_directory("/workspace/tree", back)
    assert received.bytes == sent.bytes
    assert (back / "big").read_bytes() == (source / "big").read_bytes()
    assert (back / "link").readlink() == (source / "link").readlink()


async def test_a_directory_is_transferred_both_ways_by_async_methods(
    sandbox: KubernetesSandbox, tmp_path: Path
) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    back.mkdir()
    (source / "file").write_text("content")
    steps: list[TransferProgress] = []

    def tell(progress: TransferProgress) -> None:
        steps.append(progress)
        msg = "a callback's own mistake"
        raise RuntimeError(msg)

    await sandbox.aupload_directory(source, "/workspace/async", progress=tell)
    await sandbox.adownload_directory("/workspace/async", back, progress=tell)
    assert (back / "file").read_text() == "content"
    assert steps
    with pytest.raises(SandboxError, match="No such"):
        await sandbox.adownload_directory("/workspace/none", back)


def test_large_output_is_stored_in_a_file_or_else_returned_inline(sandbox: KubernetesSandbox) -> None:
    command = "i=0; while [ $i -lt 3000 ]; do echo line-$i; i=$((i+1)); done; exit 4"
    kept = sandbox.execute_with_offload(command, "/workspace/captured", max_inline_bytes=1000)
    assert (kept.offloaded, kept.preview_has_truncation_marker, kept.response.exit_code) == (True, True, 4)
    assert "line-4\n... [2990 lines truncated] ...\nline-2995\n" in kept.response.output
    assert sandbox.execute("wc -l < captured").output.strip() == "3000"
    whole = sandbox.execute_with_offload(command, "/proc/nowhere/captured", max_inline_bytes=1000)
    assert not whole.offloaded
    assert "line-1500\n" in whole.response.output
    small = sandbox.execute_with_offload("echo hello", "/workspace/small", max_inline_bytes=1000)
    assert (small.offloaded, small.response.output) == (False, "hello\n")


def test_an_output_of_many_megabytes_is_truncated_in_a_file_and_inline(
    sandbox: KubernetesSandbox,
) -> None:
    command = "head -c 9000000 /dev/zero | tr '\\0' 'x'"
    kept = sandbox.execute_with_offload(command, "/workspace/many", max_inline_bytes=1000)
    assert (kept.offloaded, kept.response.truncated, kept.response.exit_code) == (True, True, 0)
    assert sandbox.execute("wc -c < many").output.strip() == str(7 << 20)
    cut = sandbox.execute_with_offload(command, "/proc/nowhere/many", max_inline_bytes=1000)
    assert (cut.offloaded, cut.response.truncated, cut.response.exit_code) == (False, True, 0)
    assert len(cut.response.output) == 1 << 20


async def test_a_long_line_is_truncated_with_a_note(sandbox: KubernetesSandbox) -> None:
    command = "head -c 9000 /dev/zero | tr '\\0' x"
    kept = await sandbox.aexecute_with_offload(command, "/workspace/line", max_inline_bytes=1000)
    assert kept.offloaded
    assert "9000 bytes were captured" in kept.response.output
    assert len(kept.response.output) < 5000
