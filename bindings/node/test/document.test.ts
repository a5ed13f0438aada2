/**
 * Every code block of the document of `@bitkaio/langchain-kubernetes`, on a cluster, in the order of the document. The
 * differences from the document are the import, the model, which is scripted, and `raw` and `claims`: where the cluster is
 * and which small image it has.
 *
 * Other tests have the blocks that are no TypeScript: `langgraph dev` and its client are in examples/langgraph-dev, the
 * template is that of `Namespace.agentSandbox` and of crates/sandpod/tests/cluster/agent_sandbox, the roles are those of
 * deploy/rbac, which `Namespace` applies, and variables.test.ts has the integration tests.
 */

import { spawn } from "node:child_process";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { tool } from "@langchain/core/tools";
import { MemorySaver } from "@langchain/langgraph";
import { createDeepAgent } from "deepagents";
import express from "express";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  KubernetesProvider,
  type KubernetesProviderConfig,
  KubernetesSandboxManager,
  MissingDependencyError,
  SandboxNotFoundError,
  SandboxRouterError,
  SandboxStartupTimeoutError,
  TemplateNotFoundError,
} from "../dist/esm/compat/bitkaio.js";
import { HAS_CLUSTER, Namespace } from "./cluster.js";
import { execute, ObedientModel, ScriptedModel, toolCalls, toolResults } from "./scripted.js";

/** The interfaces of the document. */
interface DocumentedInfo {
  id: string;
  namespace: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  createdAt?: string;
  phase?: string;
  status?: string;
}

interface DocumentedPage {
  sandboxes: DocumentedInfo[];
  cursor?: string;
}

const ROUTER = "http://sandbox-router-svc.default.svc.cluster.local:8080";

