"""The server examples, over HTTP, with a model that runs the user's command."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pytest

from pythons import programs_of
from sandpod import KubernetesSandboxManager
from serving import EXAMPLES, free_port, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sandpod import KubernetesProviderConfig

WEB = """
from fastapi_app import create_app
from sandpod import KubernetesProviderConfig
from scripted import ObedientModel

app = create_app(ObedientModel(), KubernetesProviderConfig(mode="local"), scope="web")
"""

GRAPH = """
from agent import make_agent
from sandpod import KubernetesProviderConfig
from scripted import ObedientModel

graph = make_agent(ObedientModel(), KubernetesProviderConfig(mode="local"), scope="langgraph-dev")
"""


def ask(url: str, body: dict[str, Any]) -> Any:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310 - our own
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


@pytest.fixture
def clean_up(local_config: Callable[..., KubernetesProviderConfig]) -> Iterator[list[str]]:
    """The scopes whose sandboxes are deleted at the end."""
    scopes: list[str] = []
    yield scopes
    for scope in scopes:
        KubernetesSandboxManager(local_config(), scope=scope).shutdown(all=True)


@pytest.mark.timeout(600)
def test_two_workers_of_fastapi_app_serve_one_conversation_from_one_sandbox(
    tmp_path: Path, clean_up: list[str]
) -> None:
    clean_up.append("web")
    (tmp_path / "served.py").write_text(WEB)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--workers=2", f"--port={port}", "served:app"]
    with serving(command, port, "/docs", tmp_path) as url:
        workers: set[int] = set()
        told = 0
        while len(workers) < 2 and told < 200:
            told += 1
            answer = ask(f"{url}/conversations/1", {"text": "echo told >> told; wc -l < told"})
            workers.add(answer["worker"])
            assert answer["text"].split()[0] == str(told), "another worker has another sandbox"
        assert len(workers) == 2
        assert ask(f"{url}/conversations/2", {"text": "ls"})["text"].split()[0] != "told"


@pytest.mark.timeout(600)
def test_a_restarted_langgraph_dev_server_finds_a_threads_sandbox(tmp_path: Path, clean_up: list[str]) -> None:
    clean_up.append("langgraph-dev")
    (tmp_path / "served.py").write_text(GRAPH)
    settings = json.loads((EXAMPLES / "langgraph_dev" / "langgraph.json").read_text())
    (tmp_path / "langgraph.json").write_text(json.dumps(settings | {"graphs": {"agent": "./served.py:graph"}}))

    def turn(command: str) -> str:
        """Run a turn of the thread with a new server."""
        port = free_port()
        program = [str(programs_of("langgraph-dev") / "langgraph"), "dev", "--no-browser", "--no-reload"]
        with serving([*program, f"--port={port}"], port, "/ok", tmp_path) as url:
            thread = "8d6e7f1a-2a86-4f67-8f5e-1d0f6f1f4a11"
            ask(f"{url}/threads", {"thread_id": thread, "if_exists": "do_nothing"})
            said = {"messages": [{"role": "user", "content": command}]}
            state = ask(f"{url}/threads/{thread}/runs/wait", {"assistant_id": "agent", "input": said})
        return str(state["messages"][-1]["content"])

    turn("cd /tmp && export COLOUR=blue && echo kept > note")
    assert turn("cat note; echo $COLOUR").startswith("kept\nblue\n")
