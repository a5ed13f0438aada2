/** The options of providers. */

import type { AuditCallback } from "./audit.js";
import type { GeneratedOptions } from "./generated-options.js";
import { direct, native } from "./native.js";

export type SandboxMode = "agent-sandbox" | "raw" | "local";

/** The options of a `KubernetesProvider`. */
export interface KubernetesProviderOptions extends GeneratedOptions {
  /** The backend of sandboxes: agent-sandbox, plain Pods, or this machine. Default: "agent-sandbox". */
  mode?: SandboxMode;
  /** Receives an event before and after every operation. To write a file, use `auditFile`. */
  audit?: AuditCallback;
  /** The provider only adopts claims of other programs, so it needs no template. */
  onlyAdopts?: boolean;
  /** @deprecated Use `startupTimeoutMs`. */
  startupTimeoutSeconds?: number;
}

/** The options that the native half reads. */
export function optionsOf(options: KubernetesProviderOptions): Record<string, unknown> {
  const { mode, audit, onlyAdopts, ...others } = options;
  return Object.fromEntries(Object.entries(others).filter(([, value]) => value !== undefined));
}

/**
 * Reads options from the `SANDPOD_*` variables and the configuration file; docs/configuration.md describes them.
 *
 * @example
 * const provider = new KubernetesProvider({ ...loadOptions(), mode: "raw" });
 */
export function loadOptions(path?: string): KubernetesProviderOptions {
  return JSON.parse(direct(() => native.loadOptions(path)));
}
