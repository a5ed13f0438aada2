/** Losses with 64 calls in flight: each call of Deep Agents' tools returns a result, and none rejects. */

import { readFile } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import { createDeepAgent } from "deepagents";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { KubernetesProvider, type KubernetesProviderOptions, type KubernetesSandbox } from "../dist/esm/index.js";
import { HAS_CLUSTER, Namespace } from "./cluster.js";
import { CuttingProxy } from "./proxy.js";
import { ScriptedModel, toolCalls, toolResults } from "./scripted.js";

const CALLS = 64;
/** Milliseconds for a busy machine. */
const PATIENCE = 240_000;
const LOCAL: KubernetesProviderOptions = { mode: "local" };

/** Every other call of Deep Agents' tools, on files of their own. */
const FILE_CALLS: ((sandbox: KubernetesSandbox, name: string) => Promise<object>)[] = [
  (sandbox, name) => sandbox.read(name),
  (sandbox, name) => sandbox.readRaw(name),
  (sandbox, name) => sandbox.write(name, "text"),
  (sandbox, name) => sandbox.edit(name, "text", "other"),
  (sandbox, name) => sandbox.delete(name),
  (sandbox) => sandbox.ls("/workspace"),
  (sandbox) => sandbox.glob("*", "/workspace"),
  (sandbox) => sandbox.grep("text", "/workspace"),
  (sandbox, name) => sandbox.uploadFiles([[name, new Uint8Array([1])]]),
  (sandbox, name) => sandbox.downloadFiles([name]),
];

/** Kills the guest of a local sandbox. */
async function killGuest(id: string): Promise<void> {
  const state = process.env.XDG_STATE_HOME ?? join(homedir(), ".local/state");
  process.kill(Number(await readFile(join(state, "sandpod/local", id, "lock"), "utf8")), "SIGKILL");
}

/** Waits until that many commands have each made a file `begun-*`. */
async function untilBegun(sandbox: KubernetesSandbox, count: number): Promise<void> {
  const deadline = Date.now() + PATIENCE;
  while (((await sandbox.glob("begun-*", "/workspace")).files?.length ?? 0) < count) {
    if (Date.now() > deadline) throw new Error(`${count} commands have not begun`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Starts commands and calls of all kinds, makes the loss, and returns the outcomes. */
async function lose(sandbox: KubernetesSandbox, loss: () => void | Promise<void>) {
  const files = [...FILE_CALLS, ...FILE_CALLS];
  const count = CALLS - files.length;
  const commands = Array.from({ length: count }, (_, i) => sandbox.execute(`touch begun-${i}; sleep 600`));
  const settled = Promise.allSettled(commands);
  await untilBegun(sandbox, count);
  const others = Promise.allSettled(files.map((call, i) => call(sandbox, `/workspace/file-${i}`)));
  await loss();
  return { commands: await settled, others: await others };
}

/** Checks that each call returned a result, and that no command seems to have succeeded. */
function expectResults({ commands, others }: Awaited<ReturnType<typeof lose>>): void {
  expect([...commands, ...others].filter(({ status }) => status === "rejected")).toEqual([]);
  for (const outcome of commands) {
    const { exitCode, output } = (outcome as PromiseFulfilledResult<{ exitCode: number | null; output: string }>).value;
    // Killed with its Pod, or of unknown outcome, for a reason that the output states.
    expect(exitCode).not.toBe(0);
    if (exitCode === null) expect(output).not.toBe("");
  }
}

/** Checks that the next call works or reports the loss, and that the sandbox can be found again and works. */
async function expectRecovery(sandbox: KubernetesSandbox, provider: KubernetesProvider): Promise<void> {
  const next = await sandbox.execute("echo next");
  expect(next.output).toMatch(next.exitCode === 0 ? /next/ : /gone|lost|restarted|replaced/);
  const again = await provider.getOrCreate(sandbox.id);
  expect(again.id).toBe(sandbox.id);
  // The first call after a loss of files reports it.
  await again.ls("/workspace");
  expect(await again.execute("echo again")).toMatchObject({ exitCode: 0, output: expect.stringContaining("again") });
}

describe("with 64 calls in flight on this machine", () => {
  const provider = new KubernetesProvider(LOCAL);

  test("a killed guest rejects no call, and the sandbox works again", { timeout: PATIENCE }, async () => {
    const sandbox = await provider.getOrCreate();
    expectResults(await lose(sandbox, () => killGuest(sandbox.id)));
    await expectRecovery(sandbox, provider);
    await provider.delete(sandbox.id);
  });

  test("a killed guest ends no agent's run", { timeout: PATIENCE }, async () => {
    const sandbox = await provider.getOrCreate();
    const commands = Array.from({ length: CALLS }, (_, i) => `touch begun-${i}; sleep 600`);
    const model = new ScriptedModel(
      toolCalls(...commands.map((command): [string, { command: string }] => ["execute", { command }])),
      "done",
    );
    const run = createDeepAgent({ model, backend: sandbox }).invoke({ messages: [{ role: "user", content: "go" }] });
    await untilBegun(sandbox, CALLS);
    await killGuest(sandbox.id);
    const state = await run;
    expect(toolResults(state as never)).toHaveLength(CALLS);
    expect(state.messages.at(-1)?.text).toBe("done");
    await provider.delete(sandbox.id);
  });
});

describe.skipIf(!HAS_CLUSTER)("with 64 calls in flight on a cluster", () => {
  const namespace = new Namespace("faults");
  const proxy = new CuttingProxy();
  let provider: KubernetesProvider;

  beforeAll(async () => {
    namespace.create();
    provider = new KubernetesProvider(namespace.rawThrough(await proxy.start()));
  });

  afterAll(async () => {
    proxy.stop();
    await namespace.delete();
  });

  test("a lost stream loses no call and repeats none", { timeout: PATIENCE }, async () => {
    const sandbox = await provider.getOrCreate();
    const calls = Array.from({ length: CALLS }, (_, i) =>
      sandbox.execute(`touch begun-${i}; while ! test -e go; do sleep 0.2; done; echo ${i} >> ran; echo ran ${i}`),
    );
    await untilBegun(sandbox, CALLS);
    expect(proxy.cut()).toBeGreaterThan(0);
    const other = await sandbox.write("/workspace/go", "");
    expect(other.error).toBeUndefined();
    for (const [i, result] of (await Promise.all(calls)).entries()) {
      expect(result).toMatchObject({ exitCode: 0, output: expect.stringContaining(`ran ${i}`) });
    }
    const ran = (await sandbox.execute("sort -n ran")).output.trim().split("\n");
    expect(ran.map(Number)).toEqual(Array.from({ length: CALLS }, (_, i) => i));
    await provider.delete(sandbox.id);
  });

  test("a deleted Pod rejects no call, and the sandbox works again", { timeout: PATIENCE }, async () => {
    const sandbox = await provider.getOrCreate();
    expectResults(await lose(sandbox, () => namespace.losePod(sandbox.id)));
    await expectRecovery(sandbox, provider);
    await provider.delete(sandbox.id);
  });
});
