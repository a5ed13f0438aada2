/** Errors of sandboxes and providers. Their messages and codes come from the native half. */

const SANDBOX_ERROR = Symbol.for("sandbox.error");

/** A failed call. `code` identifies the kind of failure. */
export class SandboxError extends Error {
  override name = "SandboxError";
  readonly code: string;
  /** Marks the error as a sandbox error for Deep Agents. */
  readonly [SANDBOX_ERROR] = true;

  constructor(message: string, code = "internal", cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
  }

  /** Reports whether a value is such an error, including those of other copies of this package and of Deep Agents. */
  static isInstance(error: unknown): error is SandboxError {
    return typeof error === "object" && error !== null && SANDBOX_ERROR in error;
  }
}

/** The sandbox does not exist, or its Pod is gone. */
export class SandboxNotFoundError extends SandboxError {
  override name = "SandboxNotFoundError";

  constructor(message: string, code = "not_found", cause?: unknown) {
    super(message, code, cause);
  }
}

/** The sandbox was not ready in time. */
export class SandboxStartupTimeoutError extends SandboxError {
  override name = "SandboxStartupTimeoutError";

  constructor(message: string, code = "timeout", cause?: unknown) {
    super(message, code, cause);
  }
}

/** A command or a file operation failed. */
export class SandboxExecError extends SandboxError {
  override name = "SandboxExecError";
}

/** The namespace that a sandbox needs exists and is not sandpod's. */
export class NamespaceConflictError extends SandboxError {
  override name = "NamespaceConflictError";

  constructor(message: string, code = "already_exists", cause?: unknown) {
    super(message, code, cause);
  }
}

/** The router, the API server or the guest cannot be reached. */
export class SandboxRouterError extends SandboxError {
  override name = "SandboxRouterError";

  constructor(message: string, code = "unavailable", cause?: unknown) {
    super(message, code, cause);
  }
}

/** The SandboxTemplate does not exist. */
export class TemplateNotFoundError extends SandboxError {
  override name = "TemplateNotFoundError";

  constructor(message: string, code = "start_failed", cause?: unknown) {
    super(message, code, cause);
  }
}

/** An optional package is not installed. */
export class MissingDependencyError extends SandboxError {
  override name = "MissingDependencyError";

  constructor(message: string, code = "missing_dependency", cause?: unknown) {
    super(message, code, cause);
  }
}

const CLASSES: Record<string, new (message: string, code: string, cause?: unknown) => Error> = {
  NamespaceConflictError,
  SandboxError,
  SandboxExecError,
  SandboxNotFoundError,
  SandboxRouterError,
  SandboxStartupTimeoutError,
  TemplateNotFoundError,
};

/** Converts a rejection of the native half to an error of its class. */
export function errorOf(rejection: unknown, signal?: AbortSignal): unknown {
  if (!(rejection instanceof Error) || !rejection.message.startsWith("{")) return rejection;
  const failed = parsed(rejection.message);
  if (failed === undefined) return rejection;
  if (failed.class === "AbortError") {
    return signal?.reason ?? new DOMException(failed.message, "AbortError");
  }
  if (failed.class === "TypeError") {
    return Object.assign(new TypeError(failed.message), { code: failed.code });
  }
  return new (CLASSES[failed.class] ?? SandboxError)(failed.message, failed.code);
}

function parsed(message: string): { class: string; code: string; message: string } | undefined {
  try {
    return JSON.parse(message);
  } catch {
    return undefined;
  }
}
