"""How Python waits for the native module. Every call connects to a server that the test controls."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import uvloop

from sandpod import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import SilentServer
    from sandpod import KubernetesProvider

PATIENCE = 5
START = 60
"""Seconds for a new process to import Deep Agents, on a busy machine."""


@pytest.fixture
def keyboard_interrupt() -> Iterator[None]:
    """Install Python's SIGINT handler: shells start background jobs with SIGINT ignored, which Python keeps."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("keyboard_interrupt")
def test_ctrl_c_ends_a_blocking_call_within_100_ms(provider: KubernetesProvider, server: SilentServer) -> None:
    def interrupted_after() -> float:
        sent: list[float] = []
        server.called.clear()

        def interrupt() -> None:
            assert server.called.wait(START)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            provider.reconnect("sp-test")
        return time.monotonic() - sent[0]

    # The fastest of several, because the machine may be busy.
    assert min(interrupted_after() for _ in range(5)) < 0.1
    assert server.hung_up.wait(PATIENCE), "the call continues without a caller"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_blocking_call_works_on_the_thread_of_a_running_loop(
    run: Callable[..., None], provider: KubernetesProvider, server: SilentServer
) -> None:
    server.refuse.set()

    async def block() -> None:
        with pytest.raises(SandboxError, match="you cannot do that"):
            provider.reconnect("sp-test")
        with pytest.raises(SandboxError, match="you cannot do that"):
            await provider.areconnect("sp-test")

    run(block())


async def test_cancelling_drops_the_call(provider: KubernetesProvider, server: SilentServer) -> None:
    task = asyncio.create_task(provider.areconnect("sp-test"))
    assert await asyncio.to_thread(server.called.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.hung_up.wait, PATIENCE), "the call goes on although it was cancelled"


async def test_a_timeout_of_asyncio_drops_the_call(provider: KubernetesProvider, server: SilentServer) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(provider.areconnect("sp-test"), 0.3)
    assert await asyncio.to_thread(server.hung_up.wait, PATIENCE)


def test_a_blocking_call_lets_other_threads_run(provider: KubernetesProvider, server: SilentServer) -> None:
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        assert server.called.wait(PATIENCE)
        for _ in range(50):
            time.sleep(0.005)
            ticks += 1
        server.refuse.set()

    threading.Thread(target=tick).start()
    with pytest.raises(SandboxError):
        provider.reconnect("sp-test")
    assert ticks == 50


async def test_an_awaited_call_lets_its_loop_run(provider: KubernetesProvider, server: SilentServer) -> None:
    task = asyncio.create_task(provider.areconnect("sp-test"))
    assert await asyncio.to_thread(server.called.wait, PATIENCE)
    server.refuse.set()
    with pytest.raises(SandboxError, match="you cannot do that"):
        await task


def test_a_call_that_outlives_its_loop_is_silent(
    provider: KubernetesProvider, server: SilentServer, capfd: pytest.CaptureFixture[str]
) -> None:
    async def leave_behind() -> asyncio.Task[object]:
        task = asyncio.create_task(provider.areconnect("sp-test"))
        assert await asyncio.to_thread(server.called.wait, PATIENCE)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(leave_behind())
    loop.close()
    server.refuse.set()
    time.sleep(0.3)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    # The test leaves a task of a closed loop pending, which asyncio would report.
    task.get_coro().close()  # pyright: ignore[reportOptionalMemberAccess]
    loop.set_exception_handler(lambda _loop, _context: None)
    del task
    gc.collect()


def test_one_provider_serves_many_loops_and_threads(provider: KubernetesProvider, server: SilentServer) -> None:
    server.refuse.set()
    outcomes: list[str] = []

    async def call() -> None:
        with pytest.raises(SandboxError) as raised:
            await provider.areconnect("sp-test")
        outcomes.append(raised.value.code)

    threads = [threading.Thread(target=lambda: asyncio.run(call())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert outcomes == ["denied"] * 8


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(provider: KubernetesProvider, server: SilentServer) -> None:
    server.refuse.set()
    with pytest.raises(SandboxError):
        provider.reconnect("sp-test")

    def in_child() -> bool:
        async def call() -> None:
            await provider.areconnect("sp-test")

        for again in (lambda: provider.reconnect("sp-test"), lambda: asyncio.run(call())):
            try:
                again()
            except SandboxError as error:
                if "you cannot do that" not in str(error):
                    return False
        return True

    assert _fork(in_child)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_does_not_disturb_calls_of_its_parent(provider: KubernetesProvider, server: SilentServer) -> None:
    async def fork_meanwhile() -> bool:
        task = asyncio.create_task(provider.areconnect("sp-test"))
        assert await asyncio.to_thread(server.called.wait, PATIENCE)

        def in_child() -> bool:
            task.cancel()
            gc.collect()
            return True

        forked = _fork(in_child)
        server.refuse.set()
        with pytest.raises(SandboxError):
            await task
        return forked

    assert asyncio.run(fork_meanwhile())


def _fork(work: Callable[[], bool]) -> bool:
    """Return whether `work` returns true in a forked child, within a timeout."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_the_interpreter_exits_quietly_with_calls_in_flight(kubeconfig: Path, server: SilentServer) -> None:
    script = f"""
import asyncio, threading
from sandpod import KubernetesProvider, KubernetesProviderConfig
provider = KubernetesProvider(KubernetesProviderConfig(mode="raw", kubeconfig={str(kubeconfig)!r}))
for _ in range(3):
    threading.Thread(target=provider.reconnect, args=("sp-test",), daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(provider.areconnect("sp-test")), daemon=True).start()
input()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert server.called.wait(START)
        _, said = process.communicate(b"\n", timeout=PATIENCE)
    assert (process.returncode, said) == (0, b"")
