/**
 * The TypeScript code of README.md and docs: the blocks of a page run in order, as one program without types. Pages that
 * name only local sandboxes run on this machine, and the others on a cluster, where the namespace and the image differ.
 */

import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { MemorySaver } from "@langchain/langgraph";
import * as deepagents from "deepagents";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import * as sandpod from "../dist/esm/index.js";
import { HAS_CLUSTER, Namespace } from "./cluster.js";
import { ObedientModel } from "./scripted.js";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const BLOCK = /(?:^<!-- (?<note>.*) -->\n)?^```ts\n(?<code>[\s\S]*?)^```$/gm;
const IMPORT = /^import \{([^}]*)\} from "([^"]+)";$/gm;

/** The program of a page: its blocks without those below a comment `<!-- not run: REASON -->`. */
function program(page: string): string {
  const blocks = [...readFileSync(join(ROOT, page), "utf8").matchAll(BLOCK)];
  const run = blocks.filter(({ groups }) => !groups?.note?.startsWith("not run: "));
  return run.map(({ groups }) => `{\n${groups?.code}}\n`).join("");
}

const PAGES = ["README.md", ...readdirSync(join(ROOT, "docs")).map((name) => `docs/${name}`)]
  .filter((page) => page.endsWith(".md") && program(page) !== "")
  .map((page) => ({ page, isLocal: !/mode: "raw"|templateName:/.test(program(page)) }));

/** Runs the program of a page, whose imports are taken from `modules`. */
async function run(page: string, modules: Record<string, object>): Promise<void> {
  const code = program(page).replace(IMPORT, 'const {$1} = modules["$2"];');
  const AsyncFunction = (async () => {}).constructor as new (...texts: string[]) => (...values: unknown[]) => unknown;
  const main = new AsyncFunction("modules", "model", "checkpointer", code);
  await main(modules, new ObedientModel(), new MemorySaver());
}

describe("on this machine", () => {
  const state = mkdtempSync(join(tmpdir(), "sandpod-documents-"));
  const before = process.env.XDG_STATE_HOME;

  beforeAll(() => {
    process.env.XDG_STATE_HOME = state;
  });

  afterAll(() => {
    if (before === undefined) delete process.env.XDG_STATE_HOME;
    else process.env.XDG_STATE_HOME = before;
    rmSync(state, { recursive: true, force: true });
  });

  test.each(PAGES.filter(({ isLocal }) => isLocal))("the code of $page leaves no sandbox", async ({ page }) => {
    await run(page, { sandpod, deepagents });
    const { sandboxes } = await new sandpod.KubernetesProvider({ mode: "local" }).list();
    expect(sandboxes).toEqual([]);
  });
});

describe.skipIf(!HAS_CLUSTER)("on a cluster", () => {
  const namespace = new Namespace("documents");

  beforeAll(() => namespace.create());
  afterAll(async () => namespace.delete());

  test.each(PAGES.filter(({ isLocal }) => !isLocal))("the code of $page works", async ({ page }) => {
    const place = { ...namespace.raw(), image: "sandpod.test/python:1" };
    const managers: sandpod.KubernetesSandboxManager[] = [];
    class Manager extends sandpod.KubernetesSandboxManager {
      constructor(...[config, options]: ConstructorParameters<typeof sandpod.KubernetesSandboxManager>) {
        super({ ...config, ...place }, options);
        managers.push(this);
      }
    }
    await run(page, { sandpod: { ...sandpod, KubernetesSandboxManager: Manager }, deepagents });
    for (const manager of managers) await manager.shutdown();
  });
});
