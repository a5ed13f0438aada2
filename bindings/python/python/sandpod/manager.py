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
from sandpod._threads import SCOPE_LABEL, SHUTDOWN_TIMEOUT, Life, NoThreadError, Threads, default_scope
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
"""Those of this process."""


class KubernetesSandboxManager:
    """Gives each LangGraph thread a sandbox of its own: the first tool call makes it, later turns find it again.

    A thread's sandbox has an id that follows from the manager's `scope` and the thread's id. So a restarted process, a
    second replica and two calls at once all end at the same sandbox, whatever checkpointer there is.

    Example:
        >>> from sandpod import KubernetesProviderConfig, KubernetesSandboxManager
        >>> manager = KubernetesSandboxManager(KubernetesProviderConfig(mode="local"), ttl_idle_seconds=1800)
        >>> agent = manager.create_agent("anthropic:claude-sonnet-4-5")  # doctest: +SKIP
        >>> agent.invoke({"messages": ["hello"]}, {"configurable": {"thread_id": "1"}})  # doctest: +SKIP
        >>> manager.shutdown()
    """

    _provider_class: ClassVar[type[KubernetesProvider]] = KubernetesProvider
    """What makes its sandboxes."""

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
        """Check the configuration; no cluster is reached yet.

        Args:
            provider_config: How sandboxes are made.
            ttl_seconds: How long a new sandbox lives; None: as the configuration says.
            ttl_idle_seconds: How long it lives unused; None: as the configuration says.
            default_labels: Written on each sandbox, beside those of the configuration.
            scope: Whose threads these are: managers of one scope share sandboxes, those of others never do. None: a
                hash of the mode, the namespace, the template or image and the labels.
            on_lost: What happens to a thread whose sandbox is lost: `recreate` gives it a new one, and the next
                tool's result says so; with `error` each call says that it is gone.
            cleanup_interval: Seconds between two runs of `cleanup` in the background, once there is a sandbox; None: no
                runs. In agent-sandbox mode the cluster deletes most ended sandboxes; in raw mode use this or a reaper.
            shutdown_timeout: Seconds after which `shutdown` ends, whatever is left. Default: 25, less than the 30 that
                Kubernetes gives a Pod to end.
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
        life = Life(labels, ttl_seconds, ttl_idle_seconds, recreate=on_lost == "recreate")
        self._threads = Threads(self.provider.native, self.scope, life)
        self._shutdown_timeout = shutdown_timeout
        self._sweeper = _Sweeper(self, cleanup_interval)
        _MANAGERS.add(self)

    def backend(self) -> ThreadSandbox:
        """Return a backend that is, in each call, the sandbox of the thread that calls."""
        return ThreadSandbox(self._threads, self._sweeper.start)

    def create_agent(
        self,
        model: Any,
        *,
        checkpointer: Any = None,
        state_sandbox_key: str = "sandbox_id",
        **kwargs: Any,
    ) -> Any:
        """Make a deep agent whose tools work in the sandbox of the thread that it is invoked for.

        It is `create_deep_agent`'s own graph, so its steps stream at the top level. After a turn that used the sandbox
        its id is in the graph's state, and beside it the place that it had (`sandbox_place`): if that is another one in
        a later turn, the first tool's result says that the files are gone.

        Args:
            model: A chat model, or its name.
            checkpointer: Remembers conversations; `langgraph dev` and the platform bring their own.
            state_sandbox_key: Where in the state the sandbox's id is.
            **kwargs: For `create_deep_agent`, such as `system_prompt` and `tools`. A `backend` takes the place of ours:
                make it with `manager.backend()`, for example as the default of a `CompositeBackend`.
        """
        kwargs.setdefault("backend", self.backend())
        middleware = [_SandboxState(self, state_sandbox_key), *kwargs.pop("middleware", ())]
        return create_deep_agent(model, checkpointer=checkpointer, middleware=middleware, **kwargs)

    def create_setup_node(self, *, state_sandbox_key: str = "sandbox_id") -> Callable[..., Awaitable[dict[str, Any]]]:
        """Make a node that acquires the thread's sandbox before an agent's node runs, and writes its id to the state.

        An id that the state has is used while its sandbox is there. Give the agent `manager.backend()`. A state that
        has `sandbox_place`, too, lets an agent hear of files that were lost with their sandbox's claim or Lease.
        """

        async def setup_node(state: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
            thread = thread_of(config)
            await self._acquire(thread, state, state_sandbox_key)
            return state_of(self._threads, thread, state_sandbox_key)

        return setup_node

    def create_agent_node(
        self, model: Any, *, state_sandbox_key: str = "sandbox_id", **kwargs: Any
    ) -> Callable[..., Awaitable[dict[str, Any]]]:
        """Make one node that acquires the thread's sandbox and runs a deep agent in it, without streaming its steps.

        The state needs `messages` and the key for the sandbox's id.
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
        """Find the sandbox of that id, or make one; its id differs from the one given if there was none."""
        self._sweeper.start()
        life = self._threads.life
        sandbox = await self.provider.aget_or_create(
            sandbox_id=sandbox_id,
            labels=life.labels | {SCOPE_LABEL: self.scope},
            ttl_seconds=life.ttl_seconds,
            ttl_idle_seconds=life.ttl_idle_seconds,
        )
        self._threads.native().note_used(sandbox.id)
        return sandbox

    def cleanup(self, max_idle_seconds: int | None = None) -> CleanupResult:
        """Delete the sandboxes whose time is up; `max_idle_seconds` takes the place of their own idle times."""
        result = self.provider.cleanup(max_idle_seconds)
        self._threads.native().forget(result.deleted)
        return result

    async def acleanup(self, max_idle_seconds: int | None = None) -> CleanupResult:
        """Delete sandboxes, as `cleanup` does."""
        result = await self.provider.acleanup(max_idle_seconds)
        self._threads.native().forget(result.deleted)
        return result

    def shutdown(self, *, all: bool = False) -> None:  # noqa: A002 - the word that says it
        """Delete the sandboxes that this process made or found, or with `all` those of the manager's whole scope.

        They are deleted side by side, within `shutdown_timeout`. A `SandboxError` names those that are left; calling it
        again goes on with them. Another scope's are never touched. The manager hands out nothing any more.
        """
        self._shutdown(all=all).wait()

    async def ashutdown(self, *, all: bool = False) -> None:  # noqa: A002 - the word that says it
        """Delete sandboxes, as `shutdown` does."""
        await self._shutdown(all=all)

    def _shutdown(self, *, all: bool) -> _native.Call[None]:  # noqa: A002 - as in `shutdown`
        self._sweeper.stop()
        why = "This KubernetesSandboxManager was shut down, and its sandboxes are deleted."
        return self._threads.shut_down(why, self._shutdown_timeout, whole_scope=all)

    def close(self) -> None:
        """Stop what is done in the background, and delete nothing: another process goes on with the sandboxes."""
        self._close()
        self.provider.close()

    async def aclose(self) -> None:
        """Stop what is done in the background, as `close` does."""
        self._close()
        await self.provider.aclose()

    def __enter__(self) -> Self:
        """Use the manager; `shutdown` is called in the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Delete what this process made or found."""
        self.shutdown()

    async def __aenter__(self) -> Self:
        """Use the manager; `ashutdown` is called in the end."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Delete what this process made or found."""
        await self.ashutdown()

    def begin_after_fork(self) -> None:
        """Clean up by a thread of this process."""
        self._sweeper.begin_after_fork()

    def _close(self) -> None:
        self._sweeper.stop()
        self._threads.close("This KubernetesSandboxManager was closed.")

    async def _acquire(self, thread: str, state: Mapping[str, Any], key: str) -> None:
        """Find or make the thread's sandbox: the one that the state names, or the thread's own."""
        self._sweeper.start()
        await self._threads.native().acquire(thread, state.get(key), state.get(place_key(key)))


