"""A backend that checks paths before the sandbox exists."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from sandpod._deepagents import DeleteResult, EditResult, GlobResult, GrepResult, LsResult, ReadResult, WriteResult
from sandpod.compat._paths import RefusedError
from sandpod.compat._wrapper import Wrapper

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandpod._deepagents import BaseSandbox
    from sandpod.compat._paths import Paths


class PrecheckedSandbox(Wrapper):
    """Rejects paths by the rules of `Paths`, without creating or connecting to a sandbox.

    The wrapped sandbox has the same rules and also resolves links. The methods of `CHECKS` are checked.
    """

    def __init__(self, backend: BaseSandbox, paths: Paths) -> None:
        """Wrap a backend."""
        super().__init__(backend)
        self._seen = paths


class Check(NamedTuple):
    """How the arguments of a method are checked."""

    result: Callable[..., Any]
    """The class of its results."""
    operation: str
    """Its name in a policy."""
    path: str
    """The parameter with the path."""
    pattern: str = ""
    """The parameter with a pattern of paths, if there is one."""

    def refused(self, paths: Paths, arguments: dict[str, Any]) -> Any:
        """Return the result for rejected arguments; None if they are accepted."""
        path = arguments.get(self.path)
        try:
            paths.check(arguments.get(self.pattern, ""))
            if path is not None:
                paths.real(self.operation, path)
        except RefusedError as refused:
            return self.result(error=str(refused))
        return None


CHECKS = {
    "read": Check(ReadResult, "read", "file_path"),
    "write": Check(WriteResult, "write", "file_path"),
    "edit": Check(EditResult, "edit", "file_path"),
    "delete": Check(DeleteResult, "delete", "file_path"),
    "ls": Check(LsResult, "list", "path"),
    "glob": Check(GlobResult, "glob", "path", "pattern"),
    "grep": Check(GrepResult, "grep", "path"),
}
"""The checked methods. The asynchronous version of a method begins with an `a`."""


def _checked(name: str, check: Check) -> Callable[..., Any]:
    forward = getattr(Wrapper, name)
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        arguments = signature.bind(self, *args, **options).arguments
        return check.refused(self._seen, arguments) or forward(self, *args, **options)

    return method


def _checked_async(name: str, check: Check) -> Callable[..., Any]:
    forward = getattr(Wrapper, name)
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    async def method(self: Any, *args: Any, **options: Any) -> Any:
        arguments = signature.bind(self, *args, **options).arguments
        return check.refused(self._seen, arguments) or await forward(self, *args, **options)

    return method


for _name, _check in CHECKS.items():
    setattr(PrecheckedSandbox, _name, _checked(_name, _check))
    setattr(PrecheckedSandbox, f"a{_name}", _checked_async(f"a{_name}", _check))
