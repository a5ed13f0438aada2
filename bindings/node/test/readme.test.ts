/** The code blocks of the README, in local mode and with a scripted model. */

import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as compat from "../dist/esm/compat/bitkaio.js";
import * as sandpod from "../dist/esm/index.js";
import { execute, ScriptedModel } from "./scripted.js";

type Names = Record<string, unknown>;

const LABELS = { test: `readme-${process.pid}` };
const LOCAL = { mode: "local", defaultLabels: LABELS } as const;
const README = await readFile(new URL("../README.md", import.meta.url), "utf8");
const BLOCKS = [...README.matchAll(/^```(\w+)\n([\s\S]*?)^```/gm)].map(([, language, code]) => ({ language, code }));

/** Runs a block with these names, and returns the names that it declares. */
async function run(block: string, names: Names): Promise<Names> {
  const load = (name: string) => (name === "sandpod" ? sandpod : import(name));
  const local = JSON.stringify(LOCAL).slice(1, -1);
  const body = block
    .replace(/^import \{(.*)\} from "(.*)";$/gm, 'const {$1} = await load("$2");')
    .replace(/mode: "raw", namespace: "agents"(, image: "[^"]*")?|mode: "local"/g, local);
  const declared = [...body.matchAll(/^(?:const|let) (\w+)/gm)].map(([, name]) => name);
  const all: Names = { load, ...names };
  const AsyncFunction = (async () => {}).constructor as new (...source: string[]) => (...values: unknown[]) => Names;
  const work = new AsyncFunction(...Object.keys(all), `{\n${body}\nreturn { ${declared.join(", ")} };\n}`);
  return work(...Object.values(all));
}

describe("the README", () => {
  const directory = mkdtemp(join(tmpdir(), "sandpod-readme-"));
  const before = process.cwd();
  const provider = new sandpod.KubernetesProvider(LOCAL);
  let sandbox: sandpod.KubernetesSandbox;

  beforeAll(async () => {
    process.chdir(await directory);
    await mkdir("project");
    await writeFile("project/file.txt", "text");
    await writeFile("large.bin", new Uint8Array(1000));
    sandbox = await provider.getOrCreate();
    await sandbox.execute("mkdir -p /workspace/project");
  });

  afterAll(async () => {
    await provider.deleteAll(LABELS);
    process.chdir(before);
    await rm(await directory, { recursive: true });
  });

  const code = BLOCKS.filter(({ language }) => language === "ts").map(({ code }) => String(code));

  test.each(code.map((block, number) => [number + 1, block]))("code block %i runs", async (_, block) => {
    const messages = [{ role: "user", content: "work" }];
    const model = new ScriptedModel(execute("echo done"), "done");
    const listeners = process.listeners("SIGTERM");
    const declared = await run(String(block), { model, messages, sandbox, provider, id: sandbox.id });
    const added = process.listeners("SIGTERM").filter((listener) => !listeners.includes(listener));
    for (const listener of added) process.removeListener("SIGTERM", listener);
    if ("manager" in declared) await (declared.manager as sandpod.KubernetesSandboxManager).shutdown();
    if ("again" in declared) expect(declared).toMatchObject({ again: { id: sandbox.id }, same: { id: sandbox.id } });
  });

  test("has no blocks in other languages but commands and the changed import", () => {
    const others = BLOCKS.filter(({ language }) => language !== "ts");
    expect(others.map(({ language }) => language)).toEqual(["sh", "diff"]);
    const names = others[1]?.code?.match(/^\+import \{(.*)\} from "sandpod\/compat\/bitkaio";$/m)?.[1] ?? "";
    expect(names.split(",").filter((name) => !(name.trim() in compat))).toEqual([]);
  });
});
