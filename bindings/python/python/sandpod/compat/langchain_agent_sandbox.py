"""A replacement for `langchain-agent-sandbox`.

Example:
    >>> from sandpod.compat.langchain_agent_sandbox import AgentSandboxBackend
    >>> with AgentSandboxBackend.from_template("my-template") as backend:  # doctest: +SKIP
    ...     backend.execute("echo hello")
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from typing import TYPE_CHECKING, Any, Self, cast

from sandpod import policy as _policies
from sandpod._deepagents import EMPTY_CONTENT_WARNING, EditResult, ReadResult, WriteResult
from sandpod._threads import NoThreadError, default_scope
from sandpod.compat import _connections
from sandpod.compat._handle_backend import HandleBackend
from sandpod.compat._legacy_names import LegacyNames
from sandpod.compat._owned import OwnedSandbox
from sandpod.compat._per_thread import PerThreadSandbox
from sandpod.compat._wrapper import Wrapper
from sandpod.config import KubernetesProviderConfig
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sandpod._deepagents import FileUploadResponse, SandboxBackendProtocol
    from sandpod.policy import AuditLog

    Files = Iterable[tuple[str, bytes]] | dict[str, bytes]

__all__ = ["AgentSandboxBackend", "SandboxPolicyWrapper", "WarmPoolBackend", "create_sandbox_backend_factory"]

CLIENTS_OWN = {"gateway_ready_timeout", "port_forward_ready_timeout", "enable_tracing", "trace_service_name"}
"""Ignored options of the older SDK's client; `sandbox_ready_timeout` covers the whole start."""
COMMAND_SECONDS = 60
"""Timeout of commands, which the other package takes from the SDK."""
PAST_THE_END = "exceeds file length"
"""Deep Agents' error for a page after the last line, which is empty here."""
MANY_MATCHES = "appears multiple times"
"""Deep Agents' error for an edit whose text occurs more than once."""
_LINE = 2000
"""Most characters of a line to show."""


class NumberedText(str):
    """The result of `read`: numbered lines, or a message with the prefix `Error:`, as in the other package.

    It also has the fields of Deep Agents' `ReadResult`, which its file tools use.
    """

    __slots__ = tuple(field.name for field in dataclasses.fields(ReadResult))

    def __new__(cls, result: ReadResult, path: str, offset: int) -> Self:
        """Convert a result to text."""
        text = super().__new__(cls, _numbered(result, path, offset))
        for field in dataclasses.fields(ReadResult):
            setattr(text, field.name, getattr(result, field.name))
        return text


def _numbered(result: ReadResult, path: str, offset: int) -> str:
    if result.error is not None:
        if result.error.endswith("file_not_found"):
            return f"Error: File '{path}' not found"
        return "" if PAST_THE_END in result.error else f"Error: {result.error}"
    content = result.file_data["content"] if result.file_data else ""
    if not content or content == EMPTY_CONTENT_WARNING:
        return ""
    first = result.start_line or offset + 1
    return "\n".join(f"{first + at}: {line[:_LINE]}" for at, line in enumerate(content.split("\n")))


