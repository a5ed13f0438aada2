/** The names, options and errors of `sandpod/compat/bitkaio`. */

import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  KubernetesProvider,
  type KubernetesProviderConfig,
  KubernetesSandboxManager,
  NamespaceConflictError,
  SandboxNotFoundError,
  SandboxRouterError,
} from "../dist/esm/compat/bitkaio.js";
import { KubernetesSandbox } from "../dist/esm/index.js";
import { HAS_CLUSTER, type KubernetesObject, Namespace } from "./cluster.js";
import { ObedientModel } from "./scripted.js";

const ID = /^deepagents-sandbox-[0-9a-f]{8}$/;
const SELECTED = "deepagents.langchain.com/sandbox-id";

describe("execConfig", () => {
  const provider = (execConfig: object) => () => new KubernetesProvider({ mode: "raw", execConfig });

  test("has the options of the document and no others", () => {
    provider({ container: "sandbox", timeoutSeconds: 300, outputLimitBytes: 1_000_000, shell: "/bin/sh" })();
    expect(provider({ container: "sidecar" })).toThrow('execConfig.container is "sidecar", but must be "sandbox"');
    expect(provider({ timeoutSeconds: "1s" })).toThrow("execConfig.timeoutSeconds");
    expect(provider({ outputLimitBytes: 0 })).toThrow("execConfig.outputLimitBytes");
    expect(provider({ shells: "/bin/sh" })).toThrow("There is no option execConfig.shells.");
  });
});

describe("errors of the API server", () => {
  test("O21: a list that fails is no empty list", async () => {
    const options = { routerUrl: "http://127.0.0.1:9", kubeApiUrl: "http://127.0.0.1:9", templateName: "t" };
    await expect(new KubernetesProvider(options).list()).rejects.toThrow(SandboxRouterError);
    await expect(new KubernetesProvider(options).reconnect("any")).rejects.toThrow(SandboxRouterError);
  });
});

