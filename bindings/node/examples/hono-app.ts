/** A server that streams an agent's steps as they are made: `POST /chat/:threadId` with `{ "message": … }`. */

import type { BaseLanguageModel } from "@langchain/core/language_models/base";
import { MemorySaver } from "@langchain/langgraph";
import { Hono } from "hono";
import { streamSSE } from "hono/streaming";
import { type KubernetesProviderOptions, KubernetesSandboxManager } from "sandpod";

export async function makeApp(model: BaseLanguageModel, options: KubernetesProviderOptions) {
  const manager = new KubernetesSandboxManager(options, { ttlIdleSeconds: 1800 });
  const agent = await manager.createAgent(model, { checkpointer: new MemorySaver() });

  const app = new Hono();
  app.post("/chat/:threadId", async (context) => {
    const { message } = await context.req.json<{ message: string }>();
    const steps = await agent.stream(
      { messages: [{ role: "user", content: message }] },
      // A client that disconnects ends the run and its command.
      {
        configurable: { thread_id: context.req.param("threadId") },
        signal: context.req.raw.signal,
        streamMode: "updates",
      },
    );
    return streamSSE(context, async (stream) => {
      for await (const step of steps) await stream.writeSSE({ data: JSON.stringify(Object.keys(step)) });
    });
  });
  return { app, manager };
}
