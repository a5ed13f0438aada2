"""The names of `langchain-agent-sandbox`.

Example:
    >>> from sandpod.compat.langchain_agent_sandbox import AgentSandboxBackend
    >>> with AgentSandboxBackend.from_template("my-template") as backend:  # doctest: +SKIP
    ...     backend.execute("echo hello")
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Self

from sandpod import policy as _policies
from sandpod._deepagents import ReadResult, WriteResult
from sandpod.compat import _connections
from sandpod.compat._front import Front
from sandpod.compat._held import HeldSandbox
from sandpod.compat._older import OlderNames
from sandpod.compat._owned import OwnedSandbox
from sandpod.config import KubernetesProviderConfig
from sandpod.provider import KubernetesProvider

if TYPE_CHECKING:
    from sandpod._deepagents import FileUploadResponse

__all__ = ["AgentSandboxBackend", "SandboxPolicyWrapper", "WarmPoolBackend", "create_sandbox_backend_factory"]

CLIENTS_OWN = {"gateway_ready_timeout", "port_forward_ready_timeout", "enable_tracing", "trace_service_name"}
"""Options of the older SDK's client that have nothing to say here: the time to start counts for all of it."""
COMMAND_SECONDS = 60
"""What a command may take: its package leaves that to the SDK's default."""
_LINE = 2000
"""Characters of a line that are shown."""


class NumberedText(str):
    """What `read` returns: numbered lines, or a sentence that begins with `Error:`, as this package's users expect.

    It has the fields of Deep Agents' `ReadResult`, too, which is what its file tools look at.
    """

    __slots__ = tuple(field.name for field in dataclasses.fields(ReadResult))

    def __new__(cls, result: ReadResult, path: str, offset: int) -> Self:
        """Show a result as text."""
        text = super().__new__(cls, _numbered(result, path, offset))
        for field in dataclasses.fields(ReadResult):
            setattr(text, field.name, getattr(result, field.name))
        return text


def _numbered(result: ReadResult, path: str, offset: int) -> str:
    if result.error is not None:
        missing = result.error.endswith("file_not_found")
        return f"Error: File '{path}' not found" if missing else f"Error: {result.error}"
    content = result.file_data["content"] if result.file_data else ""
    first = result.start_line or offset + 1
    return "\n".join(f"{first + at}: {line[:_LINE]}" for at, line in enumerate(content.split("\n")))


class AgentSandboxBackend(Front):
    """A sandbox whose files are seen below `root_dir`: `/file.txt` is `/app/file.txt`, and nothing leads out of it."""

    def __init__(
        self,
        client: Any,
        root_dir: str = "/app",
        manage_client: bool = False,  # noqa: FBT001, FBT002 - the other package's signature
        allow_absolute_paths: bool = False,  # noqa: FBT001, FBT002 - the other package's signature
    ) -> None:
        """Wrap a client's sandbox; with `manage_client` the context manager enters and leaves the client, too."""
        policy = _policy(root_dir, allow_absolute_paths=allow_absolute_paths)
        self._owned = client if isinstance(client, OwnedSandbox) else None
        self._client: Any = client
        self._manage_client = manage_client
        super().__init__(self._owned or HeldSandbox(client, COMMAND_SECONDS, policy=policy))

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
        allow_absolute_paths: bool = False,  # noqa: FBT001, FBT002 - the other package's signature
        **kwargs: Any,
    ) -> Self:
        """Make a sandbox of a template with the first call; leaving the context deletes it."""
        of_client: dict[str, Any] = {"default_exec_timeout": COMMAND_SECONDS, **_of_client(kwargs)}
        config = KubernetesProviderConfig(
            mode="agent-sandbox",
            template_name=template_name,
            namespace=namespace,
            **_connections.fields(api_url, gateway_name, gateway_namespace, server_port),
            **of_client,
        )
        policy = _policy(root_dir, allow_absolute_paths=allow_absolute_paths)
        owned = OwnedSandbox(make_provider(config), policy=policy)
        return cls(owned, root_dir, manage_client=True)

    @classmethod
    def from_env(cls) -> Self:
        """Make it as the `LANGCHAIN_*` variables of a development setup say."""
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
        """Write a new file; one that is there stays as it is."""
        if super().read(file_path, 0, 1).error is None:
            return WriteResult(error=f"File '{file_path}' already exists")
        return super().write(file_path, content)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a new file, as `write` does."""
        if (await super().aread(file_path, 0, 1)).error is None:
            return WriteResult(error=f"File '{file_path}' already exists")
        return await super().awrite(file_path, content)

    def upload_files(self, files: list[tuple[str, bytes]] | dict[str, bytes]) -> list[FileUploadResponse]:
        """Write files, from pairs or a dict; each has its own outcome."""
        return super().upload_files(_pairs(files))

    async def aupload_files(self, files: list[tuple[str, bytes]] | dict[str, bytes]) -> list[FileUploadResponse]:
        """Write files, as `upload_files` does."""
        return await super().aupload_files(_pairs(files))

    def __enter__(self) -> Self:
        """Make the sandbox, or enter the client that is managed."""
        if self._owned:
            self._owned.make()
        elif self._manage_client:
            self._client.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Delete the sandbox, or leave the client that is managed."""
        if self._owned:
            self._owned.stop(delete=True)
        elif self._manage_client:
            self._client.__exit__(*exception)

    async def __aenter__(self) -> Self:
        """Make the sandbox, as `with` does."""
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


