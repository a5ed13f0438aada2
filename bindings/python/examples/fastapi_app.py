"""A web app with several worker processes: a conversation keeps its sandbox, whichever of them answers.

Start it with `uvicorn --workers 2 --factory fastapi_app:create_app`.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from pydantic import BaseModel

from sandpod import KubernetesProviderConfig, KubernetesSandboxManager

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Question(BaseModel):
    """What a user says."""

    text: str


class Answer(BaseModel):
    """What the agent says, and which process ran it."""

    text: str
    worker: int


def create_app(
    model: Any = "anthropic:claude-sonnet-4-5", config: KubernetesProviderConfig | None = None, scope: str | None = None
) -> FastAPI:
    """Make the app. Its sandboxes are those of `SANDPOD_*` variables and the configuration file."""
    config = config or KubernetesProviderConfig.load(mode=os.environ.get("SANDPOD_MODE", "agent-sandbox"))
    manager = KubernetesSandboxManager(config, ttl_idle_seconds=1800, scope=scope)
    # With a checkpointer that the workers share, such as Postgres', they also remember what was said.
    agent = manager.create_agent(model)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        yield
        # Deletes nothing: other workers go on with the sandboxes, and those that nobody uses end by themselves.
        await manager.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/conversations/{thread}")
    async def ask(thread: str, question: Question) -> Answer:  # pyright: ignore[reportUnusedFunction] - FastAPI's
        config: Any = {"configurable": {"thread_id": thread}}
        state = await agent.ainvoke({"messages": [("user", question.text)]}, config)
        return Answer(text=str(state["messages"][-1].content), worker=os.getpid())

    return app
