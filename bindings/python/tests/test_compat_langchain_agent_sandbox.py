"""`langchain_agent_sandbox`, on a handle or on a local sandbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from deepagents.backends.protocol import EditResult
from langchain.tools import ToolRuntime

from sandpod import KubernetesProvider
from sandpod.compat import langchain_agent_sandbox
from scripted import ObedientModel, calls, execute, script, thread, tool_results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from handles import Handle
    from sandpod import KubernetesProviderConfig

    LocalConfig = Callable[..., KubernetesProviderConfig]


def deep_agent(model: Any, backend: Any) -> Any:
    return create_deep_agent(model, backend=backend)  # pyright: ignore[reportUnknownVariableType]


def test_files_are_shown_below_the_root_with_the_older_results(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    with langchain_agent_sandbox.AgentSandboxBackend.from_template("python", namespace="agents") as backend:
        assert on_this_machine[0].template_name == "python"
        assert backend.write("/a.txt", "one\n" + "x" * 3000).error is None
        assert backend.write("/a.txt", "two").error == "File '/a.txt' already exists"
        assert backend.read("/a.txt") == "1: one\n2: " + "x" * 2000
        assert backend.read("/none") == "Error: File '/none' not found"
        assert [entry["path"] for entry in backend.ls_info("/")] == ["/a.txt"]
        assert backend.ls_info("/none") == []
        assert backend.grep_raw("one", "/none") == "Error: Path '/none' not found"
        assert backend.edit("/a.txt", "none", "x").error == "Error: String not found in file: 'none'"
        assert "escapes root_dir '/app'" in str(backend.read("/../etc/passwd"))
        assert backend.execute("cat /app/a.txt | head -1").output == "one\n"
        assert [done.error for done in backend.upload_files({"/b": b"1", "/../c": b""})] == [None, "invalid_path"]
        assert backend.download_files(["/../etc/passwd"])[0].error == "invalid_path"
    with pytest.raises(ValueError, match="root_dir must be an absolute path, got: app"):
        langchain_agent_sandbox.AgentSandboxBackend(object(), root_dir="app")


@pytest.fixture(params=["owned", "driven"])
def backend(
    request: pytest.FixtureRequest, handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> Iterator[langchain_agent_sandbox.AgentSandboxBackend]:
    """A backend whose root does not exist yet, on an owned sandbox or on a handle."""
    assert on_this_machine == []
    if request.param == "driven":
        root_dir = str(handle.place / "not" / "yet")
        yield langchain_agent_sandbox.AgentSandboxBackend(handle, root_dir=root_dir)
        return
    with langchain_agent_sandbox.AgentSandboxBackend.from_template("python", root_dir="/app/not yet") as owned:
        yield owned


async def test_g5_commands_start_in_the_root_of_file_operations(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    assert backend.execute("pwd").output == f"{backend.root_dir}\n", "it is created if it is missing"
    assert (await backend.aexecute("pwd")).output == f"{backend.root_dir}\n"
    assert backend.ls_info("/") == [], "creating it leaves no files behind"
    assert backend.write("/hello.py", "print('hello')\n").error is None
    assert backend.execute("python3 hello.py").output == "hello\n"
    assert backend.execute("cd /; pwd").output == "/\n"
    assert backend.execute("exit 3").exit_code == 3


async def test_g5_the_first_command_creates_a_missing_root(
    on_this_machine: list[KubernetesProviderConfig],
) -> None:
    assert on_this_machine == []
    async with langchain_agent_sandbox.AgentSandboxBackend.from_template("python", root_dir="/app/new") as backend:
        assert (await backend.aexecute("pwd")).output == "/app/new\n"


def test_g5_a_path_that_starts_with_the_root_is_the_same_file(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    assert backend.write(f"{backend.root_dir}/a.txt", "one").error is None
    assert backend.read("/a.txt") == "1: one"
    assert backend.execute(f"cat '{backend.root_dir}/a.txt'").output == "one"


async def test_f5_a_failed_edit_reports_the_path_and_the_number_of_matches(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    assert backend.write("/a.txt", "alpha beta alpha\r\nalpha\r\n").error is None
    many = EditResult(
        error="Error: String 'alpha' appears multiple times. Use replace_all=True to replace all occurrences.",
        path="/a.txt",
        occurrences=3,
    )
    none = EditResult(error="Error: String not found in file: 'gamma'", path="/a.txt", occurrences=0)
    missing = EditResult(error="Error: File '/none' not found", path="/none", occurrences=0)
    assert backend.edit("/a.txt", "alpha", "x") == await backend.aedit("/a.txt", "alpha", "x") == many
    assert backend.edit("/a.txt", "gamma", "x") == await backend.aedit("/a.txt", "gamma", "x") == none
    assert backend.edit("/none", "a", "b") == await backend.aedit("/none", "a", "b") == missing
    assert backend.edit("/a.txt", "alpha", "x", replace_all=True) == EditResult(path="/a.txt", occurrences=3)
    assert (await backend.awrite("/a.txt", "")).path == backend.write("/a.txt", "").path == "/a.txt"


async def test_f5_a_page_after_the_end_and_an_empty_file_are_empty_texts(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    assert backend.upload_files({"/a.txt": b"one\ntwo\n", "/empty": b""})[0].error is None
    assert backend.read("/a.txt", 1) == "2: two"
    assert backend.read("/a.txt", 100) == await backend.aread("/a.txt", 100) == ""
    assert backend.read("/empty") == await backend.aread("/empty") == ""
    assert backend.read("/a.txt", 100).error is not None, "Deep Agents' file tool gets the error"


async def test_f1_a_policy_wrapper_accepts_uploads_as_a_dict(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    secured = langchain_agent_sandbox.SandboxPolicyWrapper(backend, deny_prefixes=["/etc"])
    files = {"/etc/shadow": b"bad", "/ok.txt": b"good"}
    for done in (
        secured.upload_files(files),
        await secured.aupload_files(files),
        secured.upload_files(list(files.items())),
    ):
        assert [(each.path, each.error) for each in done] == [("/etc/shadow", "policy_denied"), ("/ok.txt", None)]
    assert secured.read("/ok.txt") == "1: good"


def test_g6_a_denied_directory_is_denied_by_each_of_its_paths(
    backend: langchain_agent_sandbox.AgentSandboxBackend,
) -> None:
    root = backend.root_dir
    for prefix in ("/secret", f"{root}/secret"):
        secured = langchain_agent_sandbox.SandboxPolicyWrapper(backend, deny_prefixes=[prefix])
        for path in ("/secret/a", f"{root}/secret/a", f"{root}/x/../secret/a"):
            assert secured.write(path, "").error == f"Policy denied: writes not allowed under '{path}'"
        assert secured.write("/secrets", "").path == "/secrets"


def test_a_client_is_wrapped_and_entered_only_if_it_is_managed(handle: Handle, tmp_path: Path) -> None:
    backend = langchain_agent_sandbox.AgentSandboxBackend(handle, root_dir=str(tmp_path))
    with backend:
        assert backend.write("/a.txt", "one").path == "/a.txt"
        assert backend.read("/a.txt") == "1: one"
    assert backend.id == "claim-1"
    assert handle.entered == []
    with langchain_agent_sandbox.AgentSandboxBackend(handle, manage_client=True):
        assert handle.entered == ["in"]
    assert handle.entered == ["in", "out"]
    handle.claim_name = None
    assert backend.id == "sandbox-1"


def test_c3_the_default_timeout_of_commands_is_a_minute(
    handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> None:
    langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    langchain_agent_sandbox.AgentSandboxBackend.from_template("python", default_exec_timeout=5)
    assert [asked.default_exec_timeout for asked in on_this_machine] == [60, 5]
    langchain_agent_sandbox.AgentSandboxBackend(handle).execute("true")
    assert handle.commands.asked[-1] >= 60


def test_h8_a_backend_without_a_claim_has_the_id_agent_sandbox(
    handle: Handle, on_this_machine: list[KubernetesProviderConfig]
) -> None:
    handle.claim_name, handle.sandbox_id = None, ""
    assert langchain_agent_sandbox.AgentSandboxBackend(handle).id == "agent-sandbox"
    backend = langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    assert backend.id == "agent-sandbox"
    with backend:
        assert backend.id != "agent-sandbox", "its claim has a name"
    assert len(on_this_machine) == 1


def said(agent: Any, command: str, name: str) -> str:
    """Return the output of a command that an agent ran in a thread."""
    return tool_results(agent.invoke({"messages": [("user", command)]}, thread(name)))[-1]


def runtime_of(name: str | None) -> ToolRuntime[Any, Any]:
    """The argument of a factory in older versions of Deep Agents."""
    config: Any = thread(name) if name else {}
    state: dict[str, Any] = {}
    return ToolRuntime(
        state=state, context=None, config=config, stream_writer=lambda _: None, tool_call_id=None, store=None
    )


@pytest.fixture
def factory(on_this_machine: list[KubernetesProviderConfig]) -> Iterator[langchain_agent_sandbox.BackendFactory]:
    """A factory; its sandboxes are deleted at the end."""
    with langchain_agent_sandbox.create_sandbox_backend_factory("python", root_dir="/workspace") as factory:
        assert len(on_this_machine) == 1
        yield factory


def sandboxes_of(scope: str, local_config: LocalConfig) -> list[str]:
    return [info.id for info in KubernetesProvider(local_config()).list(labels={"scope": scope}).sandboxes]


def test_h11_a_factorys_threads_never_see_each_others_files(factory: langchain_agent_sandbox.BackendFactory) -> None:
    agent = deep_agent(ObedientModel(), factory)
    assert said(agent, "echo alice > note; cat note", "alice").startswith("alice\n")
    assert "No such file" in said(agent, "cat note", "bob")
    assert said(agent, "echo bob > note; cat note", "bob").startswith("bob\n")
    assert said(agent, "cat note", "alice").startswith("alice\n")


async def test_h11_a_factorys_file_tools_work_in_the_callers_thread(
    factory: langchain_agent_sandbox.BackendFactory,
) -> None:
    async def run(name: str) -> list[str]:
        turns = script(
            calls(("write_file", {"file_path": "/a.txt", "content": f"{name}\n"})),
            calls(("edit_file", {"file_path": "/a.txt", "old_string": name, "new_string": name.upper()})),
            calls(("read_file", {"file_path": "/a.txt"})),
            execute("cat a.txt /workspace/a.txt"),
            "done",
        )
        return tool_results(await deep_agent(turns, factory).ainvoke({"messages": ["go"]}, thread(name)))

    for name, results in zip(("a", "b"), await asyncio.gather(run("a"), run("b")), strict=True):
        assert name.upper() in results[2]
        assert results[3].startswith(f"{name.upper()}\n{name.upper()}\n")


async def test_h11_a_factory_rejects_calls_outside_of_a_thread(
    on_this_machine: list[KubernetesProviderConfig], local_config: LocalConfig
) -> None:
    assert on_this_machine == []
    factory = langchain_agent_sandbox.create_sandbox_backend_factory("python", scope="refused")
    refusal = "create_sandbox_backend_factory: no thread_id in LangGraph config. Invoke with config="
    assert factory.id == "agent-sandbox"
    for done in (factory.execute("true"), await factory.aexecute("true")):
        assert done.exit_code == 125
        assert done.output.startswith(refusal)
    assert refusal in factory.read("/a.txt")
    assert refusal in await factory.aread("/a.txt")
    assert refusal in str(factory.write("/a.txt", "").error)
    assert refusal in str(factory.ls("/").error)
    assert refusal in str(factory.glob("*").error)
    assert refusal in str(factory.upload_files({"/a.txt": b""})[0].error)
    state = deep_agent(ObedientModel(), factory).invoke({"messages": [("user", "true")]})
    assert refusal in tool_results(state)[0], "an agent's run goes on"
    assert factory(runtime_of(None)) is factory
    assert sandboxes_of("refused", local_config) == []


def test_h11_a_factory_called_with_a_runtime_is_its_threads_backend(
    factory: langchain_agent_sandbox.BackendFactory,
) -> None:
    alice, bob = factory(runtime_of("alice")), factory(runtime_of("bob"))
    assert isinstance(alice, langchain_agent_sandbox.AgentSandboxBackend)
    assert alice.write("/a.txt", "alice").error is None
    assert bob.read("/a.txt") == "Error: File '/a.txt' not found"
    assert factory(runtime_of("alice")).read("/a.txt") == "1: alice"
    assert alice.id == factory(runtime_of("alice")).id != bob.id
    with bob:
        assert bob.write("/a.txt", "bob").error is None
    assert bob.read("/a.txt") == "Error: File '/a.txt' not found", "leaving the context deletes a thread's sandbox"
    assert alice.read("/a.txt") == "1: alice", "and no other"


def test_h11_another_process_finds_a_threads_sandbox_and_another_scope_none(
    factory: langchain_agent_sandbox.BackendFactory,
) -> None:
    assert factory(runtime_of("alice")).write("/a.txt", "alice").error is None
    replica = langchain_agent_sandbox.create_sandbox_backend_factory("python", root_dir="/workspace")
    assert replica(runtime_of("alice")).read("/a.txt") == "1: alice"
    with langchain_agent_sandbox.create_sandbox_backend_factory(
        "python", root_dir="/workspace", scope="other"
    ) as other:
        assert other(runtime_of("alice")).read("/a.txt") == "Error: File '/a.txt' not found"
    with langchain_agent_sandbox.create_sandbox_backend_factory("other", root_dir="/workspace") as other:
        assert other(runtime_of("alice")).read("/a.txt") == "Error: File '/a.txt' not found"


async def test_h11_closing_a_factory_deletes_all_its_sandboxes(
    on_this_machine: list[KubernetesProviderConfig], local_config: LocalConfig
) -> None:
    assert on_this_machine == []
    with langchain_agent_sandbox.create_sandbox_backend_factory("python", scope="left") as factory:
        assert [factory(runtime_of(name)).execute("true").exit_code for name in "abc"] == [0, 0, 0]
        assert len(sandboxes_of("left", local_config)) == 3
    assert sandboxes_of("left", local_config) == []
    assert "was closed" in factory(runtime_of("a")).execute("true").output

    async with langchain_agent_sandbox.create_sandbox_backend_factory("python", scope="left") as factory:
        assert (await factory(runtime_of("a")).aexecute("true")).exit_code == 0
        assert len(sandboxes_of("left", local_config)) == 1
    assert sandboxes_of("left", local_config) == []


def test_a_pool_can_be_named_and_development_variables_are_read(
    on_this_machine: list[KubernetesProviderConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled = langchain_agent_sandbox.WarmPoolBackend.from_warmpool("python", "agents", "python-pool")
    assert pooled.get_adoption_info() == {"warmpool_name": "python-pool", "from_warmpool": True}
    assert on_this_machine[0].warm_pool_name == "python-pool"
    anyone = langchain_agent_sandbox.WarmPoolBackend.from_warmpool("python")
    assert anyone.get_adoption_info() == {"warmpool_name": None, "from_warmpool": False}

    monkeypatch.setenv("LANGCHAIN_SANDBOX_TEMPLATE", "from-env")
    monkeypatch.setenv("LANGCHAIN_API_URL", "http://router")
    monkeypatch.setenv("LANGCHAIN_SERVER_PORT", "9999")
    langchain_agent_sandbox.AgentSandboxBackend.from_env()
    config = on_this_machine[-1]
    assert (config.template_name, config.api_url, config.server_port) == ("from-env", "http://router", 9999)


def test_a_policy_wraps_the_backend(on_this_machine: list[KubernetesProviderConfig]) -> None:
    recorded: list[tuple[str, str, dict[str, Any]]] = []
    backend = langchain_agent_sandbox.AgentSandboxBackend.from_template("python")
    secured = langchain_agent_sandbox.SandboxPolicyWrapper(
        backend,
        deny_prefixes=["/etc"],
        deny_commands=["rm -rf"],
        audit_log=lambda operation, target, meta: recorded.append((operation, target, meta)),
    )
    assert len(on_this_machine) == 1
    with secured:
        assert secured.write("/etc/x", "y").error == "Policy denied: writes not allowed under '/etc/x'"
        assert secured.execute("rm -rf /").output == "Policy denied: command blocked by policy"
        assert secured.write("/ok", "y").error is None
    assert recorded == [("write", "/ok", {"size": 1})]
