"""One sandbox for each LangGraph thread."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, Self, cast
from weakref import WeakSet

from langchain.agents.middleware import AgentMiddleware, AgentState
from langgraph.config import get_config

from sandpod._base import AGENT_SESSION
from sandpod._deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - of its tools
from sandpod._threads import SCOPE_LABEL, SHUTDOWN_TIMEOUT, NoThreadError, SandboxSettings, Threads, default_scope
from sandpod.errors import SandboxError
from sandpod.provider import KubernetesProvider
from sandpod.sandbox import KubernetesSandbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from langchain_core.runnables import RunnableConfig

    from sandpod import _native
    from sandpod._operations import AnswerT, Operation, ResultT
    from sandpod.config import KubernetesProviderConfig
    from sandpod.info import CleanupResult

logger = logging.getLogger(__name__)

NO_THREAD = "no thread_id in LangGraph config. Invoke with config={'configurable': {'thread_id': '...'}}."

_MANAGERS: WeakSet[KubernetesSandboxManager] = WeakSet()
"""The managers of this process, for `os.register_at_fork`."""


class KubernetesSandboxManager:
    """Gives each LangGraph thread its own sandbox: the first tool call creates it, later turns reuse it.

    The id of a thread's sandbox is derived from the manager's `scope` and the thread id. A restarted process, a second
    replica and concurrent calls therefore find the same sandbox, with any checkpointer.

    Example:
        >>> from sandpod import KubernetesProviderConfig, KubernetesSandboxManager
        >>> manager = KubernetesSandboxManager(KubernetesProviderConfig(mode="local"), ttl_idle_seconds=1800)
        >>> agent = manager.create_agent("anthropic:claude-sonnet-4-5")  # doctest: +SKIP
        >>> agent.invoke({"messages": ["hello"]}, {"configurable": {"thread_id": "1"}})  # doctest: +SKIP
        >>> manager.shutdown()
    """

    _provider_class: ClassVar[type[KubernetesProvider]] = KubernetesProvider
    """The class of the provider."""

    def __init__(  # noqa: PLR0913 - four of them are of langchain-kubernetes
        self,
        provider_config: KubernetesProviderConfig,
        ttl_seconds: int | None = None,
        ttl_idle_seconds: int | None = None,
        default_labels: dict[str, str] | None = None,
        *,
        scope: str | None = None,
        on_lost: Literal["recreate", "error"] = "recreate",
        cleanup_interval: float | None = None,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT,
    ) -> None:
        """Validate the configuration, without connecting to the cluster.

        Args:
            provider_config: Configuration of the sandboxes.
            ttl_seconds: TTL of new sandboxes; None: that of the configuration.
            ttl_idle_seconds: Idle TTL of new sandboxes; None: that of the configuration.
            default_labels: Labels of each sandbox, in addition to those of the configuration.
            scope: Managers with the same scope share the sandboxes of threads; other managers never do. None: a hash of
                the mode, the namespace, the template or image, and the labels.
            on_lost: `recreate` replaces a lost sandbox, and the next tool result reports the loss; `error` makes each
                call return an error.
            cleanup_interval: Seconds between background runs of `cleanup`, from the first sandbox on; None: no runs. In
                agent-sandbox mode, the cluster deletes most expired sandboxes; in raw mode, use this or a reaper.
            shutdown_timeout: Seconds after which `shutdown` returns even if sandboxes are left. The default, 25, is
                less than the 30 seconds that Kubernetes gives a Pod to terminate.
        """
        if on_lost not in {"recreate", "error"}:
            msg = f"on_lost is {on_lost!r}. Use 'recreate' or 'error'."
            raise ValueError(msg)
        if cleanup_interval is not None and cleanup_interval <= 0:
            msg = f"cleanup_interval is {cleanup_interval}, but must be more than 0 seconds."
            raise ValueError(msg)
        if shutdown_timeout <= 0:
            msg = f"shutdown_timeout is {shutdown_timeout}, but must be more than 0 seconds."
            raise ValueError(msg)
        labels = default_labels or {}
        self.provider = self._provider_class(provider_config)
        self.scope = scope or default_scope(provider_config, labels)
        settings = SandboxSettings(labels, ttl_seconds, ttl_idle_seconds, recreate=on_lost == "recreate")
        self._threads = Threads(self.provider.native, self.scope, settings)
        self._shutdown_timeout = shutdown_timeout
        self._cleanup_thread = _CleanupThread(self, cleanup_interval)
        _MANAGERS.add(self)

    def backend(self) -> ThreadSandbox:
        """Return a backend that uses the sandbox of the calling thread in each call."""
        return ThreadSandbox(self._threads, self._cleanup_thread.start)

    def create_agent(
        self,
        model: Any,
        *,
        checkpointer: Any = None,
        state_sandbox_key: str = "sandbox_id",
        **kwargs: Any,
    ) -> Any:
        """Create a deep agent whose tools work in the sandbox of its thread.

        The result is the graph of `create_deep_agent`, so its steps stream at the top level. After a turn that used the
        sandbox, the graph's state holds its id and its place (`sandbox_place`). If the place differs in a later turn,
        the first tool result reports that the files are lost.

        Args:
            model: A chat model, or its name.
            checkpointer: Stores conversations; `langgraph dev` and the platform provide their own.
            state_sandbox_key: Key of the sandbox id in the state.
            **kwargs: Arguments of `create_deep_agent`, such as `system_prompt` and `tools`. A `backend` replaces the
                default; build it with `manager.backend()`, for example as the default of a `CompositeBackend`.
        """
        kwargs.setdefault("backend", self.backend())
        middleware = [_SandboxState(self, state_sandbox_key), *kwargs.pop("middleware", ())]
        return create_deep_agent(model, checkpointer=checkpointer, middleware=middleware, **kwargs)

    def create_setup_node(self, *, state_sandbox_key: str = "sandbox_id") -> Callable[..., Awaitable[dict[str, Any]]]:
        """Create a node that acquires the thread's sandbox before an agent's node runs, and writes its id to the state.

        An id in the state is used while its sandbox exists. Give the agent `manager.backend()`. If the state has
        `sandbox_place`, too, the agent gets a report when the files were lost with the sandbox's claim or Lease.
        """

        async def setup_node(state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
            thread = thread_of(config)
            await self._acquire(thread, state, state_sandbox_key)
            return state_of(self._threads, thread, state_sandbox_key)

        return setup_node

    def create_agent_node(
        self, model: Any, *, state_sandbox_key: str = "sandbox_id", **kwargs: Any
    ) -> Callable[..., Awaitable[dict[str, Any]]]:
        """Create one node that acquires the thread's sandbox and runs a deep agent in it, without streaming its steps.

        The state requires `messages` and the key of the sandbox id.
        """
        kwargs.setdefault("backend", self.backend())
        agent = cast("Any", create_deep_agent(model, **kwargs))

        async def agent_node(state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
            thread = thread_of(config)
            await self._acquire(thread, state, state_sandbox_key)
            result = await agent.ainvoke({"messages": state.get("messages", [])}, config)
            return {"messages": result["messages"]} | state_of(self._threads, thread, state_sandbox_key)

        return agent_node

    async def get_or_reconnect(self, sandbox_id: str | None = None) -> KubernetesSandbox:
        """Return the sandbox with this id, or create one; a new sandbox has a new id."""
        self._cleanup_thread.start()
        settings = self._threads.settings
        sandbox = await self.provider.aget_or_create(
            sandbox_id=sandbox_id,
            labels=settings.labels | {SCOPE_LABEL: self.scope},
            ttl_seconds=settings.ttl_seconds,
            ttl_idle_seconds=settings.ttl_idle_seconds,
        )
        self._threads.native().note_used(sandbox.id)
        return sandbox

    def cleanup(self, max_idle_seconds: int | None = None) -> CleanupResult:
        """Delete expired sandboxes; `max_idle_seconds` replaces their own idle TTLs."""
        result = self.provider.cleanup(max_idle_seconds)
        self._threads.native().forget(result.deleted)
        return result

    async def acleanup(self, max_idle_seconds: int | None = None) -> CleanupResult:
        """Delete sandboxes, as `cleanup` does."""
        result = await self.provider.acleanup(max_idle_seconds)
        self._threads.native().forget(result.deleted)
        return result

    def shutdown(self, *, all: bool = False) -> None:  # noqa: A002 - part of the public API
        """Delete the sandboxes that this process created or found, or with `all` those of the manager's scope.

        They are deleted concurrently, within `shutdown_timeout`. A `SandboxError` names remaining sandboxes; another
        call retries them. Sandboxes of other scopes are not deleted. The manager cannot be used afterwards.
        """
        self._shutdown(all=all).wait()

    async def ashutdown(self, *, all: bool = False) -> None:  # noqa: A002 - part of the public API
        """Delete sandboxes, as `shutdown` does."""
        await self._shutdown(all=all)

    def _shutdown(self, *, all: bool) -> _native.Call[None]:  # noqa: A002 - as in `shutdown`
        self._cleanup_thread.stop()
        why = "This KubernetesSandboxManager was shut down, and its sandboxes are deleted."
        return self._threads.shut_down(why, self._shutdown_timeout, whole_scope=all)

    def close(self) -> None:
        """Stop background work and keep the sandboxes for other processes."""
        self._close()
        self.provider.close()

    async def aclose(self) -> None:
        """Stop background work, as `close` does."""
        self._close()
        await self.provider.aclose()

    def __enter__(self) -> Self:
        """Enter a context that calls `shutdown` at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the sandboxes that this process created or found."""
        self.shutdown()

    async def __aenter__(self) -> Self:
        """Enter a context that calls `ashutdown` at its end."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete the sandboxes that this process created or found."""
        await self.ashutdown()

    def reset_after_fork(self) -> None:
        """Clean up by a thread of this process."""
        self._cleanup_thread.reset_after_fork()

    def _close(self) -> None:
        self._cleanup_thread.stop()
        self._threads.close("This KubernetesSandboxManager was closed.")

    async def _acquire(self, thread: str, state: Mapping[str, Any], key: str) -> None:
        """Acquire the sandbox that the state names, or the thread's own."""
        self._cleanup_thread.start()
        await self._threads.native().acquire(thread, state.get(key), state.get(place_key(key)))


