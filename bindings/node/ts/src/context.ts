/**
 * The LangGraph run of a call. LangChain keeps it in an `AsyncLocalStorage` that it registers globally, so this module
 * does not import LangChain. Native code does not preserve it, so it is read before a native call.
 */

import type { AsyncLocalStorage } from "node:async_hooks";

const STORAGE = Symbol.for("ls:tracing_async_local_storage");
const CONFIG = Symbol.for("lc:child_config");

/** The parts of a run's configuration that are used. */
export interface RunConfig {
  configurable?: Record<string, unknown>;
  signal?: AbortSignal;
  metadata?: Record<string, unknown>;
}

type Storage = AsyncLocalStorage<{ extra?: Record<symbol, RunConfig | undefined> }>;

/** Returns the configuration of the current run, if there is one. */
export function currentRun(): RunConfig | undefined {
  const storage = (globalThis as Record<symbol, unknown>)[STORAGE] as Storage | undefined;
  return storage?.getStore()?.extra?.[CONFIG];
}

/** Returns a signal that is aborted when either signal is. */
export function eitherSignal(one: AbortSignal | undefined, other: AbortSignal | undefined): AbortSignal | undefined {
  if (one === undefined || other === undefined) return one ?? other;
  return AbortSignal.any([one, other]);
}

const HOOKS = new Set(["before_agent", "before_model", "after_model", "after_agent"]);
const OWN_DIRECTORIES = ["/large_tool_results/", "/conversation_history/", "/blobs/"];

/**
 * Reports whether a call that writes these files comes from an agent's middleware. Such a call must not report lost
 * files, because the model would never read the report.
 */
export function isMiddleware(written: readonly string[]): boolean {
  const metadata = currentRun()?.metadata;
  if (metadata === undefined || !("ls_integration" in metadata)) return false;
  const node = String(metadata.langgraph_node ?? "");
  const isHook = node === "model_request" || HOOKS.has(node.slice(node.lastIndexOf(".") + 1));
  return isHook || written.some((path) => OWN_DIRECTORIES.some((directory) => path.startsWith(directory)));
}
