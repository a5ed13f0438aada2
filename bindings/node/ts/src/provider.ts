/** Providers, which create, find and delete sandboxes. */

import type * as addon from "../../native.cjs";
import { AuditRecorder } from "./audit.js";
import { SandboxError } from "./errors.js";
import { call, direct, native, packageDir } from "./native.js";
import { type KubernetesProviderOptions, optionsOf } from "./options.js";
import { Sandbox } from "./plain.js";
import { type KubernetesSandbox, prepare, sandboxOf } from "./sandbox.js";

/** The requested sandbox, and the properties of a new one. */
export interface GetOrCreateOptions {
  /** The sandbox to find. If there is none, a new one with another id is created. */
  sandboxId?: string;
  /** Labels of a new sandbox, prefixed with `labelPrefix`. */
  labels?: Record<string, string>;
  /** Seconds after creation at which a new sandbox is deleted. Default: that of the provider's options. */
  ttlSeconds?: number | null;
  /** Seconds without a call after which a new sandbox is deleted. Default: that of the provider's options. */
  ttlIdleSeconds?: number | null;
  /** Policy of the sandbox; see docs/policy.md. */
  policy?: Record<string, unknown> | null;
  /** Cancels the creation and deletes the created objects. */
  signal?: AbortSignal;
}

export type SandboxStatus = "running" | "warm" | "suspended" | "pending" | "terminated";

/** The details of a sandbox. */
export interface SandboxInfo {
  id: string;
  /** The same as `id`, as Deep Agents' types name it. */
  sandboxId: string;
  namespace: string;
  labels: Record<string, string>;
  annotations: Record<string, string>;
  /** ISO 8601. */
  createdAt?: string;
  /** ISO 8601. */
  lastActivity?: string;
  threadId?: string;
  status: SandboxStatus;
  /** The connection mode. */
  connection?: string;
  /** The directories that survive the loss of the Pod. */
  durableDirs: string[];
}

export interface SandboxListOptions {
  cursor?: string;
  labels?: Record<string, string>;
  status?: SandboxStatus;
}

/** One page of sandboxes. */
export interface SandboxListResponse {
  sandboxes: SandboxInfo[];
  /** The same as `sandboxes`, as Deep Agents' types name it. */
  items: SandboxInfo[];
  /** Where the next page begins, if there is one. */
  cursor?: string;
}

export interface CleanupResult {
  /** Ids of the deleted sandboxes. */
  deleted: string[];
  kept: number;
}

export interface WarmPoolStatus {
  available: number;
  active: number;
  total: number;
  target: number;
}

export interface ProviderStats {
  total: number;
  running: number;
  warm: number;
  idle: number;
  threadIds: string[];
}

/** The timeout of `deleteAll` in seconds. */
const DELETION_LIMIT = 120;

/**
 * Creates and finds sandboxes on Kubernetes, or with `mode: "local"` on this machine. To find a sandbox again, keep its
 * `id`. The constructor does not connect to a cluster. Failed calls reject with a `SandboxError`.
 *
 * @example
 * const provider = new KubernetesProvider({ mode: "raw", image: "python:3.12-slim" });
 * const sandbox = await provider.getOrCreate();
 * const { output } = await sandbox.execute("python3 -c 'print(42)'");
 * await provider.delete(sandbox.id);
 */
export class KubernetesProvider {
  /** @internal */
  readonly native: addon.Provider;

  /** Validates the options. Unsupported ones are rejected by name. */
  constructor(options: KubernetesProviderOptions = {}) {
    const { mode = "agent-sandbox", audit, onlyAdopts = false } = options;
    const recorder = typeof audit === "function" ? new AuditRecorder(audit) : undefined;
    const receive = recorder && ((events: string) => recorder.receive(events));
    const text = JSON.stringify(optionsOf(options));
    this.native = direct(() => new native.Provider(mode, text, packageDir(), onlyAdopts, receive));
    Object.defineProperty(this, "native", { enumerable: false });
  }

  /** Finds the sandbox of that id, or creates one. */
  async getOrCreate(options: GetOrCreateOptions | string = {}): Promise<KubernetesSandbox> {
    await prepare();
    return sandboxOf(await this.make(typeof options === "string" ? { sandboxId: options } : options), this);
  }

  /** @internal */
  async make({ signal, policy, ...request }: GetOrCreateOptions): Promise<addon.Sandbox> {
    const text = textOf(policy);
    return call("get_or_create", signal, (number) => this.native.getOrCreate(number, { ...request, policy: text }));
  }

  /** @internal */
  async plain(options: GetOrCreateOptions): Promise<Sandbox> {
    return new Sandbox(await this.make(options), this);
  }

  /** @internal */
  async plainOf(sandboxId: string): Promise<Sandbox> {
    return new Sandbox(await call("reconnect", undefined, (number) => this.native.reconnect(number, sandboxId)), this);
  }

