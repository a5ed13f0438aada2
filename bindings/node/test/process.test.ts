/** The end of processes that use the package. */

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { KubernetesProvider, KubernetesSandbox } from "../dist/esm/index.js";
import { HAS_CLUSTER, Namespace } from "./cluster.js";

const PACKAGE = new URL("../dist/esm/index.js", import.meta.url).href;

interface Ended {
  code: number | string | null;
  stdout: string;
  stderr: string;
}

/** Runs a script that imports the package, and waits for its end. */
function run(script: string, limit = 30_000): Promise<Ended> {
  const source = `import * as sandpod from ${JSON.stringify(PACKAGE)};\n${script}`;
  return new Promise((resolve) => {
    const args = ["--input-type=module", "--eval", source];
    execFile(process.execPath, args, { timeout: limit }, (error, stdout, stderr) => {
      resolve({ code: error ? (error.code ?? error.signal ?? null) : 0, stdout, stderr });
    });
  });
}

const LABELS = { test: `process-${process.pid}` };
const CREATE = `const sandbox = await sandpod.Sandbox.create({ mode: "local", labels: ${JSON.stringify(LABELS)} });`;

describe.skipIf(!HAS_CLUSTER)("a process with a Pod", () => {
  const namespace = new Namespace("process");

  beforeAll(() => namespace.create());
  afterAll(async () => namespace.delete());

  test("O20: ends by itself after it used a sandbox", async () => {
    const { code, stdout, stderr } = await run(
      `const provider = new sandpod.KubernetesProvider(${JSON.stringify(namespace.raw())});
       const sandbox = await provider.getOrCreate();
       for (let i = 0; i < 5; i++) await sandbox.execute("true");
       await provider.delete(sandbox.id);
       const end = performance.now();
       process.on("exit", () => console.log(performance.now() - end < 5000));`,
      120_000,
    );
    expect([code, stdout, stderr]).toEqual([0, "true\n", ""]);
  }, 150_000);
});

describe("a process", () => {
  afterAll(() => KubernetesSandbox.deleteAll(LABELS, { mode: "local" }));

  test("ends by itself with an open sandbox that is idle", async () => {
    const { code, stdout, stderr } = await run(
      `${CREATE} for (let i = 0; i < 5; i++) await sandbox.execute("true"); console.log(sandbox.id);
       globalThis.end = performance.now();
       process.on("exit", () => console.log(performance.now() - globalThis.end < 1000));
       setTimeout(() => console.log("late"), 20000).unref();`,
    );
    expect([code, stderr]).toEqual([0, ""]);
    expect(stdout).toMatch(/^sp-\w+\ntrue\n$/);
  });

  test("ends at once by process.exit with a command under way", async () => {
    const begun = Date.now();
    const { code, stderr } = await run(
      `${CREATE} sandbox.execute("sleep 60").catch(() => {}); setTimeout(() => process.exit(7), 300);
       await new Promise(() => {});`,
    );
    expect([code, stderr]).toEqual([7, ""]);
    expect(Date.now() - begun).toBeLessThan(15_000);
  });

  test("is not ended by a rejection that is handled", async () => {
    const { code, stdout } = await run(
      `const error = await sandpod.Sandbox.connect({ mode: "local" }, "sp-none").catch((error) => error);
       console.log(error.name, error instanceof sandpod.SandboxError);`,
    );
    expect([code, stdout]).toEqual([0, "SandboxNotFoundError true\n"]);
  });

  test("shows the reason of an unhandled rejection and fails", async () => {
    const { code, stderr } = await run(`sandpod.Sandbox.connect({ mode: "local" }, "sp-none");`);
    expect(code).toBe(1);
    expect(stderr).toContain("SandboxNotFoundError");
  });

  test("can use the package in worker threads that end early", async () => {
    const { code, stdout, stderr } = await run(
      `import { Worker } from "node:worker_threads";
       ${CREATE}
       const source = \`import { parentPort, workerData } from "node:worker_threads";
         import(workerData.url).then(async ({ Sandbox }) => {
           const sandbox = await Sandbox.connect({ mode: "local" }, workerData.id);
           await sandbox.execute("true");
           sandbox.execute("sleep 60").catch(() => {});
           parentPort.postMessage("begun");
         });\`;
       for (let i = 0; i < 3; i++) {
         const worker = new Worker(source, { eval: true, workerData: { url: ${JSON.stringify(PACKAGE)}, id: sandbox.id } });
         await new Promise((resolve) => worker.once("message", resolve));
         await worker.terminate();
       }
       console.log((await sandbox.execute("echo still there")).output);
       await sandbox.destroy();`,
    );
    expect([code, stderr, stdout]).toEqual([0, "", "still there\n\n"]);
  });

  test("is warned of no leak by many calls with one signal, which cancels them all", async () => {
    const { code, stdout, stderr } = await run(
      `${CREATE} const controller = new AbortController();
       const { signal } = controller;
       const short = await Promise.all(Array.from({ length: 64 }, () => sandbox.execute("sleep 0.1", { signal })));
       const long = Array.from({ length: 64 }, () => sandbox.execute("sleep 600", { signal }).catch(({ name }) => name));
       setTimeout(() => controller.abort(), 100);
       console.log(short.length, new Set(await Promise.all(long)));
       await sandbox.destroy();`,
    );
    expect([code, stderr, stdout]).toEqual([0, "", "64 Set(1) { 'AbortError' }\n"]);
  });

  test("gets the sandbox of a thread that another process uses, too", async () => {
    const scope = `processes-${process.pid}-${Date.now()}`;
    const script = `
      const manager = new sandpod.KubernetesSandboxManager({ mode: "local" }, { scope: ${JSON.stringify(scope)} });
      const { sandboxId } = await manager.createSetupNode()({}, { configurable: { thread_id: "one" } });
      console.log(sandboxId);
      await manager.close();`;
    const ended = await Promise.all([run(script), run(script), run(script)]);
    expect(ended.map(({ code, stderr }) => [code, stderr])).toEqual(Array(3).fill([0, ""]));
    expect(new Set(ended.map(({ stdout }) => stdout)).size).toBe(1);
    const provider = new KubernetesProvider({ mode: "local" });
    const { sandboxes } = await provider.list({ labels: { "thread-id": "one", scope } });
    expect(sandboxes.map(({ id }) => `${id}\n`)).toEqual([ended[0]?.stdout]);
    await provider.delete(String(sandboxes[0]?.id));
  });

  test("ends by Ctrl-C", async () => {
    const source = `import * as sandpod from ${JSON.stringify(PACKAGE)};
      ${CREATE}
      console.log("begun"); await sandbox.execute("sleep 60");`;
    const child = spawn(process.execPath, ["--input-type=module", "--eval", source], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    await once(child.stdout, "data");
    child.kill("SIGINT");
    const [code, signal] = await once(child, "exit");
    expect([code, signal]).toEqual([null, "SIGINT"]);
  });
});
