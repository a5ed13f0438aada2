/**
 * A server that gives each conversation a sandbox: `POST /chat/:threadId` with `{ "message": … }`.
 *
 * `MemorySaver` keeps conversations in this process. With a persistent checkpointer, and because a thread's sandbox is
 * found by its id, any number of processes serve the same conversations.
 */

import type { BaseLanguageModel } from "@langchain/core/language_models/base";
import { MemorySaver } from "@langchain/langgraph";
import express from "express";
import { type KubernetesProviderOptions, KubernetesSandboxManager } from "sandpod";

export async function makeApp(model: BaseLanguageModel, options: KubernetesProviderOptions) {
  const manager = new KubernetesSandboxManager(options, { ttlIdleSeconds: 1800 });
  const agent = await manager.createAgent(model, { checkpointer: new MemorySaver() });

  const app = express();
  app.use(express.json());
  app.post("/chat/:threadId", async (req, res) => {
    const result = await agent.invoke(
      { messages: [{ role: "user", content: req.body.message }] },
      { configurable: { thread_id: req.params.threadId } },
    );
    res.json({ reply: result.messages.at(-1)?.text });
  });
  return { app, manager };
}
