/** Providers and errors. */

import { once } from "node:events";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, test, vi } from "vitest";
import {
  forwardLogs,
  KubernetesProvider,
  type KubernetesProviderOptions,
  KubernetesSandbox,
  KubernetesSandboxManager,
  MissingDependencyError,
  NamespaceConflictError,
  Sandbox,
  SandboxError,
  SandboxExecError,
  SandboxNotFoundError,
  SandboxRouterError,
  SandboxStartupTimeoutError,
  TemplateNotFoundError,
  verifyAudit,
} from "../dist/esm/index.js";
import native from "../native.cjs";
import { sleep } from "./behaviours.js";

const LOCAL = { mode: "local" } as const;

describe("options", () => {
  test("an unknown mode is refused with the valid ones", () => {
    const wrong = () => new KubernetesProvider({ mode: "x" as never });
    expect(wrong).toThrow("Unknown mode: 'x'. Must be 'agent-sandbox', 'raw' or 'local'.");
    expect(wrong).toThrow(TypeError);
  });

  test("agent-sandbox mode is the default and needs a template", () => {
    expect(() => new KubernetesProvider()).toThrow(
      'KubernetesProvider: "templateName" is required when mode="agent-sandbox". Example: "python-sandbox-template"',
    );
    new KubernetesProvider({ templateName: "python", routerUrl: "http://localhost:8080" });
    new KubernetesProvider({ onlyAdopts: true });
  });

  test("an unknown option is refused with the nearest one", () => {
    expect(() => new KubernetesProvider({ mode: "raw", cpuLimits: "1" } as never)).toThrow(/cpuLimit/);
    expect(() => new KubernetesProvider({ mode: "raw", templateName: "t" })).toThrow(/templateName/);
  });

  test("every option of the document is accepted", () => {
    const shared = { namespace: "deepagents-sandboxes", startupTimeoutMs: 120_000, executeTimeoutMs: 300_000 };
    new KubernetesProvider({
      ...shared,
      mode: "agent-sandbox",
      routerUrl: "http://localhost:8080",
      templateName: "python",
      serverPort: 8888,
      kubeApiUrl: "http://localhost:8001",
      kubeToken: "secret",
      warmPoolName: "pool",
      defaultLabels: { app: "a" },
      ttlSeconds: 3600,
      ttlIdleSeconds: 600,
    });
    new KubernetesProvider({
      ...shared,
      mode: "raw",
      image: "python:3.12-slim",
      imagePullPolicy: "IfNotPresent",
      workdir: "/workspace",
      command: ["sleep", "infinity"],
      env: { A: "b" },
      cpuRequest: "100m",
      cpuLimit: "1000m",
      memoryRequest: "256Mi",
      memoryLimit: "1Gi",
      ephemeralStorageLimit: "5Gi",
      blockNetwork: true,
      runAsUser: 1000,
      runAsGroup: 1000,
      seccompProfile: "RuntimeDefault",
      namespacePerSandbox: false,
      kubeconfigPath: "/nowhere",
      context: "kind",
      warmPoolSize: 3,
    });
  });

  test("the defaults of the document are those of a provider", async () => {
    const source = await readFile(new URL("../ts/src/generated-options.ts", import.meta.url), "utf8");
    expect(source).toContain('@default "deepagents-sandboxes"');
    const provider = new KubernetesProvider({ mode: "raw", kubeconfigPath: await kubeconfig("http://127.0.0.1:9") });
    const scope = provider.native.defaultScope({});
    const same = new KubernetesProvider({ mode: "raw", namespace: "deepagents-sandboxes", image: "python:3.12-slim" });
    expect(same.native.defaultScope({})).toBe(scope);
    expect(new KubernetesProvider({ mode: "raw", namespace: "default" }).native.defaultScope({})).not.toBe(scope);
  });

  test("milliseconds must be whole", () => {
    expect(() => new KubernetesProvider({ ...LOCAL, executeTimeoutMs: "1s" as never })).toThrow(/milliseconds/);
  });

  test("the default time limit of commands counts", async () => {
    await using sandbox = await Sandbox.create({ ...LOCAL, executeTimeoutMs: 1000 });
    expect((await sandbox.execute("sleep 30")).exitCode).toBe(124);
  });

  test("an error names options as TypeScript does", () => {
    const direct = { templateName: "t", connectionMode: "direct" } as const;
    expect(() => new KubernetesProvider(direct)).toThrow(/requires routerUrl/);
  });
});

