"""The native module. Private: use the classes of `sandpod`."""

import builtins
from collections.abc import Generator
from os import PathLike
from queue import SimpleQueue
from typing import Generic, Literal, Self, TypedDict, TypeVar, final, type_check_only

from sandpod.errors import SandboxError

__all__ = [
    "Call",
    "Output",
    "Policy",
    "Process",
    "Progress",
    "Provider",
    "Receipt",
    "Sandbox",
    "Threads",
    "capture_limit",
    "check_mode",
    "default_scope",
    "exit_code_without_result",
    "forward_logs",
    "load_options",
    "output_preview",
    "tool_error",
    "truncated_output",
    "verify_audit",
]

_T_co = TypeVar("_T_co", covariant=True)

@final
class Call(Generic[_T_co]):
    """One operation, which starts when it is waited for or awaited. Only once."""

    def wait(self) -> _T_co: ...
    def __await__(self) -> Generator[object, None, _T_co]: ...

@type_check_only
class Executed(TypedDict):
    output: str
    exit_code: int | None
    truncated: bool
    notices: list[str]

@type_check_only
class Text(TypedDict):
    content: str
    start_line: int
    end_line: int
    total_lines: int | None
    more: bool
    truncated: bool
    empty_file: bool

@type_check_only
class Entry(TypedDict):
    path: str
    is_dir: bool
    size: int
    modified_ns: int

@type_check_only
class Found(TypedDict):
    matches: list[Entry]
    incomplete: Literal["budget", "unreadable"] | None

@type_check_only
class Match(TypedDict):
    path: str
    line: int
    text: str

@type_check_only
class Grepped(TypedDict):
    matches: list[Match]
    truncated: bool

@type_check_only
class Written(TypedDict):
    offset: int
    data: bytes
    stderr: bool

@type_check_only
class Missing(TypedDict):
    missing_from: int
    missing_until: int

@type_check_only
class Exit(TypedDict):
    exit_code: int | None
    timed_out: bool
    note: str | None

@final
class Output:
    """The events of a command."""

    def next(self) -> Call[Written | Missing | Exit | None]: ...

@final
class Process:
    """A started command."""

    @property
    def name(self) -> str: ...
    def attach(self, from_offset: int) -> Output: ...
    def write(self, data: bytes) -> Call[None]: ...
    def close_stdin(self) -> Call[None]: ...
    def resize(self, rows: int, columns: int) -> Call[None]: ...
    def signal(self, signal: int) -> Call[None]: ...
    def wait(self) -> Call[Exit]: ...

@type_check_only
class ProcessInfo(TypedDict):
    process: Process
    pid: int | None
    command: str
    started: float
    exit: Exit | None
    output_end: int
    terminal: bool

@type_check_only
class TreeStep(TypedDict):
    entries: int
    bytes: int

@final
class Progress:
    """The progress of a transfer."""

    def next(self) -> Call[TreeStep | None]: ...

@type_check_only
class TreeSummary(TypedDict):
    files: int
    directories: int
    links: int
    bytes: int
    skipped: int
    links_left_out: int