class SandboxPolicyWrapper(OlderNames, _policies.SandboxPolicyWrapper):
    """`sandpod.SandboxPolicyWrapper`, with the names of older versions beside its own."""


class WarmPoolBackend(AgentSandboxBackend):
    """The same, with a sandbox that waits in a warm pool."""

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
        """Take a sandbox of that pool, or of any pool of the template, with the first call."""
        backend = cls.from_template(template_name, namespace, warm_pool_name=warmpool_name, **kwargs)
        backend._warmpool_name = warmpool_name  # noqa: SLF001 - our own
        return backend

    def get_adoption_info(self) -> dict[str, Any]:
        """Say which pool was named."""
        return {"warmpool_name": self._warmpool_name, "from_warmpool": self._warmpool_name is not None}


class BackendFactory(AgentSandboxBackend):
    """A backend that makes its sandbox with the first call; called with a runtime, it makes another backend."""

    _arguments: tuple[str, str, dict[str, Any]]

    def __call__(self, runtime: object) -> AgentSandboxBackend:
        """Make a backend, as older versions of Deep Agents ask for."""
        del runtime
        template_name, namespace, kwargs = self._arguments
        return AgentSandboxBackend.from_template(template_name, namespace, **kwargs)


def create_sandbox_backend_factory(template_name: str, namespace: str = "default", **kwargs: Any) -> BackendFactory:
    """Make what `create_deep_agent(backend=…)` takes, in its older versions and in the newer."""
    factory = BackendFactory.from_template(template_name, namespace, **kwargs)
    factory._arguments = (template_name, namespace, kwargs)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return factory


def make_provider(config: KubernetesProviderConfig) -> KubernetesProvider:
    """Make the provider of a sandbox of its own."""
    return KubernetesProvider(config)


def _of_client(options: dict[str, Any]) -> dict[str, Any]:
    """What was meant for the older SDK's client, as this package says it; the rest is this package's own."""
    own = {name: value for name, value in options.items() if name not in CLIENTS_OWN}
    if (timeout := own.pop("sandbox_ready_timeout", None)) is not None:
        own["startup_timeout_seconds"] = timeout
    return own


def _policy(root_dir: str, *, allow_absolute_paths: bool) -> dict[str, Any]:
    if not root_dir.startswith("/"):
        msg = f"root_dir must be an absolute path, got: {root_dir}"
        raise ValueError(msg)
    return {"root_dir": root_dir, "accept_real_paths": allow_absolute_paths, "deny_scope": "file_tools"}


def _pairs(files: list[tuple[str, bytes]] | dict[str, bytes]) -> list[tuple[str, bytes]]:
    return list(files.items()) if isinstance(files, dict) else files
