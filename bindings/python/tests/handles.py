"""A handle like those of `k8s_agent_sandbox`: without a shell, and with one directory for files and commands."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Result:
    stdout: str
    stderr: str
    exit_code: int


@dataclass
class Commands:
    place: Path
    trouble: Exception | None = None
    asked: list[float] = field(default_factory=list[float])

    def run(self, command: str, timeout: float = 60) -> Result:
        self.asked.append(timeout)
        if self.trouble:
            raise self.trouble
        done = subprocess.run(shlex.split(command), cwd=self.place, capture_output=True, timeout=timeout, check=False)
        return Result(done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), done.returncode)


@dataclass
class Files:
    place: Path

    def write(self, path: str, content: bytes) -> None:
        (self.place / path).write_bytes(content)

    def read(self, path: str) -> bytes:
        return (self.place / path).read_bytes()


class Handle:
    """A sandbox whose commands run on this machine, in a directory of the test."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.commands = Commands(place)
        self.files = Files(place)
        self.claim_name: str | None = "claim-1"
        self.sandbox_id = "sandbox-1"
        self.namespace = "agents"
        self.closed = 0
        self.entered: list[str] = []
        self.connector: Any = None

    def close_connection(self) -> None:
        self.closed += 1

    def __enter__(self) -> Self:
        self.entered.append("in")
        return self

    def __exit__(self, *_: object) -> None:
        self.entered.append("out")


class Client:
    """Finds and creates handles, as a `SandboxClient` does."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.handles: dict[str, Handle] = {}

    def get_sandbox(self, claim_name: str, namespace: str = "default") -> Handle:
        if claim_name in self.handles:
            return self.handles[claim_name]
        raise SandboxNotFoundError(namespace)

    def create_sandbox(self, warmpool: str, **options: Any) -> Handle:
        self.made.append((warmpool, options))
        self.handles[options["claim_name"]] = handle = Handle(self.place)
        handle.claim_name = options["claim_name"]
        return handle


class SandboxNotFoundError(Exception):
    """An error with the name of the SDK's."""
