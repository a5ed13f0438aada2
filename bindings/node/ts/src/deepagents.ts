/** Loads Deep Agents on first use. */

import { MissingDependencyError } from "./errors.js";

type DeepAgents = typeof import("deepagents");

/** Loads a package that users install themselves. */
export async function optional<T>(load: () => Promise<T>, name: string, purpose: string): Promise<T> {
  try {
    return await load();
  } catch (cause) {
    if ((cause as { code?: unknown }).code !== "ERR_MODULE_NOT_FOUND" && !isMissing(cause)) throw cause;
    const message = `Missing dependencies for ${purpose}. Install with: npm install ${name}`;
    throw new MissingDependencyError(message, "missing_dependency", cause);
  }
}

function isMissing(error: unknown): boolean {
  return (error as { code?: unknown }).code === "MODULE_NOT_FOUND";
}

export function deepagents(): Promise<DeepAgents> {
  const packages = "deepagents langchain @langchain/core @langchain/langgraph zod";
  return optional(() => import("deepagents"), packages, "Deep Agents");
}

/** Makes a class a subclass of Deep Agents' `BaseSandbox`. The class overrides every method. */
export async function joinBaseSandbox(root: { prototype: object }): Promise<void> {
  const { BaseSandbox } = await deepagents();
  if (!(root.prototype instanceof BaseSandbox)) Object.setPrototypeOf(root.prototype, BaseSandbox.prototype);
}
