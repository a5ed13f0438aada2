"""Tools for agents whose backend is not a sandbox."""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Annotated, Any, Self

from langchain_core.tools import BaseTool, StructuredTool
from langgraph.prebuilt import InjectedState

from sandpod.compat._owned import OwnedSandbox
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from sandpod._deepagents import ExecuteResponse
    from sandpod.config import KubernetesProviderConfig

UPLOAD_DIR = "/app"
"""The directory of the agent's files in the sandbox."""

PROMPT_SUFFIX = (
    "\n\nYou have an `execute_python(code)` tool. It runs Python 3 in a sandbox that is made for this run and gone "
    f"after it. Before each call your files are copied to `{UPLOAD_DIR}/`, so `/x` is `{UPLOAD_DIR}/x` there."
)
"""A description of the tool for a system prompt."""

_DESCRIPTION = (
    f"Run a Python 3 snippet in a sandbox. The files of your virtual filesystem are in {UPLOAD_DIR}/ there. "
    "Returns the exit code and what was printed."
)


class PythonTool:
    """The tool `execute_python` and its sandbox, which the first call creates and `terminate` deletes."""

    def __init__(self, provider: KubernetesProvider, timeout: int | None) -> None:
        """Create the tool, without a sandbox."""
        self._timeout = timeout
        self._sandbox = OwnedSandbox(provider, claim_name=None, labels={"made-for": "execute_python"}, policy=None)
        self.tool: BaseTool = StructuredTool.from_function(
            func=self._execute, coroutine=self._aexecute, name="execute_python", description=_DESCRIPTION
        )

    def terminate(self) -> None:
        """Delete the sandbox, if it exists; the next call creates a new one."""
        self._sandbox.stop(delete=True)

    async def aterminate(self) -> None:
        """Delete the sandbox, as `terminate` does."""
        await self._sandbox.astop(delete=True)

    def __enter__(self) -> Self:
        """Enter a context that deletes the sandbox at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the sandbox."""
        self.terminate()

    async def __aenter__(self) -> Self:
        """Enter a context that deletes the sandbox at its end."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete the sandbox."""
        await self.aterminate()

    def _execute(self, code: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        script, files = _run_of(code, state)
        if failed := _failure([done.error for done in self._sandbox.upload_files(files)]):
            return failed
        return _shown(self._sandbox.execute(f"python3 {script}", timeout=self._timeout))

    async def _aexecute(self, code: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
        script, files = _run_of(code, state)
        if failed := _failure([done.error for done in await self._sandbox.aupload_files(files)]):
            return failed
        return _shown(await self._sandbox.aexecute(f"python3 {script}", timeout=self._timeout))


def python_tool(config: KubernetesProviderConfig, *, timeout: int | None = 300) -> PythonTool:
    """Create an `execute_python` tool with its own sandbox.

    Example:
        >>> from sandpod import KubernetesProviderConfig
        >>> from sandpod.tools import PROMPT_SUFFIX, python_tool
        >>> with python_tool(KubernetesProviderConfig(mode="raw")) as python:  # doctest: +SKIP
        ...     agent = create_deep_agent(model, tools=[python.tool], system_prompt=PROMPT_SUFFIX)
        ...     agent.invoke({"messages": ["What is in data.csv?"], "files": files})
    """
    return PythonTool(KubernetesProvider(config), timeout)


def _run_of(code: str, state: dict[str, Any]) -> tuple[str, list[tuple[str, bytes]]]:
    """Return the script's path and the files to upload; the snippet is a file, never part of a command."""
    script = f"/tmp/execute-{secrets.token_hex(8)}.py"  # noqa: S108 - in the sandbox
    seen: dict[str, dict[str, Any]] = state.get("files") or {}
    files = [(_path(path), _content(data)) for path, data in seen.items()]
    return script, [*files, (script, code.encode())]


def _path(path: str) -> str:
    return path if path.startswith(f"{UPLOAD_DIR}/") else f"{UPLOAD_DIR}/{path.lstrip('/')}"


def _content(data: dict[str, Any]) -> bytes:
    content = data.get("content", "")
    text = content if isinstance(content, str) else "\n".join(content)
    return base64.b64decode(text) if data.get("encoding") == "base64" else text.encode()


def _failure(errors: list[str | None]) -> str | None:
    """Return the tool's answer if an upload failed."""
    first = next((error for error in errors if error), None)
    return first and f"exit=125\nThe files could not be copied into the sandbox: {first}"


def _shown(done: ExecuteResponse) -> str:
    return f"exit={done.exit_code}\n{done.output}"
