/** Gives the local sandboxes of a test run a directory of their own, and fails if the tests leave one there. */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { KubernetesProvider } from "../dist/esm/index.js";

export async function setup(): Promise<() => Promise<void>> {
  const directory = await mkdtemp(join(tmpdir(), "sandpod-node-tests-"));
  // Read by this process, by the workers and by their child processes.
  process.env.XDG_STATE_HOME = directory;
  return async () => {
    const provider = new KubernetesProvider({ mode: "local" });
    const left: string[] = [];
    for (let page = await provider.list(); ; page = await provider.list({ cursor: page.cursor })) {
      left.push(...page.sandboxes.map(({ id, labels }) => `${id} ${JSON.stringify(labels)}`));
      if (page.cursor === undefined) break;
    }
    for (const entry of left) await provider.delete(entry.split(" ")[0] as string);
    await rm(directory, { recursive: true, force: true });
    if (left.length === 0) return;
    // vitest reports an error from here, but exits with 0.
    process.exitCode = 1;
    throw new Error(`The tests left local sandboxes: ${left.join(", ")}`);
  };
}
