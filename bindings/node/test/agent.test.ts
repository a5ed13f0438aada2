/** Deep agents in sandboxes, and the manager that gives each thread its own. */

import { Annotation, MemorySaver, messagesStateReducer, StateGraph } from "@langchain/langgraph";
import { createDeepAgent } from "deepagents";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  createKubernetesSandboxFactory,
  createKubernetesSandboxFactoryFromSandbox,
  KubernetesProvider,
  KubernetesSandbox,
  KubernetesSandboxManager,
  SandboxError,
} from "../dist/esm/index.js";
import { sleep } from "./behaviours.js";
import { execute, ObedientModel, ScriptedModel, toolCalls, toolResults } from "./scripted.js";

const LOCAL = { mode: "local" } as const;
const scope = () => `test-${process.pid}-${Math.random()}`;
const user = (content: string) => ({ messages: [{ role: "user" as const, content }] });
const inThread = (thread: string) => ({ configurable: { thread_id: thread } });

describe("a deep agent", () => {
  let sandbox: KubernetesSandbox;

  beforeAll(async () => {
    sandbox = await KubernetesSandbox.create(LOCAL);
  });

  afterAll(async () => sandbox.close());

  test("works with files and commands of its sandbox", async () => {
    const model = new ScriptedModel(
      toolCalls(["write_file", { file_path: "/workspace/f.py", content: "def f():\n    return 1\n" }]),
      toolCalls(["read_file", { file_path: "/workspace/f.py" }]),
      toolCalls([
        "edit_file",
        { file_path: "/workspace/f.py", old_string: "    return 1", new_string: "    return 2" },
      ]),
      toolCalls(["grep", { pattern: "return 2", path: "/workspace" }], ["ls", { path: "/workspace" }]),
      execute("cat f.py; exit 3"),
      "done",
    );
    const agent = createDeepAgent({ model, backend: sandbox });
    const state = await agent.invoke(user("work"));
    const [written, read, edited, found, listed, executed] = toolResults(state as never);
    expect(written).toContain("/workspace/f.py");
    expect(read).toContain("def f():\n    return 1");
    expect(read).not.toMatch(/^\s*1\t/m);
    expect(edited).toContain("replaced 1");
    expect(found).toContain("/workspace/f.py");
    expect(listed).toContain("/workspace/f.py");
    expect(executed).toContain("def f():\n    return 2");
    expect(executed).toContain("failed with exit code 3");
  });

  test("survives a sandbox that is gone", async () => {
    const lost = await KubernetesSandbox.create(LOCAL);
    await new KubernetesProvider(LOCAL).delete(lost.id);
    const model = new ScriptedModel(execute("true"), toolCalls(["read_file", { file_path: "/f" }]), "done");
    const state = await createDeepAgent({ model, backend: lost }).invoke(user("work"));
    expect(toolResults(state as never)[0]).toContain("gone");
    expect(toolResults(state as never)[1]).toContain("gone");
    expect(state.messages.at(-1)?.content).toBe("done");
  });

  test("kills its command when the run is aborted", async () => {
    const abort = new AbortController();
    const model = new ScriptedModel(execute("touch begun; sleep 2; touch late"), "done");
    const running = createDeepAgent({ model, backend: sandbox }).invoke(user("work"), { signal: abort.signal });
    const rejected = expect(running).rejects.toThrow();
    while ((await sandbox.execute("test -e begun")).exitCode !== 0) await sleep(20);
    abort.abort();
    await rejected;
    await sleep(2500);
    expect((await sandbox.execute("test -e late")).exitCode).toBe(1);
  });

  test("uses the sandbox of a factory", async () => {
    const factory = createKubernetesSandboxFactoryFromSandbox(sandbox);
    const agent = createDeepAgent({ model: new ScriptedModel(execute("echo $HOME"), "done"), backend: factory });
    expect(toolResults((await agent.invoke(user("work"))) as never)[0]).toContain("/home/sandbox");
    const other = await createKubernetesSandboxFactory(LOCAL)();
    expect(other.id).not.toBe(sandbox.id);
    await other.close();
  });
});

