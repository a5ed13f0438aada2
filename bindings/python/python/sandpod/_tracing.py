"""A span for each operation, if OpenTelemetry is installed.

A span holds the operation, the sandbox and the outcome, but no command, path or content.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sandpod import _native
from sandpod.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from opentelemetry.trace import Span, Tracer

NativeT = TypeVar("NativeT", _native.Provider, _native.Sandbox, _native.Threads)


def traced(native: NativeT) -> NativeT:
    """Give the same provider, sandbox or registry of threads, with a span around each of its calls."""
    tracer = _tracer()
    return native if tracer is None else cast("NativeT", _Traced(native, tracer))


@cache
def _tracer() -> Tracer | None:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        return None
    return trace.get_tracer("sandpod")


class _Traced:
    """A provider, a sandbox or a registry of threads whose calls are traced."""

    def __init__(self, native: _native.Provider | _native.Sandbox | _native.Threads, tracer: Tracer) -> None:
        self._native = native
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._native, name)
        return self._watched(name, found) if callable(found) else found

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            if isinstance(result, tuple):  # a call and its progress
                first, *others = cast("tuple[Any, ...]", result)
                return (self._wrapped(name, first), *others)
            return self._wrapped(name, result)

        return call

    def _wrapped(self, name: str, result: Any) -> Any:
        if isinstance(result, _native.Sandbox):
            return traced(result)
        if not isinstance(result, _native.Call):
            return result
        sandbox = self._native.id if isinstance(self._native, _native.Sandbox) else None
        return _TracedCall(cast("_native.Call[Any]", result), self._tracer, name, sandbox)


class _TracedCall:
    """A call whose span covers the wait."""

    def __init__(self, call: _native.Call[Any], tracer: Tracer, name: str, sandbox: str | None) -> None:
        self._call = call
        self._tracer = tracer
        self._name = name
        self._sandbox = sandbox

    def wait(self) -> Any:
        with self._span() as span:
            return _answered(span, self._call.wait())

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._run().__await__()

    async def _run(self) -> Any:
        with self._span() as span:
            return _answered(span, await self._call)

    @contextmanager
    def _span(self) -> Generator[Span]:
        # The tracer must not record exceptions, whose messages may hold a path.
        with self._tracer.start_as_current_span(
            f"sandpod.{self._name}", record_exception=False, set_status_on_exception=False
        ) as span:
            if self._sandbox:
                span.set_attribute("sandpod.sandbox_id", self._sandbox)
            try:
                yield span
            except BaseException as error:
                _failed(span, error.code if isinstance(error, SandboxError) else type(error).__name__)
                raise


def _answered(span: Span, answer: Any) -> Any:
    if isinstance(answer, _native.Sandbox):
        span.set_attribute("sandpod.sandbox_id", answer.id)
        return traced(answer)
    if isinstance(answer, dict) and (code := cast("dict[str, Any]", answer).get("exit_code")) is not None:
        span.set_attribute("sandpod.exit_code", code)
    return cast("Any", answer)


def _failed(span: Span, why: str) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415 - installed, because a span exists

    span.set_attribute("error.type", why)
    span.set_status(StatusCode.ERROR)
