/** The variables that say where the integration tests run. */

import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { KubernetesProviderOptions } from "../dist/esm/index.js";
import { HAS_CLUSTER, Namespace } from "./cluster.js";

const HERE = fileURLToPath(new URL("..", import.meta.url));

async function run(variables: Record<string, string>): Promise<string> {
  const env = { ...process.env, NO_COLOR: "1", VITEST: "", ...variables };
  const ran = promisify(execFile)("npm", ["run", "--silent", "test:integration"], { cwd: HERE, env });
  return (await ran.catch((error) => error)).stdout;
}

describe("the integration tests", () => {
  test("are skipped without K8S_INTEGRATION", async () => {
    expect(await run({ K8S_INTEGRATION: "" })).toContain("2 skipped");
  });

  describe.skipIf(!HAS_CLUSTER)("on a cluster", () => {
    const namespace = new Namespace("variables");
    let raw: KubernetesProviderOptions;
    let claims: KubernetesProviderOptions;

    beforeAll(async () => {
      namespace.create();
      raw = namespace.raw();
      claims = await namespace.agentSandbox();
    });

    afterAll(async () => namespace.delete());

    test("run in raw mode where the variables say", async () => {
      const output = await run({
        K8S_INTEGRATION: "1",
        KUBECONFIG: String(raw.kubeconfigPath),
        SANDBOX_NAMESPACE: namespace.name,
        SANDPOD_IMAGE: String(raw.image),
        SANDPOD_CPU_REQUEST: "1m",
      });
      expect(output).toContain("1 passed | 1 skipped");
    });

    test("run in agent-sandbox mode through the router that is named", async () => {
      const output = await run({
        K8S_INTEGRATION: "1",
        KUBECONFIG: String(claims.kubeconfigPath),
        SANDBOX_NAMESPACE: namespace.name,
        SANDBOX_TEMPLATE: "python",
        ROUTER_URL: namespace.routerUrl(),
        SANDPOD_GUEST_TOKEN_FILE: String(claims.guestTokenFile),
        SANDPOD_IMAGE: String(raw.image),
        SANDPOD_CPU_REQUEST: "1m",
      });
      expect(output).toMatch(
        /PASSED \d+ bindings\/node\/test\/integration\.test\.ts::integration > agent-sandbox mode/,
      );
    });
  });
});