def thread_of(config: Mapping[str, Any] | None = None, *, caller: str = "KubernetesSandboxManager") -> str:
    """Return the id of the thread that is running, or of the one that `config` names.

    Without one it raises `NoThreadError`, whose message begins with the `caller`.
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
    """In each call, the sandbox of the LangGraph thread that calls. A manager makes it.

    Nothing is made before the first call of a thread, and a call outside of any thread returns an error. A sandbox that
    is lost is replaced, if the manager does so; the call that found out says that it is gone, since nobody knows what
    it did, and the next one gets the new sandbox.
    """

    def __init__(self, threads: Threads, begin: Callable[[], None], policies: tuple[dict[str, Any], ...] = ()) -> None:
        """Make it for all threads of a scope; `begin` is called before each call, and policies narrow it."""
        self._threads = threads
        self._begin = begin
        self._policies = policies
        self._shell_session = AGENT_SESSION

    def narrowed(self, policy: dict[str, Any]) -> Self:
        """Give the same sandboxes under one more policy."""
        narrowed = copy.copy(self)
        narrowed._policies = (*self._policies, policy)  # noqa: SLF001 - our own
        return narrowed

    @property
    def id(self) -> str:
        """The id of the calling thread's sandbox, be there one or not; the scope where no thread calls."""
        try:
            return self._threads.id_of(self._thread())
        except NoThreadError:
            return self._threads.scope

    def _thread(self) -> str:
        """The thread that calls."""
        return thread_of()

    def _here(self) -> _native.Sandbox:
        self._begin()
        return self._narrow(self._threads.get(self._thread()))

    async def _ahere(self) -> _native.Sandbox:
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
        """The same operation; if it finds out that the sandbox is gone, the thread forgets it."""

        def failed(error: SandboxError) -> ResultT:
            if error.code == "gone":
                self._threads.native().lose(self._thread())
            return operation.failed(error)

        return dataclasses.replace(operation, failed=failed)


