/** Raw mode, on a cluster. */

import { createDeepAgent } from "deepagents";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  KubernetesProvider,
  type KubernetesProviderOptions,
  KubernetesSandbox,
  KubernetesSandboxManager,
  SandboxNotFoundError,
} from "../dist/esm/index.js";
import { behaviours } from "./behaviours.js";
import { HAS_CLUSTER, Namespace } from "./cluster.js";
import { execute, ObedientModel, ScriptedModel, toolResults } from "./scripted.js";

describe.skipIf(!HAS_CLUSTER)("on a cluster", () => {
  const namespace = new Namespace("raw");
  let options: KubernetesProviderOptions;

  beforeAll(() => {
    namespace.create();
    options = namespace.raw();
  });

  afterAll(async () => namespace.delete());

  behaviours("raw", {
    create: (more) => KubernetesSandbox.create({ ...options, ...more }),
    uninitialized: () => new KubernetesSandbox(options),
  });

  test("a lost Pod ends no agent's run, and a sandbox is recreated with its id", async () => {
    const provider = new KubernetesProvider(options);
    const sandbox = await provider.getOrCreate();
    namespace.losePod(sandbox.id);
    const model = new ScriptedModel(execute("true"), "done");
    const state = await createDeepAgent({ model, backend: sandbox }).invoke({
      messages: [{ role: "user", content: "go" }],
    });
    expect(toolResults(state as never)[0]).toContain("gone");
    const again = await provider.getOrCreate(sandbox.id);
    expect(again.id).toBe(sandbox.id);
    expect((await again.execute("echo again")).output).toContain("again");
    await provider.delete(again.id);
    await expect(provider.reconnect(again.id)).rejects.toThrow(SandboxNotFoundError);
  });

  test("a thread has one sandbox for two managers", async () => {
    const scope = `test-${Date.now()}`;
    const managers = [1, 2].map(() => new KubernetesSandboxManager(options, { scope }));
    const config = { configurable: { thread_id: "one" } };
    const said = async (manager: KubernetesSandboxManager, content: string) => {
      const agent = await manager.createAgent(new ObedientModel());
      return (await agent.invoke({ messages: [{ role: "user", content }] }, config)).messages.at(-1)?.text;
    };
    const both = await Promise.all(managers.map((manager) => said(manager, "hostname")));
    expect(both[0]).toBe(both[1]);
    await managers[0]?.close();
    await managers[1]?.shutdown();
  });
});