def thread_of(config: Mapping[str, Any] | None = None, *, caller: str = "KubernetesSandboxManager") -> str:
    """Return the id of the running thread, or of the thread in `config`.

    Raises `NoThreadError` without one; its message begins with `caller`.
    """
    if config is None:
        try:
            config = get_config()
        except RuntimeError:
            config = {}
    thread = (config.get("configurable") or {}).get("thread_id")
    if thread is None or thread == "":
        msg = f"{caller}: {NO_THREAD}"
        raise NoThreadError(msg)
    return str(thread)


class ThreadSandbox(KubernetesSandbox):
    """A backend that uses the sandbox of the calling LangGraph thread. Created by `KubernetesSandboxManager.backend`.

    The first call of a thread creates its sandbox; a call outside any thread returns an error. A call that detects the
    loss of a sandbox returns an error, because its outcome is unknown; with `on_lost="recreate"`, the next call uses a
    new sandbox.
    """

    def __init__(self, threads: Threads, begin: Callable[[], None], policies: tuple[dict[str, Any], ...] = ()) -> None:
        """Create the backend for the threads of a scope; `begin` runs before each call, and `policies` narrow it."""
        self._threads = threads
        self._begin = begin
        self._policies = policies
        self._shell_session = AGENT_SESSION

    def narrowed(self, policy: dict[str, Any]) -> Self:
        """Return the same backend under an additional policy."""
        narrowed = copy.copy(self)
        narrowed._policies = (*self._policies, policy)  # noqa: SLF001 - same class
        return narrowed

    @property
    def id(self) -> str:
        """The id of the calling thread's sandbox, which may not exist yet; outside any thread, the scope."""
        try:
            return self._threads.id_of(self._thread())
        except NoThreadError:
            return self._threads.scope

    def _thread(self) -> str:
        """Return the calling thread."""
        return thread_of()

    def _current(self) -> _native.Sandbox:
        self._begin()
        return self._narrow(self._threads.get(self._thread()))

    async def _acurrent(self) -> _native.Sandbox:
        self._begin()
        return self._narrow(await self._threads.aget(self._thread()))

    def _narrow(self, sandbox: _native.Sandbox) -> _native.Sandbox:
        for policy in self._policies:
            sandbox = sandbox.narrowed(json.dumps(policy))
        return sandbox

    def _wait(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return super()._wait(self._watched(operation))

    async def _run(self, operation: Operation[AnswerT, ResultT]) -> ResultT:
        return await super()._run(self._watched(operation))

    def _watched(self, operation: Operation[AnswerT, ResultT]) -> Operation[AnswerT, ResultT]:
        """Wrap an operation so that an error `gone` makes the thread forget its sandbox."""

        def failed(error: SandboxError) -> ResultT:
            if error.code == "gone":
                self._threads.native().lose(self._thread())
            return operation.failed(error)

        return dataclasses.replace(operation, failed=failed)


class _SandboxState(AgentMiddleware[Any, Any, Any]):
    """Keeps the sandbox's id and place in the graph's state, and checks before each turn that the sandbox exists."""

    def __init__(self, manager: KubernetesSandboxManager, key: str) -> None:
        super().__init__()
        self._threads = manager._threads  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        self._key = key
        annotations = {"__annotations__": {key: NotRequired[str], place_key(key): NotRequired[str]}}
        self.state_schema = cast("Any", type("SandboxState", (AgentState,), annotations))

    def before_agent(self, state: Any, runtime: Any) -> None:
        del runtime
        self._expect(state)
        _quietly(self._threads, thread_of())

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        del runtime
        self._expect(state)
        thread = thread_of()
        try:
            await self._threads.native().check(thread)
        except SandboxError as error:
            logger.warning("Cannot check the sandbox of thread %s: %s", thread, error)

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        del state, runtime
        return state_of(self._threads, thread_of(), self._key) or None

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return self.after_agent(state, runtime)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        # A turn resumed by another process skips `before_agent` here.
        self._expect(request.state)
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        self._expect(request.state)
        return await handler(request)

    def _expect(self, state: Any) -> None:
        self._threads.native().expect(thread_of(), state.get(self._key), state.get(place_key(self._key)))


def place_key(key: str) -> str:
    """Return the state key of the sandbox's place, given that of its id."""
    return f"{key.removesuffix('_id')}_place"


def state_of(threads: Threads, thread: str, key: str) -> dict[str, Any]:
    """Return the state entries of a thread's sandbox. The place of a lost one stays until a result reports the loss."""
    state = threads.native().state(thread)
    if state is None:
        return {}
    sandbox_id, place = state
    return {key: sandbox_id} if place is None else {key: sandbox_id, place_key(key): place}


def _quietly(threads: Threads, thread: str) -> None:
    try:
        threads.native().check(thread).wait()
    except SandboxError as error:
        logger.warning("Cannot check the sandbox of thread %s: %s", thread, error)


class _CleanupThread:
    """Runs `cleanup` periodically on a background thread, from the first sandbox on."""

    def __init__(self, manager: KubernetesSandboxManager, interval: float | None) -> None:
        self._manager = manager
        self._interval = interval
        self._stopped = threading.Event()
        self._begun = threading.Lock()

    def start(self) -> None:
        if self._interval is not None and not self._stopped.is_set() and self._begun.acquire(blocking=False):
            threading.Thread(target=self._clean_up, name="sandpod-cleanup", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def reset_after_fork(self) -> None:
        stopped = self._stopped.is_set()
        self._stopped, self._begun = threading.Event(), threading.Lock()
        if stopped:
            self._stopped.set()

    def _clean_up(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._manager.cleanup()
            except SandboxError as error:
                logger.warning("Cleanup failed and will be retried: %s", error)


def _reset_after_fork() -> None:
    for manager in _MANAGERS:
        manager.reset_after_fork()


os.register_at_fork(after_in_child=_reset_after_fork)