describe("a manager", () => {
  const manager = new KubernetesSandboxManager(LOCAL, { scope: scope() });
  afterAll(async () => manager.shutdown({ all: true }));

  test("gives each thread a sandbox whose files and shell state stay", async () => {
    const agent = await manager.createAgent(new ObedientModel(), { checkpointer: new MemorySaver() });
    await agent.invoke(user("cd /tmp && export NAME=one && echo text > kept"), inThread("one"));
    const again = await agent.invoke(user("echo $NAME $(cat kept) $(pwd)"), inThread("one"));
    expect(again.messages.at(-1)?.content).toContain("one text /tmp");
    const other = await agent.invoke(user("ls /tmp/kept"), inThread("two"));
    expect(other.messages.at(-1)?.content).toContain("failed");
  });

  test("keeps the sandbox's id in the graph's state", async () => {
    const agent = await manager.createAgent(new ObedientModel(), { checkpointer: new MemorySaver() });
    await agent.invoke(user("true"), inThread("state"));
    const { values } = await agent.getState(inThread("state"));
    expect(values.sandboxId).toMatch(/^sp-/);
    const found = await manager.getOrReconnect(values.sandboxId);
    expect(found.id).toBe(values.sandboxId);
  });

  test("hands model, prompt, tools and checkpointer to the agent", async () => {
    const model = new ScriptedModel("hello");
    const checkpointer = new MemorySaver();
    const agent = await manager.createAgent(model, { checkpointer, systemPrompt: "You are a tester." });
    await agent.invoke(user("hi"), inThread("prompt"));
    expect(JSON.stringify(model.asked[0])).toContain("You are a tester.");
    expect(await checkpointer.getTuple(inThread("prompt"))).toBeDefined();
  });

  test("finds the sandbox again in another manager of its scope", async () => {
    const agent = await manager.createAgent(new ObedientModel());
    await agent.invoke(user("echo text > /tmp/kept"), inThread("again"));
    const other = new KubernetesSandboxManager(LOCAL, { scope: manager.scope });
    const result = await (await other.createAgent(new ObedientModel())).invoke(
      user("cat /tmp/kept"),
      inThread("again"),
    );
    expect(result.messages.at(-1)?.content).toContain("text");
    await other.close();
  });

  test("makes one sandbox for simultaneous first calls of a thread", async () => {
    const calls = await Promise.all(
      Array.from({ length: 8 }, async () => {
        const one = new KubernetesSandboxManager(LOCAL, { scope: manager.scope });
        const agent = await one.createAgent(new ObedientModel());
        const { messages } = await agent.invoke(
          user("cat /proc/sys/kernel/random/boot_id; echo $$ >> /tmp/callers; hostname"),
          inThread("race"),
        );
        await one.close();
        return String(messages.at(-1)?.content);
      }),
    );
    const { sandboxes } = await manager.provider.list({ labels: { "thread-id": "race", scope: manager.scope } });
    expect(sandboxes).toHaveLength(1);
    expect(calls).toHaveLength(8);
  });

  test("replaces a lost sandbox, and the first result reports the loss", async () => {
    const agent = await manager.createAgent(new ObedientModel(), { checkpointer: new MemorySaver() });
    await agent.invoke(user("echo text > /tmp/kept"), inThread("lost"));
    const { values } = await agent.getState(inThread("lost"));
    await manager.provider.delete(values.sandboxId);
    const result = await agent.invoke(user("cat /tmp/kept"), inThread("lost"));
    expect(result.messages.at(-1)?.content).toContain("files");
    expect(result.messages.at(-1)?.content).toContain("No such file");
  });

  test("fails without a thread id and names the argument", async () => {
    const agent = await manager.createAgent(new ObedientModel());
    await expect(agent.invoke(user("true"))).rejects.toThrow(
      "KubernetesSandboxManager: no thread_id in LangGraph config. Invoke with config={'configurable': {'thread_id': '...'}}.",
    );
  });

  test("makes nodes that acquire the sandbox and run an agent", async () => {
    const State = Annotation.Root({
      messages: Annotation({ reducer: messagesStateReducer, default: () => [] }),
      sandboxId: Annotation<string | undefined>(),
      sandboxPlace: Annotation<string | undefined>(),
    });
    const graph = new StateGraph(State)
      .addNode("setup", manager.createSetupNode() as never)
      .addNode("agent", manager.createAgentNode(new ObedientModel()) as never)
      .addEdge("__start__", "setup")
      .addEdge("setup", "agent")
      .compile({ checkpointer: new MemorySaver() });
    const result = await graph.invoke(user("echo in a node") as never, inThread("nodes"));
    expect(result.messages.at(-1)?.content).toContain("in a node");
    expect(result.sandboxId).toMatch(/^sp-/);
  });

  test("deletes what it used when it is shut down, and nothing when it is closed", async () => {
    const own = new KubernetesSandboxManager(LOCAL, { scope: scope() });
    const sandbox = await own.getOrReconnect();
    await own.close();
    await expect(own.getOrReconnect().then((other) => other.id)).resolves.not.toBe(sandbox.id);
    const provider = new KubernetesProvider(LOCAL);
    expect((await provider.info(sandbox.id)).status).toBe("running");
    {
      await using disposed = new KubernetesSandboxManager(LOCAL, { scope: own.scope });
      await disposed.getOrReconnect(sandbox.id);
    }
    await expect(provider.reconnect(sandbox.id)).rejects.toThrow(SandboxError);
    await own.shutdown({ all: true });
  });

  test("refuses wrong options", () => {
    expect(() => new KubernetesSandboxManager(LOCAL, { onLost: "never" as never })).toThrow(TypeError);
    expect(() => new KubernetesSandboxManager(LOCAL, { cleanupInterval: 0 })).toThrow(TypeError);
  });
});