class _SandboxState(AgentMiddleware[Any, Any, Any]):
    """Keeps the sandbox's id and place in the graph's state, and looks before each turn whether it is still there."""

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
            logger.warning("Whether the sandbox of thread %s is still there is unknown: %s", thread, error)

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        del state, runtime
        return state_of(self._threads, thread_of(), self._key) or None

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        return self.after_agent(state, runtime)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        # A turn that another process goes on with has no beginning here.
        self._expect(request.state)
        return handler(request)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        self._expect(request.state)
        return await handler(request)

    def _expect(self, state: Any) -> None:
        self._threads.native().expect(thread_of(), state.get(self._key), state.get(place_key(self._key)))


def place_key(key: str) -> str:
    """Return where in the state the sandbox's place is, if its id is at `key`."""
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
        logger.warning("Whether the sandbox of thread %s is still there is unknown: %s", thread, error)


class _Sweeper:
    """Cleans up now and then, on a thread of its own, from the first sandbox on."""

    def __init__(self, manager: KubernetesSandboxManager, interval: float | None) -> None:
        self._manager = manager
        self._interval = interval
        self._stopped = threading.Event()
        self._begun = threading.Lock()

    def start(self) -> None:
        if self._interval is not None and not self._stopped.is_set() and self._begun.acquire(blocking=False):
            threading.Thread(target=self._sweep, name="sandpod-cleanup", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def begin_after_fork(self) -> None:
        stopped = self._stopped.is_set()
        self._stopped, self._begun = threading.Event(), threading.Lock()
        if stopped:
            self._stopped.set()

    def _sweep(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._manager.cleanup()
            except SandboxError as error:
                logger.warning("Cleaning up failed, and is tried again: %s", error)


def _begin_after_fork() -> None:
    for manager in _MANAGERS:
        manager.begin_after_fork()


os.register_at_fork(after_in_child=_begin_after_fork)
