"""A chat model with scripted answers."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

if TYPE_CHECKING:
    from collections.abc import Sequence

_CALLS = count(1)


def calls(*tools: tuple[str, dict[str, Any]]) -> AIMessage:
    """Return a message that calls tools concurrently."""
    tool_calls = [{"name": name, "args": args, "id": f"call-{next(_CALLS)}"} for name, args in tools]
    return AIMessage(content="", tool_calls=tool_calls)


def execute(command: str) -> AIMessage:
    """Return a message that runs a command."""
    return calls(("execute", {"command": command}))


class ScriptedModel(BaseChatModel):
    """Returns the messages of its script in order, whatever the input."""

    script: list[AIMessage]
    _asked: list[list[Any]] = PrivateAttr(default_factory=list[list[Any]])

    @property
    def asked(self) -> list[list[Any]]:
        """The messages of each request."""
        return self._asked

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:  # noqa: ARG002 - the base's signature
        return self

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:  # noqa: ARG002
        message = self.script[len(self._asked)]
        self._asked.append(messages)
        return ChatResult(generations=[ChatGeneration(message=message.model_copy())])


def script(*lines: AIMessage | str) -> ScriptedModel:
    """Return a model with this script; a text is an answer that ends a turn."""
    return ScriptedModel(script=[AIMessage(line) if isinstance(line, str) else line for line in lines])


def thread(name: str) -> Any:
    """Return the configuration of a conversation thread."""
    return {"configurable": {"thread_id": name}}


def tool_results(state: dict[str, Any]) -> list[str]:
    """Return the tool results of a conversation, in order."""
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]


class ObedientModel(BaseChatModel):
    """Runs the command of the user's message and answers with its output, for any number of conversations."""

    @property
    def _llm_type(self) -> str:
        return "obedient"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:  # noqa: ARG002 - the base's signature
        return self

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:  # noqa: ARG002
        last = messages[-1]
        said = AIMessage(last.content) if isinstance(last, ToolMessage) else execute(str(last.text))
        return ChatResult(generations=[ChatGeneration(message=said)])
