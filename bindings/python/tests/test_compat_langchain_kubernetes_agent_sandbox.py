"""`langchain_kubernetes_agent_sandbox`, on the methods of a handle, which `langchain_k8s` uses for handles, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse

from sandpod.compat import langchain_kubernetes_agent_sandbox
from scripted import calls, execute, script, tool_results

if TYPE_CHECKING:
    from pathlib import Path

    from handles import Handle


def deep_agent(model: Any, backend: Any) -> Any:
    return create_deep_agent(model, backend=backend)  # pyright: ignore[reportUnknownVariableType]


def test_a_handles_commands_run_in_a_shell_with_both_outputs_in_order(handle: Handle) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle)
    assert (backend.id, backend.sandbox, backend.default_timeout) == ("sandbox-1", handle, 300)
    done = backend.execute("echo one | tr a-z A-Z; echo two >&2; echo three; exit 3")
    assert done == ExecuteResponse(output="ONE\ntwo\nthree\n", exit_code=3)
    assert backend.execute("true", timeout=7).exit_code == 0
    assert backend.execute("true", timeout=0).exit_code == 0
    assert handle.commands.asked[:2] == [300, 7]
    assert handle.commands.asked[2] > 10**5


def test_a_handles_timeout_is_124_and_its_errors_are_results(handle: Handle) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle, timeout=1)
    assert langchain_kubernetes_agent_sandbox.COMMAND_TIMEOUT_EXIT_CODE == 124
    assert backend.execute("sleep 30") == ExecuteResponse(output="Command timed out after 1s", exit_code=124)
    handle.commands.trouble = RuntimeError("502 from the router")
    lost = backend.execute("true")
    assert lost.exit_code is None
    assert "502 from the router" in lost.output
    assert backend.upload_files([("/x", b"")])[0].error == "502 from the router"
    assert "502" in str(backend.download_files(["/x"])[0].error)


def test_commands_and_file_operations_of_a_handle_share_one_directory(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle)
    path = f"{tmp_path}/a dir/$(touch pwned)'file"
    content = bytes(range(256))
    assert backend.upload_files([(path, content), ("relative", b""), (str(tmp_path), b"")]) == [
        FileUploadResponse(path=path),
        FileUploadResponse(path="relative", error="invalid_path"),
        FileUploadResponse(path=str(tmp_path), error="is_directory"),
    ]
    assert backend.download_files([path, f"{tmp_path}/none", "relative", str(tmp_path)]) == [
        FileDownloadResponse(path=path, content=content),
        FileDownloadResponse(path=f"{tmp_path}/none", error="file_not_found"),
        FileDownloadResponse(path="relative", error="invalid_path"),
        FileDownloadResponse(path=str(tmp_path), error="is_directory"),
    ]
    assert [found.name for found in tmp_path.iterdir()] == ["a dir"], "no temporary file is left"


def test_an_agent_runs_on_a_handle(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_kubernetes_agent_sandbox.KubernetesAgentSandbox(sandbox=handle)
    turns = script(
        calls(("write_file", {"file_path": f"{tmp_path}/a.txt", "content": "one\n"})),
        calls(("edit_file", {"file_path": f"{tmp_path}/a.txt", "old_string": "one", "new_string": "two"})),
        execute("cat a.txt"),
        "done",
    )
    agent = deep_agent(turns, backend)
    assert tool_results(agent.invoke({"messages": ["go"]}))[-1].startswith("two\n")
