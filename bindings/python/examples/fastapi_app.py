"""A web app with several worker processes: a conversation keeps its sandbox across workers.

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
    """A message of the user."""

    text: str


class Answer(BaseModel):
    """The answer of the agent, and the process that ran it."""

    text: str
    worker: int


def create_app(
    model: Any = "anthropic:claude-sonnet-4-5", config: KubernetesProviderConfig | None = None, scope: str | None = None
) -> FastAPI:
    """Create the app, configured by `SANDPOD_*` variables and the configuration file."""
    config = config or KubernetesProviderConfig.load(mode=os.environ.get("SANDPOD_MODE", "agent-sandbox"))
    manager = KubernetesSandboxManager(config, ttl_idle_seconds=1800, scope=scope)
    # With a checkpointer that the workers share, such as Postgres, they also share the messages.
    agent = manager.create_agent(model)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        yield
        # Keeps the sandboxes for other workers; unused ones expire.
        await manager.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/conversations/{thread}")
    async def ask(thread: str, question: Question) -> Answer:  # pyright: ignore[reportUnusedFunction] - FastAPI's
        config: Any = {"configurable": {"thread_id": thread}}
        state = await agent.ainvoke({"messages": [("user", question.text)]}, config)
        return Answer(text=str(state["messages"][-1].content), worker=os.getpid())

    return app