class AgentSandboxBackend(Wrapper):
    """A sandbox whose files are shown below `root_dir`, which is also the working directory of commands.

    `/file.txt` is `/app/file.txt`. A path below `root_dir` is used unchanged. Paths and links cannot escape.
    """

    def __init__(
        self,
        client: Any,
        root_dir: str = "/app",
        manage_client: bool = False,  # noqa: FBT001, FBT002 - the other package's signature
        allow_absolute_paths: bool = False,  # noqa: FBT001, FBT002, ARG002 - the other package's signature
        *,
        guest_token_file: str | None = None,
    ) -> None:
        """Wrap a client's sandbox.

        Args:
            client: A handle of `k8s_agent_sandbox`, or a client with one sandbox.
            root_dir: Directory that callers see as `/`.
            manage_client: Enter and leave the context of the client, too.
            allow_absolute_paths: Ignored; nothing is written outside `root_dir`.
            guest_token_file: File with the token of the guest, for connections over the network.
        """
        policy = _policy(root_dir)
        self._root_dir = policy["root_dir"]
        self._owned = client if isinstance(client, OwnedSandbox | PerThreadSandbox) else None
        self._client: Any = client
        self._manage_client = manage_client
        super().__init__(
            self._owned
            or HandleBackend(
                client,
                COMMAND_SECONDS,
                policy=policy,
                working_dir=self._root_dir,
                guest_token_file=guest_token_file,
            )
        )

    @property
    def root_dir(self) -> str:
        """The directory that callers see as `/`."""
        return self._root_dir

    @classmethod
    def from_template(  # noqa: PLR0913, PLR0917 - the other package's
        cls,
        template_name: str,
        namespace: str = "default",
        gateway_name: str | None = None,
        gateway_namespace: str = "default",
        api_url: str | None = None,
        server_port: int = 8888,
        root_dir: str = "/app",
        allow_absolute_paths: bool = False,  # noqa: ARG003, FBT001, FBT002 - the other package's signature
        **kwargs: Any,
    ) -> Self:
        """Return a backend whose first call creates a sandbox from a template; leaving the context deletes it.

        `kwargs` are options of `sandpod.KubernetesProviderConfig`, such as `guest_token_file`.
        """
        config = _config(
            template_name,
            namespace,
            gateway_name=gateway_name,
            gateway_namespace=gateway_namespace,
            api_url=api_url,
            server_port=server_port,
            **kwargs,
        )
        policy = _policy(root_dir)
        owned = OwnedSandbox(make_provider(config), policy=policy, working_dir=policy["root_dir"])
        return cls(owned, root_dir, manage_client=True)

    @classmethod
    def from_env(cls) -> Self:
        """Create the backend from the `LANGCHAIN_*` variables of a development setup."""
        variables = os.environ
        return cls.from_template(
            variables["LANGCHAIN_SANDBOX_TEMPLATE"],
            namespace=variables.get("LANGCHAIN_NAMESPACE", "default"),
            api_url=variables.get("LANGCHAIN_API_URL"),
            server_port=int(variables.get("LANGCHAIN_SERVER_PORT", "8888")),
            root_dir=variables.get("LANGCHAIN_ROOT_DIR", "/app"),
        )

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        """Read a page of a file, as numbered lines."""
        return NumberedText(super().read(file_path, offset, limit), file_path, offset)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        """Read a page of a file, as `read` does."""
        return NumberedText(await super().aread(file_path, offset, limit), file_path, offset)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a new file; an existing file is not replaced."""
        if super().read(file_path, 0, 1).error is None:
            return WriteResult(error=f"File '{file_path}' already exists", path=file_path)
        return dataclasses.replace(super().write(file_path, content), path=file_path)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a new file, as `write` does."""
        if (await super().aread(file_path, 0, 1)).error is None:
            return WriteResult(error=f"File '{file_path}' already exists", path=file_path)
        return dataclasses.replace(await super().awrite(file_path, content), path=file_path)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file; a failure contains the number of occurrences."""
        done = super().edit(file_path, old_string, new_string, replace_all)
        if done.error is None:
            return done
        found = super().download_files([file_path])[0].content if MANY_MATCHES in done.error else None
        return EditResult(error=done.error, path=file_path, occurrences=_occurrences(found, old_string))

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002 - the protocol's signature
    ) -> EditResult:
        """Replace text in a file, as `edit` does."""
        done = await super().aedit(file_path, old_string, new_string, replace_all)
        if done.error is None:
            return done
        found = (await super().adownload_files([file_path]))[0].content if MANY_MATCHES in done.error else None
        return EditResult(error=done.error, path=file_path, occurrences=_occurrences(found, old_string))

    def upload_files(self, files: Files) -> list[FileUploadResponse]:
        """Write files, given as pairs or as a dict; results are per file."""
        return super().upload_files(_pairs(files))

    async def aupload_files(self, files: Files) -> list[FileUploadResponse]:
        """Write files, as `upload_files` does."""
        return await super().aupload_files(_pairs(files))

    def __enter__(self) -> Self:
        """Create the sandbox, or enter the context of a managed client."""
        if self._owned:
            self._owned.make()
        elif self._manage_client:
            self._client.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Delete the sandbox, or leave the context of a managed client."""
        if self._owned:
            self._owned.stop(delete=True)
        elif self._manage_client:
            self._client.__exit__(*exception)

    async def __aenter__(self) -> Self:
        """Create the sandbox, as `with` does."""
        if self._owned:
            await self._owned.amake()
            return self
        return self.__enter__()

    async def __aexit__(self, *exception: object) -> None:
        """Delete the sandbox, as `with` does."""
        if self._owned:
            await self._owned.astop(delete=True)
        else:
            self.__exit__(*exception)


class SandboxPolicyWrapper(LegacyNames, _policies.SandboxPolicyWrapper):
    """`sandpod.SandboxPolicyWrapper` with the additional names of older versions.

    For a backend with a `root_dir`, a denied directory is denied by both paths: `/etc` and `/app/etc`.
    """

    def __init__(
        self,
        backend: SandboxBackendProtocol,
        deny_prefixes: Sequence[str] | None = None,
        deny_commands: Sequence[str] | None = None,
        audit_log: AuditLog | None = None,
        *,
        strict_audit: bool = False,
    ) -> None:
        """Wrap a sandbox."""
        denied = list(deny_prefixes or [])
        if isinstance(backend, AgentSandboxBackend):
            denied = [path for prefix in denied for path in _both_paths(prefix, backend.root_dir)]
        super().__init__(backend, denied, deny_commands, audit_log, strict_audit=strict_audit)