describe.skipIf(!HAS_CLUSTER)("the document", () => {
  const namespace = new Namespace("document");
  /** Where raw mode's blocks run, and agent-sandbox mode's. */
  let raw: KubernetesProviderConfig;
  let claims: KubernetesProviderConfig;

  beforeAll(async () => {
    namespace.create();
    raw = { ...namespace.raw(), image: "sandpod.test/python:1" };
    claims = { ...(await namespace.agentSandbox()), routerUrl: namespace.routerUrl() };
  });

  afterAll(async () => namespace.delete());

  test("quick start: agent-sandbox mode", async () => {
    const provider = new KubernetesProvider({
      mode: "agent-sandbox",
      routerUrl: ROUTER,
      templateName: "python-sandbox-template",
      ...claims,
    });
    const sandbox = await provider.getOrCreate();
    const result = await sandbox.execute("python3 -c 'print(2 + 2)'");
    expect(result.output).toBe("4\n");
    expect(result.exitCode).toBe(0);
    await provider.delete(sandbox.id);
  });

  test("quick start: raw mode", async () => {
    const provider = new KubernetesProvider({ mode: "raw", ...raw });
    const sandbox = await provider.getOrCreate();
    const result = await sandbox.execute("python3 -c 'print(42)'");
    expect(result.output).toBe("42\n");
    await provider.delete(sandbox.id);
  });

  test("sandbox API", async () => {
    const provider = new KubernetesProvider({ mode: "raw", ...raw });
    const sandbox = await provider.getOrCreate();
    const result = await sandbox.execute("ls -la /workspace");
    expect([result.exitCode, result.truncated]).toEqual([0, false]);
    const results = await sandbox.uploadFiles([
      ["/workspace/script.py", Buffer.from("print('hello')")],
      ["/workspace/data.json", Buffer.from('{"key": "value"}')],
    ]);
    expect(results[0]?.error).toBeNull();
    await sandbox.execute("cd /workspace && python3 script.py > output.txt");
    const downloads = await sandbox.downloadFiles(["/workspace/output.txt"]);
    expect(new TextDecoder().decode(downloads[0]?.content ?? undefined)).toBe("hello\n");
    expect(downloads[0]?.error).toBeNull();
    expect((await sandbox.ls("/workspace")).files).toHaveLength(3);
    await provider.delete(sandbox.id);
  });

  test("one-shot usage", async () => {
    const provider = new KubernetesProvider({ routerUrl: ROUTER, templateName: "python-sandbox-template", ...claims });
    const sandbox = await provider.getOrCreate();
    const llm = new ScriptedModel(execute("python3 -c 'print([1, 1, 2, 3, 5])'"), "[1, 1, 2, 3, 5]");
    const agent = createDeepAgent({ model: llm, backend: sandbox });
    const result = await agent.invoke({
      messages: [{ role: "user", content: "Write and run a Python script that prints the Fibonacci sequence" }],
    });
    expect(result.messages.at(-1)?.content).toBe("[1, 1, 2, 3, 5]");
    await provider.delete(sandbox.id);
  });

  test("multi-turn behind a server", async () => {
    const manager = new KubernetesSandboxManager(
      { routerUrl: ROUTER, templateName: "python-sandbox-template", ...claims },
      { ttlIdleSeconds: 1800, defaultLabels: { app: "my-agent" } },
    );
    const agent = await manager.createAgent(new ObedientModel(), {
      checkpointer: new MemorySaver(),
      systemPrompt: "You are a data analyst. Always save outputs to /workspace/output/.",
    });
    const app = express();
    app.use(express.json());
    app.post("/chat/:threadId", async (req, res) => {
      const result = await agent.invoke(
        { messages: [{ role: "user", content: req.body.message }] },
        { configurable: { thread_id: req.params.threadId } },
      );
      res.json({ reply: result.messages.at(-1)?.content });
    });
    const server = app.listen(0);
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    const chat = async (thread: string, message: string) => {
      const body = JSON.stringify({ message });
      const answer = await fetch(`http://localhost:${port}/chat/${thread}`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body,
      });
      return ((await answer.json()) as { reply: string }).reply;
    };
    await chat("1", "echo text > kept");
    expect(await chat("1", "cat kept")).toContain("text");
    expect(await chat("2", "cat kept")).toContain("failed");
    server.close();
    await manager.shutdown();
  });

  test("custom systemPrompt and tools", async () => {
    const manager = new KubernetesSandboxManager({ mode: "raw", ...raw });
    const myCustomTool = tool(() => "from the tool", { name: "custom", description: "A tool of the user" });
    const llm = new ScriptedModel(toolCalls(["custom", {}]), execute("pwd"), "done");
    const agent = await manager.createAgent(llm, {
      checkpointer: new MemorySaver(),
      systemPrompt: "You are a data analyst. Always save outputs to /workspace/output/.",
      tools: [myCustomTool],
    });
    const messages = [{ role: "user", content: "work" }];
    const state = await agent.invoke({ messages }, { configurable: { thread_id: "custom" } });
    expect(toolResults(state as never)).toEqual(["from the tool", expect.stringContaining("/workspace")]);
    expect(JSON.stringify(llm.asked[0])).toContain("You are a data analyst.");
    await manager.shutdown();
  });

  test("sandbox lifecycle management", async () => {
    const provider = new KubernetesProvider({ mode: "raw", ...raw });
    const made = await provider.getOrCreate();
    const sandbox = await provider.getOrCreate({
      sandboxId: made.id,
      labels: { customer: "acme" },
      ttlSeconds: 3600,
      ttlIdleSeconds: 600,
    });
    expect(sandbox.id).toBe(made.id);
    const other = await provider.getOrCreate({ labels: { customer: "acme" }, ttlSeconds: 3600 });
    const page: DocumentedPage = await provider.list();
    const { sandboxes, cursor } = page;
    expect(sandboxes.map(({ id }) => id).sort()).toEqual([sandbox.id, other.id].sort());
    expect(sandboxes.map(({ phase }) => phase)).toEqual(["Running", "Running"]);
    const { sandboxes: running } = await provider.list({ status: "running" });
    expect(running).toHaveLength(2);
    const { sandboxes: labelled } = await provider.list({ labels: { customer: "acme" } });
    expect(labelled).toMatchObject([{ id: other.id, namespace: namespace.name }]);
    expect(Date.parse(labelled[0]?.createdAt ?? "")).not.toBeNaN();
    expect((await provider.list({ cursor })).sandboxes).toHaveLength(2);
    const cleaned: { deleted: string[]; kept: number } = await provider.cleanup();
    expect(cleaned).toEqual({ deleted: [], kept: 2 });
    expect(await provider.cleanup(300)).toEqual({ deleted: [], kept: 2 });
    const status: { available: number; active: number; total: number; target: number } = await provider.poolStatus();
    expect(status).toMatchObject({ available: 0, target: 0 });
    await provider.delete(sandbox.id);
    await provider.delete(sandbox.id);
    await provider.delete(other.id);
    await expect(provider.reconnect(sandbox.id)).rejects.toThrow(`Sandbox not found: ${sandbox.id}`);
  });

  test("labels in the cluster have the document's prefix", async () => {
    const provider = new KubernetesProvider({ mode: "raw", ...raw });
    const sandbox = await provider.getOrCreate({ labels: { customer: "acme" } });
    const selector = "--selector=langchain-kubernetes.bitkaio.com/customer=acme";
    expect(namespace.kubectl(["get", "pods", selector, "--output=name"])).toMatch(/^pod\//);
    await provider.delete(sandbox.id);
  });

  test("warm pool in raw mode", async () => {
    const provider = new KubernetesProvider({ ...raw, mode: "raw", warmPoolSize: 1 });
    const sandbox = await provider.getOrCreate();
    expect((await provider.poolStatus()).target).toBe(1);
    await provider.delete(sandbox.id);
    await provider.close();
    namespace.kubectl(["delete", "pods", "--all", "--wait=false"]);
    namespace.kubectl(["delete", "leases", "--all", "--wait=false"]);
  });

  test("warm pool in agent-sandbox mode", async () => {
    const pool = {
      apiVersion: "extensions.agents.x-k8s.io/v1beta1",
      kind: "SandboxWarmPool",
      metadata: { name: "python-pool" },
      spec: { replicas: 1, sandboxTemplateRef: { name: "python" } },
    };
    namespace.kubectl(["apply", "--filename=-"], JSON.stringify(pool));
    const provider = new KubernetesProvider({
      mode: "agent-sandbox",
      routerUrl: ROUTER,
      templateName: "python-sandbox-template",
      warmPoolName: "python-pool",
      ...claims,
    });
    await expect.poll(() => provider.poolStatus(), { timeout: 60_000 }).toMatchObject({ available: 1, target: 1 });
    const sandbox = await provider.getOrCreate();
    expect((await sandbox.execute("echo from the pool")).output).toBe("from the pool\n");
    await provider.delete(sandbox.id);
    namespace.kubectl(["delete", "sandboxwarmpool", "python-pool"]);
    const pods = () => namespace.kubectl(["get", "pods", "--output=name"]);
    await expect.poll(pods, { timeout: 60_000 }).toBe("");
  });

  test("local development with kubectl proxy", async () => {
    const { kubeconfigPath, ...others } = claims;
    const proxy = spawn("kubectl", [`--kubeconfig=${kubeconfigPath}`, "proxy", "--port=0"]);
    try {
      const [line] = (await once(proxy.stdout, "data")) as [Buffer];
      const port = String(line).match(/:(\d+)/)?.[1];
      const provider = new KubernetesProvider({ ...others, kubeApiUrl: `http://localhost:${port}` });
      const sandbox = await provider.getOrCreate();
      expect((await sandbox.execute("echo by the proxy")).output).toBe("by the proxy\n");
      await provider.delete(sandbox.id);
    } finally {
      proxy.kill();
    }
  });

  test("raw mode: setup", async () => {
    const provider = new KubernetesProvider({
      mode: "raw",
      namespace: "deepagents-sandboxes",
      image: "python:3.12-slim",
      blockNetwork: true,
      ...raw,
    });
    const sandbox = await provider.getOrCreate();
    expect((await sandbox.execute("pwd")).output).toBe("/workspace\n");
    await provider.delete(sandbox.id);
  });

  test("error handling", async () => {
    const caught = async (config: KubernetesProviderConfig) => {
      try {
        await new KubernetesProvider(config).getOrCreate();
      } catch (err) {
        if (err instanceof TemplateNotFoundError) return err.message;
        if (err instanceof SandboxStartupTimeoutError) return "timeout";
        if (err instanceof SandboxRouterError) return "router";
        if (err instanceof MissingDependencyError) return "dependency";
        if (err instanceof SandboxNotFoundError) return "none";
      }
      return "made";
    };
    const missing = `SandboxTemplate "none" not found in namespace "${namespace.name}"`;
    expect(await caught({ ...claims, templateName: "none" })).toBe(missing);
    const slow = { ...raw, nodeSelector: { "no-such": "node" }, unschedulableGraceSeconds: 60 };
    expect(await caught({ ...slow, startupTimeoutMs: 2000 })).toBe("timeout");
  });

  test("missing options that the document requires are errors", () => {
    expect(() => new KubernetesProvider({ templateName: "t" })).toThrow(
      'KubernetesProvider: "routerUrl" is required when mode="agent-sandbox".',
    );
    expect(() => new KubernetesProvider({ routerUrl: ROUTER })).toThrow(
      'KubernetesProvider: "templateName" is required when mode="agent-sandbox".',
    );
  });
});
