"""How the paths of a sandbox are seen that has no policy of its own."""

from __future__ import annotations

import json
import posixpath
from typing import Any

from sandpod import _native

CAPTURES = "/large_tool_results"
"""Where Deep Agents keeps the outputs of commands that are too long for a conversation."""


class RefusedError(Exception):
    """A path that can't be used; the message is what the caller gets."""


class Paths:
    """How paths are seen, and which may be written: what this package's own sandboxes do by their policy."""

    def __init__(self, policy: dict[str, Any]) -> None:
        """Take the same rules as a policy of the core."""
        self.root: str | None = policy.get("root_dir")
        self._refuse_parents = policy.get("traversal") == "refuse"
        self._accept_real: bool = policy.get("accept_real_paths", False)
        self._rules = _native.Policy(json.dumps({**policy, "root_dir": None}))

    @property
    def search_root(self) -> str | None:
        """Where a search without a path starts; None: where the sandbox does."""
        return None if self.root is None else "/"

    def check(self, path: str) -> None:
        """Refuse a path or a pattern with a `..`, or a `~` at its beginning, where that is not allowed."""
        if self.root is not None and self._refuse_parents and (path.startswith("~") or ".." in path.split("/")):
            msg = f"Path traversal not allowed: '{path}'"
            raise RefusedError(msg)

    def real(self, operation: str, path: str) -> str:
        """The path in the sandbox; one that leads out of the root, or may not be written, is refused."""
        real = self._below_root(path)
        if refusal := self._rules.refusal(operation, real):
            raise RefusedError(refusal)
        return real

    def public(self, path: str) -> str:
        """The path as callers see it."""
        if self.root is None or not _is_below(path, self.root):
            return path
        return "/" + posixpath.relpath(path, self.root).removeprefix(".")

    def _below_root(self, path: str) -> str:
        if self.root is None:
            return path
        self.check(path)
        meant = posixpath.normpath(path)
        if self._accept_real and _is_below(meant, self.root):
            return meant
        below = posixpath.normpath(f"{self.root}/{path}")
        if not _is_below(below, self.root):
            msg = f"Path '{path}' escapes root_dir '{self.root}'"
            raise RefusedError(msg)
        return below


class SandboxdPaths(Paths):
    """Paths of agent-sandbox's `sandboxd`, whose file API sees one directory.

    They are real paths below that directory. Captured outputs, which Deep Agents keeps in `/large_tool_results`, are
    kept in it, too.
    """

    def __init__(self, policy: dict[str, Any], directory: str) -> None:
        """Take the rules of a policy, and the directory."""
        super().__init__(policy)
        self._directory = posixpath.normpath(directory)

    @property
    def search_root(self) -> str | None:
        """Where a search without a path starts."""
        return self.root or self._directory

    def real(self, operation: str, path: str) -> str:
        """The path in the sandbox; one outside of the directory, or one that may not be written, is refused."""
        meant = posixpath.normpath(self._below_root(path))
        if _is_below(meant, CAPTURES) and not _is_below(meant, self._directory):
            # Prefixes don't bind what is captured.
            return f"{self._directory.rstrip('/')}{meant}"
        if not _is_below(meant, self._directory):
            msg = f"Path '{meant}' is outside sandboxd root '{self._directory}'"
            raise RefusedError(msg)
        super().real(operation, path)
        return meant

    def public(self, path: str) -> str:
        """The path as callers see it: the real one."""
        return path


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