@final
class Sandbox:
    """A connected sandbox."""

    @property
    def id(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def is_new(self) -> bool: ...
    def narrowed(self, policy: str) -> Sandbox: ...
    def without_reports(self) -> Sandbox: ...
    def has_report(self) -> bool: ...
    def report_replaced(self) -> None: ...
    def take_notices(self) -> list[str]: ...
    def execute(
        self,
        command: str,
        timeout: int | None,
        *,
        shell_session: str | None = None,
        max_output_bytes: int | None = None,
        working_dir: str | None = None,
    ) -> Call[Executed]: ...
    def start(
        self,
        command: str,
        timeout: int | None,
        *,
        env: dict[str, str],
        working_dir: str | None,
        stdin: bool,
        combined: bool,
        paced: bool,
        terminal: tuple[int, int] | None,
    ) -> Call[Process]: ...
    def processes(self) -> Call[list[ProcessInfo]]: ...
    def upload_tree(self, local_dir: str | PathLike[str], path: str) -> tuple[Call[TreeSummary], Progress]: ...
    def download_tree(self, path: str, local_dir: str | PathLike[str]) -> tuple[Call[TreeSummary], Progress]: ...
    def read(self, path: str, offset: int, limit: int, max_bytes: int, *, binary: bool) -> Call[Text | bytes]: ...
    def read_bytes(self, path: str) -> Call[bytes]: ...
    def write(self, path: str, content: str) -> Call[None]: ...
    def write_bytes(self, path: str, content: bytes) -> Call[None]: ...
    def edit(self, path: str, old: str, new: str, *, replace_all: bool) -> Call[int]: ...
    def list(self, path: str) -> Call[list[Entry]]: ...
    def glob(self, pattern: str, root: str) -> Call[Found]: ...
    def grep(self, pattern: str, root: str | None, glob: str | None, max_count: int | None) -> Call[Grepped]: ...
    def delete(self, path: str) -> Call[None]: ...
    def upload(self, files: builtins.list[tuple[str, bytes]]) -> Call[builtins.list[SandboxError | None]]: ...
    def download(self, paths: builtins.list[str]) -> Call[builtins.list[bytes | SandboxError]]: ...

@type_check_only
class Info(TypedDict):
    id: str
    namespace: str
    thread_id: str | None
    labels: dict[str, str]
    annotations: dict[str, str]
    created_at: float | None
    last_activity: float | None
    status: Literal["running", "warm", "suspended", "pending", "terminated"]
    guest_delivery: Literal["image", "config-map", "template", "push", "sandboxd", "legacy"] | None
    guest_delivery_reason: str | None
    connection: str | None
    connection_reason: str | None
    durable_dirs: list[str]

@type_check_only
class Page(TypedDict):
    sandboxes: list[Info]
    cursor: str | None

@type_check_only
class Cleaned(TypedDict):
    deleted: list[str]
    kept: int

@type_check_only
class Stats(TypedDict):
    total: int
    running: int
    warm: int
    idle: int
    thread_ids: list[str]

@type_check_only
class Pool(TypedDict):
    available: int
    active: int
    total: int
    target: int

@final
class Provider:
    """Creates, finds and deletes sandboxes. The configuration is JSON."""

    def __new__(
        cls,
        mode: str,
        config: str,
        package_dir: str,
        audit: SimpleQueue[tuple[list[str], Receipt] | None] | None,
        *,
        only_adopts: bool = False,
    ) -> Self: ...
    def threads(
        self,
        scope: str,
        labels: dict[str, str],
        ttl_seconds: int | None,
        ttl_idle_seconds: int | None,
        *,
        recreate: bool,
    ) -> Threads: ...
    def adopt(self, claim_name: str) -> Call[Sandbox]: ...
    def suspend(self, sandbox_id: str, *, force: bool = False) -> Call[None]: ...
    def resume(self, sandbox_id: str, policy: str | None = None) -> Call[Sandbox]: ...
    def get_or_create(
        self,
        sandbox_id: str | None,
        labels: dict[str, str],
        ttl_seconds: int | None,
        ttl_idle_seconds: int | None,
        policy: str | None = None,
        *,
        create: bool = False,
        recreate: bool = True,
    ) -> Call[Sandbox]: ...
    def info(self, sandbox_id: str) -> Call[Info]: ...
    def reconnect(self, sandbox_id: str) -> Call[Sandbox]: ...
    def delete(self, sandbox_id: str) -> Call[None]: ...
    def list(self, cursor: str | None, labels: dict[str, str], status: str | None) -> Call[Page]: ...
    def cleanup(self, max_idle_seconds: int | None) -> Call[Cleaned]: ...
    def stats(self, idle_threshold_seconds: int) -> Call[Stats]: ...
    def pool_status(self) -> Call[Pool]: ...
    def flush_audit(self) -> Call[None]: ...
    def close(self) -> Call[None]: ...
    def extend(self, sandbox_id: str, ttl_seconds: int) -> Call[None]: ...

@final
class Threads:
    """The sandboxes of a scope's threads."""

    def id_of(self, thread: str) -> str: ...
    def known(self, thread: str) -> Sandbox | None: ...
    def state(self, thread: str) -> tuple[str | None, str | None] | None: ...
    def expect(self, thread: str, sandbox_id: str | None, place: str | None) -> None: ...
    def get_or_create(self, thread: str) -> Call[Sandbox]: ...
    def acquire(self, thread: str, sandbox_id: str | None, place: str | None) -> Call[Sandbox]: ...
    def note_used(self, sandbox_id: str) -> None: ...
    def check(self, thread: str) -> Call[None]: ...
    def lose(self, thread: str) -> None: ...
    def forget(self, deleted: builtins.list[str]) -> None: ...
    def take(self, thread: str) -> str | None: ...
    def close(self, why: str) -> builtins.list[str]: ...
    def delete_all(self, sandbox_ids: builtins.list[str], within: float) -> Call[None]: ...
    def shut_down(self, why: str, within: float, *, whole_scope: bool) -> Call[None]: ...

@final
class Policy:
    """A policy that checks paths by name only. It is JSON."""

    def __new__(cls, policy: str) -> Self: ...
    def refusal(self, operation: str, path: str) -> str | None: ...
    def denies_command(self, line: str) -> bool: ...

@final
class Receipt:
    """Acknowledges audit events, or reports why they were not recorded."""

    def settle(self, error: str | None) -> None: ...

def forward_logs() -> None:
    """Forward logs of the core to Python's loggers."""

def check_mode(mode: str) -> None:
    """Raise `ValueError` for an unknown mode."""

def default_scope(mode: str, config: str, labels: dict[str, str]) -> str:
    """Return the default scope of a thread manager. The configuration is JSON."""

def verify_audit(path: str | PathLike[str]) -> int:
    """Return the number of lines of an unmodified audit file."""

def load_options(path: str | PathLike[str] | None, arguments: str) -> str:
    """Resolve options from arguments, variables and the configuration file; return them as JSON."""

def tool_error(
    tool: Literal["read", "write", "edit", "delete", "list", "glob", "transfer"],
    code: str,
    message: str,
    path: str = "",
    *,
    old: str = "",
    max_binary_bytes: int = 0,
) -> str:
    """Return the text of a tool for an error about a path."""

def exit_code_without_result(code: str) -> int | None:
    """Return the exit code of a command without a result, or None if the command may have run."""

def capture_limit(max_bytes: int | None) -> int:
    """Return the number of bytes of output to capture if the caller requests `max_bytes`."""

def truncated_output(output: str) -> str | None:
    """Return the shortened output for a result without a file, or None if the output fits."""

def output_preview(output: str) -> tuple[str, bool]:
    """Return the first and last lines of an output, and whether a marker has the number of omitted lines."""
