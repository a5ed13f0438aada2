"""What can go wrong with a sandbox, as exceptions.

Only provider calls raise them. What an agent's tools call returns its error in the result instead.
"""

from __future__ import annotations


class SandboxError(Exception):
    """Something went wrong with a sandbox; the message says what, why, and what to do next."""

    def __init__(self, message: str, code: str = "internal") -> None:
        """Make an error of one kind: the code is for programs, the message for people."""
        super().__init__(message)
        self.code = code

    @property
    def original_exc(self) -> BaseException | None:
        """The exception that led to this one, if there is one."""
        return self.__cause__


class SandboxNotFoundError(SandboxError):
    """There is no such sandbox, or no longer."""

    def __init__(self, message: str, code: str = "not_found") -> None:
        """Make the error; its code says the same as its class."""
        super().__init__(message, code)