class WarmPoolBackend(AgentSandboxBackend):
    """A backend with a sandbox from a warm pool."""

    def __init__(
        self,
        client: Any,
        root_dir: str = "/app",
        manage_client: bool = False,  # noqa: FBT001, FBT002 - the other package's signature
        warmpool_name: str | None = None,
    ) -> None:
        """Wrap a client's sandbox."""
        super().__init__(client, root_dir, manage_client)
        self._warmpool_name = warmpool_name

    @classmethod
    def from_warmpool(
        cls, template_name: str, namespace: str = "default", warmpool_name: str | None = None, **kwargs: Any
    ) -> Self:
        """Return a backend whose first call claims a sandbox from this pool, or from any pool of the template."""
        backend = cls.from_template(template_name, namespace, warm_pool_name=warmpool_name, **kwargs)
        backend._warmpool_name = warmpool_name  # noqa: SLF001 - our own
        return backend

    def get_adoption_info(self) -> dict[str, Any]:
        """Return the name of the pool."""
        return {"warmpool_name": self._warmpool_name, "from_warmpool": self._warmpool_name is not None}


class BackendFactory(AgentSandboxBackend):
    """A backend that uses the sandbox of the calling LangGraph thread.

    The first call of a thread creates its sandbox; a call outside any thread returns an error. Leaving the context
    deletes all used sandboxes.
    """

    def __init__(self, sandboxes: PerThreadSandbox, root_dir: str) -> None:
        """Wrap the sandboxes of all threads."""
        super().__init__(sandboxes, root_dir)
        self._sandboxes = sandboxes

    def __call__(self, runtime: object) -> AgentSandboxBackend:
        """Return the backend of a runtime's thread, for older versions of Deep Agents."""
        config: Any = getattr(runtime, "config", None)
        try:
            return AgentSandboxBackend(self._sandboxes.of(config), self.root_dir)
        except NoThreadError:
            return self


def create_sandbox_backend_factory(
    template_name: str, namespace: str = "default", *, scope: str | None = None, **kwargs: Any
) -> BackendFactory:
    """Create a value for `create_deep_agent(backend=…)` of older and newer versions.

    Args:
        template_name: The SandboxTemplate.
        namespace: Its namespace.
        scope: Whose threads these are: processes of one scope find the same sandbox for a thread, others never do.
            None: a hash of the namespace and the template.
        **kwargs: As for `AgentSandboxBackend.from_template`.
    """
    kwargs.pop("allow_absolute_paths", None)
    policy = _policy(kwargs.pop("root_dir", "/app"))
    config = _config(template_name, namespace, **kwargs)
    scope = scope or default_scope(config, {})
    sandboxes = PerThreadSandbox(make_provider(config), scope, policy, policy["root_dir"])
    return BackendFactory(sandboxes, policy["root_dir"])


def make_provider(config: KubernetesProviderConfig) -> KubernetesProvider:
    """Create the provider of an own sandbox."""
    return KubernetesProvider(config)


def _config(  # noqa: PLR0913 - the other package's
    template_name: str,
    namespace: str,
    *,
    gateway_name: str | None = None,
    gateway_namespace: str = "default",
    api_url: str | None = None,
    server_port: int = 8888,
    **kwargs: Any,
) -> KubernetesProviderConfig:
    """Return the configuration; `kwargs` are options of the older SDK's client, or of this package."""
    own = {name: value for name, value in kwargs.items() if name not in CLIENTS_OWN}
    if (timeout := own.pop("sandbox_ready_timeout", None)) is not None:
        own["startup_timeout_seconds"] = timeout
    options: dict[str, Any] = {"default_exec_timeout": COMMAND_SECONDS}
    options |= _connections.fields(api_url, gateway_name, gateway_namespace, server_port) | own
    return KubernetesProviderConfig(mode="agent-sandbox", template_name=template_name, namespace=namespace, **options)


def _policy(root_dir: str) -> dict[str, Any]:
    if not root_dir.startswith("/"):
        msg = f"root_dir must be an absolute path, got: {root_dir}"
        raise ValueError(msg)
    return {"root_dir": posixpath.normpath(root_dir), "accept_real_paths": True, "deny_scope": "file_tools"}


def _pairs(files: Files) -> list[tuple[str, bytes]]:
    pairs = cast("dict[str, bytes]", files).items() if isinstance(files, dict) else files
    return list(pairs)


def _occurrences(content: bytes | None, text: str) -> int:
    """Count the occurrences of a text in a file, which may have Windows line breaks."""
    if content is None:
        return 0
    return content.count(text.encode()) or content.count(text.replace("\n", "\r\n").encode())


def _both_paths(prefix: str, root: str) -> list[str]:
    """Return the path of a directory for callers and its path in the sandbox."""
    directory = posixpath.normpath(prefix)
    if directory == root or directory.startswith(root.rstrip("/") + "/"):
        return [directory, "/" + posixpath.relpath(directory, root).removeprefix(".")]
    return [directory, posixpath.normpath(f"{root}/{directory}")]