describe.skipIf(!HAS_CLUSTER)("on a cluster", () => {
  const namespace = new Namespace("compat");
  let raw: KubernetesProviderConfig;
  let perSandbox: KubernetesProviderConfig;
  let claims: KubernetesProviderConfig;

  beforeAll(async () => {
    namespace.create();
    raw = namespace.raw();
    perSandbox = namespace.namespacePerSandbox();
    claims = { ...(await namespace.agentSandbox()), routerUrl: namespace.routerUrl() };
  });

  afterAll(async () => namespace.delete());

  test("D4, D14: Pods and policies have the names and labels of the document", async () => {
    const provider = new KubernetesProvider(raw);
    const sandbox = await provider.getOrCreate();
    expect(sandbox.id).toMatch(ID);
    const labels = {
      "app.kubernetes.io/managed-by": "deepagents",
      "app.kubernetes.io/component": "sandbox",
      [SELECTED]: sandbox.id,
    };
    const pod = namespace.get("pod", sandbox.id);
    expect(pod.metadata.labels).toMatchObject(labels);
    expect(pod.spec.containers).toMatchObject([{ name: "sandbox" }]);
    const policy = namespace.get("networkpolicy", `deepagents-sandbox-deny-all-${sandbox.id}`);
    expect(policy.metadata.labels).toMatchObject(labels);
    expect(policy.spec).toMatchObject({
      podSelector: { matchLabels: { [SELECTED]: sandbox.id } },
      policyTypes: expect.arrayContaining(["Ingress", "Egress"]),
    });
    expect([policy.spec.ingress ?? [], policy.spec.egress ?? []]).toEqual([[], []]);
    await provider.delete(sandbox.id);
  });

  test("D10: an override replaces the option of its field", async () => {
    const tolerations = [{ key: "gpu", operator: "Exists" }];
    const provider = new KubernetesProvider({
      ...raw,
      nodeSelector: { "no-such": "node" },
      tolerations: [{ key: "spot", operator: "Exists" }],
      podTemplateOverrides: { nodeSelector: { "kubernetes.io/os": "linux" }, tolerations },
    });
    const sandbox = await provider.getOrCreate();
    const { nodeSelector, tolerations: given } = namespace.get("pod", sandbox.id).spec;
    expect(nodeSelector).toEqual({ "kubernetes.io/os": "linux", "kubernetes.io/arch": expect.any(String) });
    expect(given).toEqual(expect.arrayContaining(tolerations.map((one) => expect.objectContaining(one))));
    expect(JSON.stringify(given)).not.toContain("spot");
    await provider.delete(sandbox.id);
  });

  test("D13: an explicit podTtlSeconds is an annotation and takes effect", async () => {
    const annotation = (id: string) =>
      namespace.get("pod", id).metadata.annotations?.["deepagents.langchain.com/ttl-seconds"];
    const provider = new KubernetesProvider({ ...raw, podTtlSeconds: 600 });
    const sandbox = await provider.getOrCreate();
    expect(annotation(sandbox.id)).toBe("600");
    const { annotations } = await provider.info(sandbox.id);
    expect(annotations["langchain-kubernetes.bitkaio.com/ttl-seconds"]).toBe("600");
    await provider.delete(sandbox.id);
    const other = await new KubernetesProvider(raw).getOrCreate();
    expect(annotation(other.id)).toBeUndefined();
    await provider.delete(other.id);
  });

  test("D15, E2: execConfig has the timeout, the limit of output and the shell of commands", async () => {
    const execConfig = { timeoutSeconds: 1, outputLimitBytes: 1000, shell: "/bin/ash" };
    const provider = new KubernetesProvider({ ...raw, execConfig });
    const sandbox = await provider.getOrCreate();
    expect((await sandbox.execute("echo $0 'a b'")).output).toBe("/bin/ash a b\n");
    const many = await sandbox.execute("yes | head -c 100000");
    expect([many.truncated, many.exitCode]).toEqual([true, 0]);
    expect(many.output.length).toBeLessThanOrEqual(1000);
    expect((await sandbox.execute("echo $0 $$", { timeout: 30, onOutput: () => {} })).output).toContain("/bin/ash");
    expect((await sandbox.execute("yes", { onOutput: () => {} })).output.length).toBeLessThan(1100);
    const late = await sandbox.execute("echo before; sleep 60");
    expect(late).toMatchObject({ output: "before\nCommand timed out after 1s", exitCode: 124 });
    const usual = await new KubernetesProvider(raw).reconnect(sandbox.id);
    const most = await usual.execute("yes | head -c 1048576");
    expect([most.truncated, most.output.length <= 1_000_000]).toEqual([true, true]);
    await provider.delete(sandbox.id);
  });

  test("D7, O18: a namespace of its own is in the id of a sandbox", async () => {
    const provider = new KubernetesProvider({ ...perSandbox, namespaceLabels: { team: "search" } });
    const sandbox = await provider.getOrCreate({ labels: { customer: "acme" } });
    const [home = "", pod = ""] = sandbox.id.split("/");
    expect([home, pod]).toEqual([expect.stringMatching(ID), home]);
    const { metadata } = namespace.get("namespace", home);
    expect(metadata.labels).toMatchObject({ team: "search", [SELECTED]: pod });
    expect(namespace.get("pod", pod, home).metadata.labels?.[SELECTED]).toBe(pod);
    const quota = namespace.get<KubernetesObject & { spec: { hard: object } }>(
      "resourcequota",
      "deepagents-sandbox-quota",
      home,
    );
    expect(quota.spec.hard).toMatchObject({ pods: "1" });
    expect((await provider.list()).sandboxes).toMatchObject([{ id: sandbox.id, namespace: home, phase: "Running" }]);
    await sandbox.execute("echo kept > file");
    const found = await Promise.all([
      provider.reconnect(sandbox.id),
      provider.getOrCreate(sandbox.id),
      KubernetesSandbox.fromId(sandbox.id, perSandbox),
    ]);
    for (const one of found) expect((await one.execute("cat file")).output).toBe("kept\n");
    expect(found.map(({ id }) => id)).toEqual([sandbox.id, sandbox.id, pod]);
    await expect(provider.reconnect(`other/${pod}`)).rejects.toThrow(`Sandbox not found: other/${pod}`);
    await provider.delete(`other/${pod}`);
    expect((await provider.info(sandbox.id)).status).toBe("running");
    expect(await provider.cleanup(0)).toEqual({ deleted: [sandbox.id], kept: 0 });
    await expect(provider.reconnect(sandbox.id)).rejects.toThrow(SandboxNotFoundError);
  });

  test("M2: a namespace of another program is a NamespaceConflictError", async () => {
    const foreign = `deepagents-sandbox-${Date.now().toString(16).slice(-8)}`;
    namespace.kubectl(["create", "namespace", foreign]);
    const conflict = new KubernetesProvider(perSandbox).getOrCreate(`${foreign}/${foreign}`);
    const error = await conflict.catch((error: unknown) => error);
    expect(error).toBeInstanceOf(NamespaceConflictError);
    const sentence = `Namespace "${foreign}" already exists but is not managed by DeepAgents`;
    expect(error).toMatchObject({ message: expect.stringContaining(sentence) });
    namespace.kubectl(["delete", "namespace", foreign, "--wait=false"]);
  });

  test("a thread's sandbox has its id in the state, also with a namespace of its own", async () => {
    const manager = new KubernetesSandboxManager(perSandbox, { defaultLabels: { app: "threads" } });
    const node = manager.createAgentNode(new ObedientModel());
    const config = { configurable: { thread_id: "1" } };
    const messages = (content: string) => [{ role: "user", content }];
    const { sandboxId, sandboxPlace } = await node({ messages: messages("echo text > kept") }, config);
    expect(sandboxId).toMatch(/^(deepagents-sandbox-sp-\w+)\/(sp-\w+)$/);
    await manager.close();
    const other = new KubernetesSandboxManager(perSandbox, { defaultLabels: { app: "threads" } });
    const again = other.createAgentNode(new ObedientModel());
    const state = await again({ messages: messages("cat kept"), sandboxId, sandboxPlace }, config);
    expect(state.sandboxId).toBe(sandboxId);
    expect(JSON.stringify(state.messages)).toContain("text");
    await other.shutdown();
  });

  test("O19: more time and the last use are written to the cluster", async () => {
    const provider = new KubernetesProvider(raw);
    const sandbox = await provider.getOrCreate({ ttlSeconds: 60, ttlIdleSeconds: 600 });
    const annotations = async () => (await provider.info(sandbox.id)).annotations;
    const times = "langchain-kubernetes.bitkaio.com/";
    const before = await annotations();
    expect(before[`${times}ttl-seconds`]).toBe("60");
    expect(Date.parse(before[`${times}last-activity`] ?? "")).not.toBeNaN();
    await provider.extend(sandbox.id, 3600);
    expect(Number((await annotations())[`${times}ttl-seconds`])).toBeGreaterThanOrEqual(3600);
    const old = new Date(Date.now() - 3_600_000).toISOString();
    const renewTime = old.replace("Z", "000Z");
    namespace.kubectl(["patch", "lease", sandbox.id, "--type=merge", `--patch={"spec":{"renewTime":"${renewTime}"}}`]);
    const again = await new KubernetesProvider(raw).reconnect(sandbox.id);
    await again.execute("true");
    const lastActivity = async () => Date.parse((await provider.info(sandbox.id)).lastActivity ?? "");
    await expect.poll(lastActivity, { timeout: 30_000 }).toBeGreaterThan(Date.now() - 120_000);
    expect((await provider.cleanup()).deleted).toEqual([]);
    await provider.delete(sandbox.id);
  });

  test("O21: a claim has labels and times to live, and reconnect looks for it", async () => {
    const provider = new KubernetesProvider(claims);
    const sandbox = await provider.getOrCreate({ labels: { customer: "acme" }, ttlSeconds: 3600 });
    const { metadata } = namespace.get("sandboxclaim", sandbox.id);
    const prefix = "langchain-kubernetes.bitkaio.com/";
    expect(metadata.labels).toMatchObject({ [`${prefix}customer`]: "acme" });
    expect(metadata.annotations).toMatchObject({ [`${prefix}ttl-seconds`]: "3600" });
    const uploads = await sandbox.uploadFiles([
      ["/workspace", new Uint8Array()],
      ["/proc/none/file", new Uint8Array()],
    ]);
    expect(uploads[0]?.error).toBe("is_directory");
    expect(uploads[1]?.error).not.toBeNull();
    await provider.delete(sandbox.id);
    await expect(provider.reconnect(sandbox.id)).rejects.toThrow(`Sandbox not found: ${sandbox.id}`);
  });
});