describe("the native module", () => {
  test("has exactly the members that its types declare", async () => {
    const types = await readFile(new URL("../native.d.cts", import.meta.url), "utf8");
    for (const [, name, body] of types.matchAll(/^export class (\w+) \{\n([\s\S]*?)^\}/gm)) {
      const declared = [...(body as string).matchAll(/^ {2}(?:readonly )?(\w+)(?=[(:?])/gm)].map(
        ([, member]) => member,
      );
      const made = (native as unknown as Record<string, { prototype: object }>)[name as string];
      const members = Object.getOwnPropertyNames(made?.prototype);
      expect(new Set(members), name).toEqual(new Set([...declared, "constructor"]));
    }
    const functions = [...types.matchAll(/^export (?:class|function|const) (\w+)/gm)].map(([, name]) => name);
    expect(new Set(Object.keys(native))).toEqual(new Set(functions));
  });
});

describe("a provider", () => {
  const provider = new KubernetesProvider(LOCAL);
  const label = { test: `provider-${process.pid}-${Date.now()}` };
  afterAll(() => provider.deleteAll(label));

  test("finds a sandbox by its id, given alone or in an object", async () => {
    const sandbox = await provider.getOrCreate({ labels: label });
    await sandbox.write("/tmp/f", "kept");
    for (const wanted of [sandbox.id, { sandboxId: sandbox.id }]) {
      const found = await provider.getOrCreate(wanted);
      expect(found.id).toBe(sandbox.id);
      expect((await found.read("/tmp/f")).content).toBe("kept");
    }
    expect((await provider.reconnect(sandbox.id)).id).toBe(sandbox.id);
    expect((await KubernetesSandbox.fromId(sandbox.id, LOCAL)).id).toBe(sandbox.id);
    const connected = await Sandbox.connect(LOCAL, sandbox.id);
    expect(await connected.readText("/tmp/f")).toBe("kept");
  });

  test("makes a new sandbox with another id where there is none", async () => {
    const sandbox = await provider.getOrCreate({ sandboxId: "none-of-this-id", labels: label });
    expect(sandbox.id).not.toBe("none-of-this-id");
  });

  test("reconnect rejects where there is none", async () => {
    const error = await provider.reconnect("none-of-this-id").catch((error: unknown) => error);
    expect(error).toBeInstanceOf(SandboxNotFoundError);
    expect(error).toMatchObject({ name: "SandboxNotFoundError", code: "not_found" });
  });

  test("lists by labels and status, counts, and cleans up", async () => {
    const own = { ...label, part: "list" };
    const one = await provider.getOrCreate({ labels: own, ttlSeconds: 3600 });
    const { sandboxes, items, cursor } = await provider.list({ labels: own, status: "running" });
    expect(sandboxes).toEqual(items);
    expect(cursor).toBeUndefined();
    expect(sandboxes).toMatchObject([{ id: one.id, sandboxId: one.id, labels: own, status: "running" }]);
    expect(Date.parse(sandboxes[0]?.createdAt ?? "")).toBeLessThanOrEqual(Date.now());
    expect((await provider.list({ labels: own, status: "terminated" })).sandboxes).toEqual([]);
    await expect(provider.list({ status: "odd" as never })).rejects.toThrow(TypeError);
    expect((await provider.stats()).running).toBeGreaterThan(0);
    expect((await provider.cleanup()).deleted).not.toContain(one.id);
    await provider.extend(one.id, 60);
    expect(await KubernetesSandbox.deleteAll(own, LOCAL)).toBe(1);
    expect((await provider.list({ labels: own })).sandboxes).toEqual([]);
  });

  test("deleting twice is no error, by id or as Deep Agents' types have it", async () => {
    const sandbox = await provider.getOrCreate({ labels: label });
    await provider.delete(sandbox.id);
    await provider.delete({ sandboxId: sandbox.id });
  });

  test("a call that a mode does not support is an error", async () => {
    await expect(provider.suspend("sp-none")).rejects.toThrow(SandboxError);
    await expect(provider.adopt("claim")).rejects.toThrow(SandboxError);
  });

  test("a policy binds files and commands", async () => {
    const sandbox = await provider.getOrCreate({ labels: label, policy: { deny_commands: ["rm"] } });
    expect((await sandbox.execute("rm -rf /tmp/x")).exitCode).toBe(1);
    await expect(provider.getOrCreate({ policy: { nonsense: true } })).rejects.toThrow(TypeError);
  });
});

describe("audit and log", () => {
  test("a function receives every operation, before and after it", async () => {
    const events: Record<string, unknown>[] = [];
    const provider = new KubernetesProvider({ ...LOCAL, audit: (event) => void events.push(event) });
    const sandbox = await provider.getOrCreate();
    await sandbox.execute("echo audited");
    await sandbox.close();
    await provider.flushAudit();
    const executed = events.filter((event) => event.operation === "execute");
    expect(executed).toHaveLength(2);
    expect(JSON.stringify(executed)).toContain("echo audited");
  });

  test("a strict audit whose function throws keeps an operation from being done", async () => {
    let refuse = false;
    const audit = () => {
      if (refuse) throw new Error("the disk is full");
    };
    const provider = new KubernetesProvider({ ...LOCAL, audit, strictAudit: true });
    const sandbox = await provider.getOrCreate();
    refuse = true;
    const { exitCode, output } = await sandbox.execute("touch /tmp/done");
    expect([exitCode, output]).toEqual([125, expect.stringContaining("the disk is full")]);
    refuse = false;
    expect((await sandbox.execute("test -e /tmp/done")).exitCode).toBe(1);
    await sandbox.close();
  });

  test("an audit file is a chain that can be verified", async () => {
    const auditFile = join(await mkdtemp(join(tmpdir(), "sandpod-")), "audit.jsonl");
    const provider = new KubernetesProvider({ ...LOCAL, auditFile });
    const sandbox = await provider.getOrCreate();
    await sandbox.execute("true");
    await sandbox.close();
    await provider.flushAudit();
    expect(verifyAudit(auditFile)).toBeGreaterThan(2);
    await writeFile(auditFile, (await readFile(auditFile, "utf8")).replace("true", "false"));
    expect(() => verifyAudit(auditFile)).toThrow(SandboxError);
  });

  test("the log is handed to a function, until there is none", async () => {
    const lines: string[] = [];
    const isOurs = (line: string) => line.includes("sp-none of thread logged");
    forwardLogs((level, logger, text) => lines.push(`${level} ${logger} ${text}`));
    const manager = new KubernetesSandboxManager(LOCAL, { scope: `log-${process.pid}` });
    const setUp = manager.createSetupNode();
    const config = { configurable: { thread_id: "logged" } };
    await setUp({ sandboxId: "sp-none" }, config);
    await vi.waitFor(() => expect(lines.filter(isOurs)).toHaveLength(1), 10_000);
    expect(lines.find(isOurs)).toBe(
      "info sandpod.agents.threads The sandbox sp-none of thread logged is gone: the thread gets another one.",
    );
    expect(lines.filter((line) => !/^(error|warn|info|debug) sandpod/.test(line))).toEqual([]);
    forwardLogs();
    await setUp({ sandboxId: "sp-none" }, config);
    await sleep(100);
    expect(lines.filter(isOurs)).toHaveLength(1);
    await manager.shutdown();
  });
});

describe("errors", () => {
  test("each class is a SandboxError with a code and a cause, also for Deep Agents", async () => {
    const { SandboxError: OfDeepAgents } = await import("deepagents");
    const classes = [
      MissingDependencyError,
      NamespaceConflictError,
      SandboxExecError,
      SandboxNotFoundError,
      SandboxRouterError,
      SandboxStartupTimeoutError,
      TemplateNotFoundError,
    ];
    for (const Class of classes) {
      const cause = new Error("why");
      const error = new Class("what", "code", cause);
      expect(error).toBeInstanceOf(SandboxError);
      expect(error).toMatchObject({ name: Class.name, message: "what", code: "code", cause });
      expect(SandboxError.isInstance(error)).toBe(true);
      expect(OfDeepAgents.isInstance(error)).toBe(true);
    }
    expect(SandboxError.isInstance(new Error("other"))).toBe(false);
  });

  test("an API server that refuses connections is a SandboxRouterError", async () => {
    const provider = new KubernetesProvider({ mode: "raw", kubeconfigPath: await kubeconfig("http://127.0.0.1:9") });
    await expect(provider.getOrCreate()).rejects.toThrow(SandboxRouterError);
  });

  test("a creation can be given up", async () => {
    const server = createServer(() => {}).listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    const provider = new KubernetesProvider({
      mode: "raw",
      kubeconfigPath: await kubeconfig(`http://127.0.0.1:${port}`),
    });
    const signal = AbortSignal.timeout(200);
    await expect(provider.getOrCreate({ signal })).rejects.toMatchObject({ name: "TimeoutError" });
    server.closeAllConnections();
    server.close();
  });

  test("wrong arguments reject and never throw", async () => {
    const provider = new KubernetesProvider(LOCAL as KubernetesProviderOptions);
    const made = provider.getOrCreate({ sandboxId: 7 as never });
    await expect(made).rejects.toThrow();
  });

  test("a plain sandbox rejects with the guest's own code", async () => {
    await using sandbox = await Sandbox.create(LOCAL);
    const error = await sandbox.read("/none").catch((error: unknown) => error);
    expect(error).toBeInstanceOf(SandboxExecError);
    expect(error).toMatchObject({ code: "not_found" });
    await expect(sandbox.execute("sleep 9", { signal: AbortSignal.timeout(100) })).rejects.toMatchObject({
      name: "TimeoutError",
    });
  });
});

async function kubeconfig(server: string): Promise<string> {
  const path = join(await mkdtemp(join(tmpdir(), "sandpod-")), "kubeconfig");
  const config = {
    apiVersion: "v1",
    kind: "Config",
    clusters: [{ name: "c", cluster: { server } }],
    users: [{ name: "u", user: {} }],
    contexts: [{ name: "x", context: { cluster: "c", user: "u" } }],
    "current-context": "x",
  };
  await writeFile(path, JSON.stringify(config));
  return path;
}
