/**
 * For a cluster of yours: `K8S_INTEGRATION=1 npm run test:integration` tests raw mode on the cluster that kubectl reaches, and
 * with `SANDBOX_TEMPLATE` also agent-sandbox mode, through `ROUTER_URL` if that is set. `SANDBOX_NAMESPACE` and the `SANDPOD_*`
 * variables are read, too.
 */

import { describe, expect, test } from "vitest";
import { KubernetesProvider, type KubernetesProviderOptions, loadOptions } from "../dist/esm/index.js";

const { K8S_INTEGRATION, ROUTER_URL, SANDBOX_NAMESPACE, SANDBOX_TEMPLATE } = process.env;
const IS_WANTED = K8S_INTEGRATION === "1";

async function works(options: KubernetesProviderOptions): Promise<void> {
  const provider = new KubernetesProvider({ ...options, ...(SANDBOX_NAMESPACE && { namespace: SANDBOX_NAMESPACE }) });
  const sandbox = await provider.getOrCreate();
  try {
    const result = await sandbox.execute("echo from the sandbox");
    expect(result).toEqual({ output: "from the sandbox\n", exitCode: 0, truncated: false });
    await sandbox.write("/workspace/file.txt", "text\n");
    expect((await sandbox.read("/workspace/file.txt")).content).toBe("text");
  } finally {
    await provider.delete(sandbox.id);
  }
}

describe("integration", () => {
  test.skipIf(!IS_WANTED)("raw mode", () => works({ ...loadOptions(), mode: "raw" }));

  test.skipIf(!IS_WANTED || SANDBOX_TEMPLATE === undefined)("agent-sandbox mode", () =>
    works({
      mode: "agent-sandbox",
      templateName: SANDBOX_TEMPLATE,
      ...(ROUTER_URL && { routerUrl: ROUTER_URL, connectionMode: "direct" }),
    }),
  );
});
