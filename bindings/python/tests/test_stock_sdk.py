"""agent-sandbox's SDK from PyPI, on a guest that implements the APIs of its two runtimes."""

from __future__ import annotations

import fcntl
import io
import os
import platform
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.models import SandboxdInClusterConnectionConfig, SandboxInClusterConnectionConfig
from k8s_agent_sandbox.sandbox import Sandbox

import sandpod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from k8s_agent_sandbox.commands.command_executor import CommandExecutor
    from k8s_agent_sandbox.files.filesystem import BinaryWriter, Filesystem
    from k8s_agent_sandbox.k8s_helper import K8sHelper

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
GUEST = Path(sandpod.__file__).parent / "guest" / ARCHITECTURE / "sandpod-guest"
LISTENS = re.compile(r"(runtime|gRPC|REST) API: 127\.0\.0\.1:(\d+)$")


class Cluster:
    """Resolves the address of the guest, as a cluster does."""

    injected_api_client = None

    def get_sandbox(self, _name: str, _namespace: str) -> dict[str, Any]:
        return {"status": {"podIPs": ["127.0.0.1"]}}


class Stock:
    """One of the runtimes, accessed through the SDK."""

    def __init__(self, config: SandboxInClusterConnectionConfig | SandboxdInClusterConnectionConfig) -> None:
        self.is_sandboxd = isinstance(config, SandboxdInClusterConnectionConfig)
        self.sandbox = Sandbox("claim", "sandbox", connection_config=config, k8s_helper=cast("K8sHelper", Cluster()))

    @property
    def commands(self) -> CommandExecutor:
        assert self.sandbox.commands
        return self.sandbox.commands

    @property
    def files(self) -> Filesystem:
        assert self.sandbox.files
        return self.sandbox.files


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Starts a guest and returns the port of each API."""
    home = tmp_path_factory.mktemp("guest")
    environment = {
        "PATH": os.environ["PATH"],
        "SANDPOD_STATE_DIR": str(home / "state"),
        "SANDBOX_BASE_DIR": str(home / "app"),
        "SANDPOD_STOCK_ROOT_DIR": str(home / "workspace"),
    }
    command = [GUEST, "serve", "--stock-apis=127.0.0.1:0,127.0.0.1:0,127.0.0.1:0"]
    # Only one guest can run in a network namespace, so a parallel run of these tests waits.
    with (Path(tempfile.gettempdir()) / "sandpod-stock-test.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as guest:
            try:
                assert guest.stderr
                lines = [guest.stderr.readline().strip() for _ in range(3)]
                found = [LISTENS.search(line) for line in lines]
                assert all(found), f"the guest did not start: {lines}"
                yield {match[1]: int(match[2]) for match in found if match}
            finally:
                guest.kill()


@pytest.fixture(params=["legacy", "sandboxd"])
def stock(request: pytest.FixtureRequest, ports: dict[str, int]) -> Iterator[Stock]:
    if request.param == "legacy":
        stock = Stock(SandboxInClusterConnectionConfig(server_port=ports["runtime"]))
    else:
        config = SandboxdInClusterConnectionConfig(
            mode="in-cluster-pod-ip", rest_port=ports["REST"], grpc_port=ports["gRPC"]
        )
        stock = Stock(config)
    yield stock
    stock.sandbox.close_connection()


def test_a_command_runs_and_returns_its_exit_code(stock: Stock) -> None:
    result = stock.commands.run("sh -c 'echo out; echo \"it is\" >&2; exit 3'")
    assert (result.stdout, result.stderr, result.exit_code, result.timed_out) == ("out\n", "it is\n", 3, False)


def test_a_command_is_killed_at_its_timeout(stock: Stock) -> None:
    result = stock.commands.run("sleep 60", command_timeout=0.5)
    assert (result.exit_code, result.timed_out) == (124, True)
    assert "timed out after 0.5" in result.stderr


@pytest.mark.parametrize("path", ["plain.txt", "/deep/er/file", "with space & \u00e9 %41 'x'.txt"])
def test_a_file_is_written_found_read_and_listed(stock: Stock, path: str) -> None:
    assert not stock.files.exists(path)
    stock.files.write(path, "hello\n")
    assert stock.files.exists(path)
    assert stock.files.read(path) == b"hello\n"
    directory, _, name = path.rpartition("/")
    listed = {entry.name: entry for entry in stock.files.list(directory or ".")}
    assert (listed[name].type, listed[name].size) == ("file", 6)
    assert listed[name].mode == ("0644" if stock.is_sandboxd else None)


def test_commands_and_files_are_in_the_same_place(stock: Stock) -> None:
    stock.files.write("from-file", "content")
    assert stock.commands.run("cat from-file").stdout == "content"
    stock.commands.run("sh -c 'mkdir -p made && echo by command > made/file'")
    assert stock.files.read("made/file") == b"by command\n"
    assert [entry.name for entry in stock.files.list("made")] == ["file"]
    assert {entry.name: entry.type for entry in stock.files.list("/")}["made"] == "directory"


def test_large_content_is_transferred_both_ways_and_as_a_stream(stock: Stock, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    stock.files.write("large", content)
    assert stock.files.read("large") == content
    stock.files.write("streamed", io.BytesIO(content))
    received = tmp_path / "received"
    with received.open("wb") as file:
        assert stock.files.read_to("streamed", cast("BinaryWriter", file)) == len(content)
    assert received.read_bytes() == content


def test_a_file_is_replaced_as_a_whole(stock: Stock) -> None:
    stock.files.write("twice", "first and longer")
    stock.files.write("twice", "second")
    assert stock.files.read("twice") == b"second"


def test_a_missing_sandbox_is_not_found(stock: Stock) -> None:
    assert not stock.files.exists("no/such/file")
    with pytest.raises(SandboxRequestError) as caught:
        stock.files.read("no/such/file")
    assert caught.value.status_code == 404
    with pytest.raises(SandboxRequestError) as caught:
        stock.files.list("no/such/directory")
    assert caught.value.status_code == 404


def test_a_path_outside_the_root_is_forbidden(stock: Stock) -> None:
    for escape in ("../outside", "made/../../outside"):
        with pytest.raises(SandboxRequestError) as caught:
            stock.files.write(escape, "x", allow_unsafe_paths=True)
        assert caught.value.status_code == 403
        with pytest.raises(SandboxRequestError) as caught:
            stock.files.exists(escape)
        assert caught.value.status_code == 403


def test_files_and_directories_are_deleted(stock: Stock) -> None:
    if not stock.is_sandboxd:
        with pytest.raises(NotImplementedError):  # raised by the SDK: this API has no such call
            stock.files.delete("file")
        return
    for path in ("old/file", "old/other & more"):
        stock.files.write(path, "x")
    stock.files.delete("/old/other & more")
    assert not stock.files.exists("old/other & more")
    with pytest.raises(SandboxRequestError) as caught:
        stock.files.delete("old")
    assert caught.value.status_code == 409
    stock.files.delete("old", recursive=True)
    assert not stock.files.exists("old")


def test_a_command_has_the_environment_and_directory_of_its_call(stock: Stock) -> None:
    if not stock.is_sandboxd:
        with pytest.raises(NotImplementedError):  # raised by the SDK
            stock.commands.run("pwd", cwd="sub")
        return
    stock.files.write("sub/file", "x")
    result = stock.commands.run("echo $COLOUR; ls", env={"COLOUR": "blue"}, cwd="sub")
    assert result.stdout == "blue\nfile\n"
    with pytest.raises(RuntimeError, match="PERMISSION_DENIED"):
        stock.commands.run("pwd", cwd="..")
