"""The exceptions of the package.

Provider calls and `Sandbox` raise them. The operations for an agent's tools return the error in their result instead.
"""

from __future__ import annotations


class SandboxError(Exception):
    """A failed operation; the message says what failed, why, and what to do next."""

    def __init__(self, message: str, code: str = "internal") -> None:
        """Create an error with a message and a stable code for programs."""
        super().__init__(message)
        self.code = code

    @property
    def original_exc(self) -> BaseException | None:
        """The cause of this exception, if it has one."""
        return self.__cause__


class SandboxNotFoundError(SandboxError):
    """The sandbox does not exist, or no longer."""

    def __init__(self, message: str, code: str = "not_found") -> None:
        """Create the error."""
        super().__init__(message, code)
