"""Maps and checks the paths of a sandbox without a policy of its own."""

from __future__ import annotations

import json
import posixpath
from typing import Any

from sandpod import _native

CAPTURES = "/large_tool_results"
"""The directory where Deep Agents stores long output of commands."""


class RefusedError(Exception):
    """A rejected path; its message is returned to the caller."""


class Paths:
    """Maps paths to a root and checks them, as the policy of a sandbox of this package does."""

    def __init__(self, policy: dict[str, Any]) -> None:
        """Take the rules of a policy of the core."""
        self.root: str | None = policy.get("root_dir")
        self._refuse_parents = policy.get("traversal") == "refuse"
        self._accept_real: bool = policy.get("accept_real_paths", False)
        self._rules = _native.Policy(json.dumps({**policy, "root_dir": None}))

    @property
    def search_root(self) -> str | None:
        """The start of a search without a path; None: that of the sandbox."""
        return None if self.root is None else "/"

    def check(self, path: str) -> None:
        """Reject a path or pattern with `..` or a leading `~`, if the policy does."""
        if self.root is not None and self._refuse_parents and (path.startswith("~") or ".." in path.split("/")):
            msg = f"Path traversal not allowed: '{path}'"
            raise RefusedError(msg)

    def real(self, operation: str, path: str) -> str:
        """Return the path in the sandbox; reject one outside the root, or one that must not be written."""
        real = self._below_root(path)
        if refusal := self._rules.refusal(operation, real):
            raise RefusedError(refusal)
        return real

    def public(self, path: str) -> str:
        """Return the path that callers see."""
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
    """Paths of agent-sandbox's `sandboxd`, whose file API serves one directory.

    They are real paths below that directory. The output that Deep Agents stores in `/large_tool_results` is stored in
    it, too.
    """

    def __init__(self, policy: dict[str, Any], directory: str) -> None:
        """Take the rules of a policy, and the directory."""
        super().__init__(policy)
        self._directory = posixpath.normpath(directory)

    @property
    def search_root(self) -> str | None:
        """The start of a search without a path."""
        return self.root or self._directory

    def real(self, operation: str, path: str) -> str:
        """Return the path in the sandbox; reject one outside the directory, or one that must not be written."""
        meant = posixpath.normpath(self._below_root(path))
        if _is_below(meant, CAPTURES) and not _is_below(meant, self._directory):
            # Prefixes do not apply to captured output.
            return f"{self._directory.rstrip('/')}{meant}"
        if not _is_below(meant, self._directory):
            msg = f"Path '{meant}' is outside sandboxd root '{self._directory}'"
            raise RefusedError(msg)
        super().real(operation, path)
        return meant

    def public(self, path: str) -> str:
        """Return the path unchanged: callers see real paths."""
        return path


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