  /** Finds the sandbox of that id, or rejects with `SandboxNotFoundError`. */
  async reconnect(sandboxId: string, options: { signal?: AbortSignal } = {}): Promise<KubernetesSandbox> {
    await prepare();
    const found = await call("reconnect", options.signal, (number) => this.native.reconnect(number, sandboxId));
    return sandboxOf(found, this);
  }

  /** Uses the sandbox of a SandboxClaim that another program created and owns. Only in agent-sandbox mode. */
  async adopt(claimName: string, options: { signal?: AbortSignal } = {}): Promise<KubernetesSandbox> {
    await prepare();
    const found = await call("adopt", options.signal, (number) => this.native.adopt(number, claimName));
    return sandboxOf(found, this);
  }

  /** Lists one page of sandboxes. Pass its `cursor` to get the next page. */
  async list({ cursor, labels = {}, status }: SandboxListOptions = {}): Promise<SandboxListResponse> {
    const page = await call("list", undefined, () => this.native.list(cursor, labels, status));
    const sandboxes = page.sandboxes.map(infoOf);
    return { sandboxes, items: sandboxes, cursor: page.cursor };
  }

  /** Returns the details of a sandbox. */
  async info(sandboxId: string): Promise<SandboxInfo> {
    return infoOf(await call("info", undefined, () => this.native.info(sandboxId)));
  }

  /** Deletes expired sandboxes. `maxIdleSeconds` overrides their own idle TTLs. */
  async cleanup(maxIdleSeconds?: number): Promise<CleanupResult> {
    return call("cleanup", undefined, () => this.native.cleanup(maxIdleSeconds));
  }

  /** Counts the sandboxes. Those without a call for `idleThresholdSeconds` are idle. */
  async stats(idleThresholdSeconds = 300): Promise<ProviderStats> {
    return call("stats", undefined, () => this.native.stats(idleThresholdSeconds));
  }

  /** Counts the Pods of the warm pool. */
  async poolStatus(): Promise<WarmPoolStatus> {
    return call("pool_status", undefined, () => this.native.poolStatus());
  }

  /** Extends the lifetime of a sandbox: it is deleted `ttlSeconds` from now. */
  async extend(sandboxId: string, ttlSeconds: number): Promise<void> {
    await call("extend", undefined, () => this.native.extend(sandboxId, ttlSeconds));
  }

  /** Deletes the Pod of a sandbox and keeps its volumes until `resume`. Only in agent-sandbox mode. */
  async suspend(sandboxId: string, { force = false } = {}): Promise<void> {
    await call("suspend", undefined, () => this.native.suspend(sandboxId, force));
  }

  /** Creates a new Pod for a suspended sandbox. Pass the policy of the sandbox again, if it has one. */
  async resume(
    sandboxId: string,
    { policy, signal }: Pick<GetOrCreateOptions, "policy" | "signal"> = {},
  ): Promise<KubernetesSandbox> {
    await prepare();
    const text = textOf(policy);
    return sandboxOf(await call("resume", signal, (number) => this.native.resume(number, sandboxId, text)), this);
  }

  /** Deletes a sandbox and all its objects. Deleting a missing sandbox is not an error. */
  async delete(sandboxId: string | { sandboxId: string }): Promise<void> {
    const id = typeof sandboxId === "string" ? sandboxId : sandboxId.sandboxId;
    await call("delete", undefined, () => this.native.delete(id));
  }

  /** Deletes every sandbox with these labels and returns how many there were. */
  async deleteAll(labels: Record<string, string>): Promise<number> {
    const { deleted, error } = await call("delete_all", undefined, () => this.native.deleteAll(labels, DELETION_LIMIT));
    if (error !== undefined) throw new SandboxError(error, "not_deleted");
    return deleted.length;
  }

  /** Stops background work, such as filling the warm pool. Sandboxes are kept. */
  async close(): Promise<void> {
    await call("close", undefined, () => this.native.close());
  }

  /** Waits until the audit has recorded all events so far, or for five seconds. */
  async flushAudit(): Promise<void> {
    await call("flush_audit", undefined, () => this.native.flushAudit());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

function textOf(policy: Record<string, unknown> | null | undefined): string | undefined {
  return policy === undefined || policy === null ? undefined : JSON.stringify(policy);
}

function infoOf({ createdAt, lastActivity, ...info }: addon.Info): SandboxInfo {
  const time = (milliseconds?: number) =>
    milliseconds === undefined ? undefined : new Date(milliseconds).toISOString();
  return {
    ...info,
    sandboxId: info.id,
    status: info.status as SandboxStatus,
    createdAt: time(createdAt),
    lastActivity: time(lastActivity),
  };
}
