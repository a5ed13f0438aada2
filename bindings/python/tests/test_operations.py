"""The conversion of answers and failures, without a sandbox."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, cast

import pytest
from deepagents.backends.protocol import BackendProtocol, ExecuteResponse, FileUploadResponse
from deepagents.backends.sandbox import TRUNCATION_MSG, BaseSandbox

from sandpod import KubernetesSandbox, SandboxError

if TYPE_CHECKING:
    from collections.abc import Generator

    from sandpod import _native


class FakeCall:
    def __init__(self, outcome: object) -> None:
        self._outcome = outcome

    def wait(self) -> object:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def __await__(self) -> Generator[Any, None, object]:
        yield from asyncio.sleep(0).__await__()
        return self.wait()


class FakeNative:
    """A sandbox that answers every call with one outcome."""

    id = "sp-fake"

    def __init__(self, outcome: object) -> None:
        self._outcome = outcome

    def __getattr__(self, name: str) -> Any:
        return self._call

    def _call(self, *_arguments: object, **_options: object) -> FakeCall:
        return FakeCall(self._outcome)


def fake(outcome: object) -> KubernetesSandbox:
    return KubernetesSandbox(cast("_native.Sandbox", FakeNative(outcome)))


def failing(code: str, message: str = "what happened") -> KubernetesSandbox:
    return fake(SandboxError(message, code))


class LostProcess:
    """A started command whose sandbox does not answer until its timeout."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def attach(self, _offset: int) -> LostProcess:
        return self

    def next(self) -> FakeCall:
        return FakeCall(SandboxError("the outcome is unknown", "deadline_exceeded"))

    def signal(self, signal: int) -> FakeCall:
        self.signals.append(signal)
        return FakeCall(None)


def page(**fields: object) -> KubernetesSandbox:
    empty: dict[str, object] = {"content": "", "start_line": 0, "end_line": 0, "total_lines": None}
    return fake(empty | {"more": False, "truncated": False, "empty_file": False} | fields)


def test_every_sync_and_async_operation_is_ours_with_the_protocols_signature() -> None:
    blocking = ["execute", "read", "write", "edit", "ls", "glob", "grep", "delete", "upload_files", "download_files"]
    for name in blocking + [f"a{name}" for name in blocking]:
        ours = getattr(KubernetesSandbox, name)
        theirs = getattr(BaseSandbox, name)
        assert ours is not theirs
        assert getattr(BackendProtocol, name, None) is not ours
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("unreachable", 125),
        ("denied", 125),
        ("limit", 125),
        ("lost", None),
        ("outcome_unknown", None),
        ("deadline_exceeded", None),
        ("gone", None),
    ],
)
async def test_a_failed_command_returns_the_reason_and_whether_it_may_have_run(
    code: str, exit_code: int | None
) -> None:
    expected = ExecuteResponse(output="what happened", exit_code=exit_code)
    assert failing(code).execute("true") == expected
    assert await failing(code).aexecute("true") == expected


async def test_a_stream_that_outlived_its_timeout_ends_without_another_call() -> None:
    process = LostProcess()
    with pytest.raises(SandboxError, match="the outcome is unknown"):
        list(fake(process).stream("true", timeout=5))
    with pytest.raises(SandboxError, match="the outcome is unknown"):
        _ = [chunk async for chunk in fake(process).stream("true", timeout=5)]
    assert process.signals == []


def test_notices_precede_the_output() -> None:
    executed = {"output": "hello\n", "exit_code": 0, "truncated": True, "notices": ["the sandbox restarted"]}
    expected = ExecuteResponse(output="[the sandbox restarted]\nhello\n", exit_code=0, truncated=True)
    assert fake(executed).execute("echo hello") == expected


def test_a_negative_timeout_is_rejected() -> None:
    with pytest.raises(ValueError, match="timeout is -1"):
        failing("internal").execute("true", timeout=-1)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("not_found", "file_not_found"),
        ("permission_denied", "permission_denied"),
        ("is_directory", "not_a_file"),
        ("too_large", "Binary file exceeds maximum preview size of 512000 bytes"),
        ("unreachable", "what happened"),
    ],
)
def test_a_failed_read_has_the_error_texts_of_deep_agents(code: str, reason: str) -> None:
    assert failing(code).read("/f").error == f"File '/f': {reason}"


def test_a_page_contains_the_offset_of_the_next_one() -> None:
    result = page(content="b\nc", start_line=2, end_line=3, total_lines=5, more=True).read("/f", 1, 2)
    assert result.file_data == {"content": "b\nc", "encoding": "utf-8"}
    assert (result.start_line, result.end_line, result.total_lines, result.next_offset) == (2, 3, 5, 3)


def test_a_truncated_page_is_marked() -> None:
    result = page(content="b", start_line=1, end_line=1, more=True, truncated=True).read("/f")
    assert result.file_data
    assert result.file_data["content"] == "b" + TRUNCATION_MSG


def test_no_lines_an_empty_file_and_an_invalid_answer_are_results() -> None:
    assert page().read("/f", limit=0).no_lines_requested
    empty = page(empty_file=True).read("/f").file_data
    assert empty
    assert empty["content"] == "System reminder: File exists but has empty contents"
    assert "unexpected server response" in str(page(start_line=9, end_line=3).read("/f").error)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("not_found", "Error: File '/f' not found"),
        ("no_match", "Error: String not found in file: 'old'"),
        (
            "many_matches",
            "Error: String 'old' appears multiple times. Use replace_all=True to replace all occurrences.",
        ),
        ("not_text", "Error: File '/f' is not a text file"),
        ("lost", "Error editing file '/f': what happened"),
    ],
)
def test_a_failed_edit_has_the_error_texts_of_deep_agents(code: str, error: str) -> None:
    assert failing(code).edit("/f", "old", "new").error == error


def test_a_policy_denial_is_a_code_for_programs_and_a_message_for_agents() -> None:
    sandbox = failing("policy", "the policy lets nothing write to /etc")
    assert sandbox.upload_files([("/etc/x", b"")]) == [FileUploadResponse(path="/etc/x", error="policy_denied")]
    assert sandbox.download_files(["/etc/x"])[0].error == "policy_denied"
    assert sandbox.ls("/etc").error == "Path '/etc': permission_denied"
    for error in (
        sandbox.read("/etc/x").error,
        sandbox.write("/etc/x", "").error,
        sandbox.edit("/etc/x", "a", "b").error,
        sandbox.delete("/etc/x").error,
    ):
        assert error is not None
        assert "the policy lets nothing write to /etc" in error


def test_each_other_operation_returns_its_failure() -> None:
    sandbox = failing("permission_denied")
    assert sandbox.write("/f", "").error == "Failed to write file '/f': permission_denied"
    assert sandbox.delete("/f").error == "Error deleting file '/f': permission_denied"
    assert sandbox.ls("/d").error == "Path '/d': permission_denied"
    assert sandbox.glob("*", "/d").error == "Path '/d': permission_denied"
    assert sandbox.grep("x").error == "Path '.': permission_denied"
    assert sandbox.upload_files([("/f", b"")]) == [FileUploadResponse(path="/f", error="permission_denied")]
    assert sandbox.download_files(["/f"])[0].error == "permission_denied"
    assert failing("not_found").delete("/f").error == "Error: '/f' not found"
    assert failing("invalid_argument").glob("..").error == "Path '/': invalid_pattern"
    assert "cannot be empty" in str(failing("invalid_argument").edit("/f", "", "x").error)
