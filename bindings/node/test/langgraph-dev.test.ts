/** The example for `langgraphjs dev`, in a server of its own, in local mode with a scripted model. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { copyFile, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { Client } from "@langchain/langgraph-sdk";
import { afterAll, beforeAll, expect, test } from "vitest";
import { KubernetesProvider } from "../dist/esm/index.js";

const PACKAGE = fileURLToPath(new URL("..", import.meta.url));
const EXAMPLE = join(PACKAGE, "examples/langgraph-dev");
const THREAD = crypto.randomUUID();
/** Milliseconds for a server to start and for its runs, on a busy machine. */
const PATIENCE = 120_000;

/** A directory with the example's `langgraph.json` and, in place of its agent, one with a scripted model. */
let directory: string;
let sandboxId: string | undefined;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "sandpod-langgraph-"));
  await copyFile(join(EXAMPLE, "langgraph.json"), join(directory, "langgraph.json"));
  const module = (path: string) => JSON.stringify(pathToFileURL(path).href);
  const agent = `
    import { makeAgent } from ${module(join(EXAMPLE, "agent.ts"))};
    import { ObedientModel } from ${module(join(PACKAGE, "test/scripted.ts"))};
    export const agent = () => makeAgent(new ObedientModel(), { mode: "local" });
  `;
  await writeFile(join(directory, "agent.ts"), agent);
  await writeFile(join(directory, "package.json"), '{ "private": true, "type": "module" }');
  await symlink(join(PACKAGE, "node_modules"), join(directory, "node_modules"));
});

afterAll(async () => {
  if (sandboxId !== undefined) await new KubernetesProvider({ mode: "local" }).delete(sandboxId);
  await rm(directory, { recursive: true, force: true });
});

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, "close");
  return port;
}

async function waitUntilReady(url: string, server: ChildProcess): Promise<void> {
  const deadline = Date.now() + PATIENCE;
  while (
    !(await fetch(`${url}/ok`).then(
      ({ ok }) => ok,
      () => false,
    ))
  ) {
    if (server.exitCode !== null || Date.now() > deadline) {
      throw new Error(`The server did not start:\n${await readFile(join(directory, "log"), "utf8")}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Runs the commands one after the other, each as a run of the thread, in a server of their own. */
async function runs(...commands: string[]): Promise<string[]> {
  const port = await freePort();
  const program = join(PACKAGE, "node_modules/.bin/langgraphjs");
  const command = `exec "$0" dev --no-browser --host 127.0.0.1 --port ${port} >> log 2>&1`;
  const env = { ...process.env, LANGSMITH_TRACING: "false" };
  // A process group: the command starts further processes.
  const server = spawn("sh", ["-c", command, program], { cwd: directory, env, detached: true, stdio: "ignore" });
  try {
    const url = `http://127.0.0.1:${port}`;
    await waitUntilReady(url, server);
    const client = new Client({ apiUrl: url });
    await client.threads.create({ threadId: THREAD, ifExists: "do_nothing" });
    const replies: string[] = [];
    for (const content of commands) {
      const input = { messages: [{ role: "user", content }] };
      const state = (await client.runs.wait(THREAD, "agent", { input })) as Record<string, unknown>;
      sandboxId = state.sandboxId as string;
      replies.push((state.messages as { content: string }[]).at(-1)?.content ?? "");
    }
    return replies;
  } finally {
    process.kill(-Number(server.pid), "SIGKILL");
    if (server.exitCode === null && server.signalCode === null) await once(server, "exit");
  }
}

test("runs of a thread use one sandbox, also after a restart of the server", { timeout: 4 * PATIENCE }, async () => {
  const [, second] = await runs("cd /tmp && export COLOUR=blue && echo kept > note", "cat note; echo $COLOUR");
  expect(second).toContain("kept\nblue\n");
  const [third] = await runs("cat note; echo $COLOUR");
  expect(third).toContain("kept\nblue\n");
});
