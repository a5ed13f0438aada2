/** Agent-sandbox mode, on a cluster. */

import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  KubernetesProvider,
  type KubernetesProviderOptions,
  KubernetesSandbox,
  TemplateNotFoundError,
} from "../dist/esm/index.js";
import { behaviours } from "./behaviours.js";
import { HAS_CLUSTER, Namespace } from "./cluster.js";

describe.skipIf(!HAS_CLUSTER)("on a cluster", () => {
  const namespace = new Namespace("claims");
  let options: KubernetesProviderOptions;

  beforeAll(async () => {
    namespace.create();
    options = await namespace.agentSandbox();
  });

  afterAll(async () => namespace.delete());

  behaviours("agent-sandbox", {
    create: (more) => KubernetesSandbox.create({ ...options, ...more }),
    uninitialized: () => new KubernetesSandbox(options),
  });

  test("a template that does not exist is a TemplateNotFoundError", async () => {
    const provider = new KubernetesProvider({ ...options, templateName: "none" });
    await expect(provider.getOrCreate()).rejects.toThrow(TemplateNotFoundError);
  });

  test("a pool that does not exist has no Pods", async () => {
    const status = await new KubernetesProvider(options).poolStatus();
    expect(status).toEqual({ available: 0, active: 0, total: 0, target: 0 });
  });
});
