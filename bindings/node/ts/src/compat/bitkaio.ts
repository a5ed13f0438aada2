/**
 * A drop-in replacement for `@bitkaio/langchain-kubernetes` with its names and defaults. Objects, labels and annotations
 * in the cluster have the names of that package.
 *
 * @example
 * import { KubernetesProvider } from "sandpod/compat/bitkaio";
 */

import {
  SandboxError,
  SandboxNotFoundError,
  SandboxRouterError,
  SandboxStartupTimeoutError,
  TemplateNotFoundError,
} from "../errors.js";
import {
  type AgentOptions,
  KubernetesSandboxManager as Manager,
  type KubernetesSandboxManagerOptions as ManagerOptions,
} from "../manager.js";
import type { KubernetesProviderOptions } from "../options.js";
import {
  type CleanupResult,
  type GetOrCreateOptions,
  type SandboxInfo as Info,
  KubernetesProvider as Provider,
  type ProviderStats,
  type SandboxListOptions,
  type SandboxStatus,
  type WarmPoolStatus,
} from "../provider.js";
import { KubernetesSandbox } from "../sandbox.js";

export {
  MissingDependencyError,
  NamespaceConflictError,
  SandboxError,
  SandboxExecError,
  SandboxNotFoundError,
  SandboxRouterError,
  SandboxStartupTimeoutError,
  TemplateNotFoundError,
} from "../errors.js";
export type { AgentOptions, CleanupResult, GetOrCreateOptions, ProviderStats, WarmPoolStatus };
export { KubernetesSandbox };

/** The options of commands. */
export interface ExecuteConfig {
  /** The container in which commands run, which is always `sandbox`. */
  container: string;
  /** Timeout of commands in seconds. Default: that of `executeTimeoutMs`. */
  timeoutSeconds: number;
  /** Limit of kept output in bytes. Default: 1,000,000. */
  outputLimitBytes: number;
  /** Shell of commands. Commands of another shell than `/bin/sh`, the default, share no shell state. */
  shell: string;
}

/** The options of a provider. */
export interface KubernetesProviderConfig extends KubernetesProviderOptions {
  execConfig?: Partial<ExecuteConfig>;
}

/** The options of a manager. */
export type KubernetesSandboxManagerOptions = ManagerOptions;

/** The details of a sandbox. */
export interface SandboxInfo extends Info {
  /** The Kubernetes phase of its Pod. */
  phase: string;
}

export interface SandboxListResponse {
  sandboxes: SandboxInfo[];
  items: SandboxInfo[];
  cursor?: string;
}

const PHASES: Record<SandboxStatus, string> = {
  running: "Running",
  warm: "Running",
  pending: "Pending",
  suspended: "Pending",
  terminated: "Succeeded",
};

/** `KubernetesProvider` of this package with the object names of the other package. */
export class KubernetesProvider extends Provider {
  readonly #options: KubernetesProviderConfig;

  constructor(options: KubernetesProviderConfig = {}) {
    super(optionsOf(options));
    this.#options = options;
  }

  override async getOrCreate(options: GetOrCreateOptions | string = {}): Promise<KubernetesSandbox> {
    const sandboxId = typeof options === "string" ? options : options.sandboxId;
    return this.#inWords(sandboxId, super.getOrCreate(options));
  }

  override async reconnect(sandboxId: string, options: { signal?: AbortSignal } = {}): Promise<KubernetesSandbox> {
    return this.#inWords(sandboxId, super.reconnect(sandboxId, options));
  }

  override async list(options: SandboxListOptions = {}): Promise<SandboxListResponse> {
    const { sandboxes, cursor } = await super.list(options);
    const withPhase = sandboxes.map((info) => ({ ...info, phase: PHASES[info.status] }));
    return { sandboxes: withPhase, items: withPhase, cursor };
  }

  /** Replaces the message of an error by that of the other package. The original error is its cause. */
  async #inWords<T>(sandboxId: string | undefined, made: Promise<T>): Promise<T> {
    try {
      return await made;
    } catch (error) {
      throw this.#error(error, sandboxId ?? "of this request");
    }
  }

  #error(error: unknown, sandboxId: string): unknown {
    if (!(error instanceof SandboxError)) return error;
    const { templateName, namespace = "deepagents-sandboxes", routerUrl, startupTimeoutMs = 120_000 } = this.#options;
    const { code } = error;
    if (error instanceof SandboxNotFoundError) {
      return new SandboxNotFoundError(`Sandbox not found: ${sandboxId}`, code, error);
    }
    if (error instanceof SandboxStartupTimeoutError) {
      const message = `Sandbox ${sandboxId} did not start within ${startupTimeoutMs / 1000}s`;
      return new SandboxStartupTimeoutError(`${message}: ${error.message}`, code, error);
    }
    if (error instanceof TemplateNotFoundError) {
      const message = `SandboxTemplate "${templateName}" not found in namespace "${namespace}"`;
      return new TemplateNotFoundError(message, code, error);
    }
    if (error instanceof SandboxRouterError && routerUrl) {
      return new SandboxRouterError(`${error.message} (url: ${routerUrl})`, code, error);
    }
    return error;
  }
}

/** `KubernetesSandboxManager` of this package with the provider of this module. */
export class KubernetesSandboxManager extends Manager {
  constructor(providerOptions: KubernetesProviderConfig, options: KubernetesSandboxManagerOptions = {}) {
    super(providerOptions, options);
  }

  /** @internal */
  protected override makeProvider(options: KubernetesProviderConfig): KubernetesProvider {
    return new KubernetesProvider(options);
  }
}

function optionsOf(options: KubernetesProviderConfig): KubernetesProviderConfig {
  // Local sandboxes have no objects with names and labels.
  if (options.mode === "local") return options;
  if ((options.mode ?? "agent-sandbox") === "agent-sandbox" && !options.routerUrl) {
    const message = 'KubernetesProvider: "routerUrl" is required when mode="agent-sandbox". Example: ';
    throw new TypeError(`${message}"http://sandbox-router-svc.default.svc.cluster.local:8080"`);
  }
  return {
    labelPrefix: "langchain-kubernetes.bitkaio.com/",
    naming: "langchain-kubernetes-js",
    ...options,
    defaultLabels: { "managed-by": "langchain-kubernetes", ...options.defaultLabels },
  };
}
