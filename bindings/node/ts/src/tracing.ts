/** Spans of calls, if `@opentelemetry/api` is loaded. They contain no commands, paths or file contents. */

import { createRequire } from "node:module";
import { SandboxError } from "./errors.js";

type Api = typeof import("@opentelemetry/api");

/** The key of the global object under which the API registers itself. Without it, spans have no receiver. */
const REGISTERED = Symbol.for("opentelemetry.js.api.1");

let loaded: Api | undefined;

function api(): Api | undefined {
  if (loaded !== undefined || !(REGISTERED in globalThis)) return loaded;
  try {
    loaded = createRequire(`${process.cwd()}/`)("@opentelemetry/api") as Api;
  } catch {
    // Another copy of the API is registered, which cannot be resolved from here.
  }
  return loaded;
}

/** Runs `work` in a span of this name. */
export async function inSpan<T>(name: string, work: () => Promise<T>): Promise<T> {
  const otel = api();
  if (otel === undefined) return work();
  return otel.trace.getTracer("sandpod").startActiveSpan(`sandpod.${name}`, async (span) => {
    try {
      const answer = await work();
      const { id, exitCode } = (answer ?? {}) as { id?: unknown; exitCode?: unknown };
      if (typeof id === "string") span.setAttribute("sandpod.sandbox_id", id);
      if (typeof exitCode === "number") span.setAttribute("sandpod.exit_code", exitCode);
      return answer;
    } catch (error) {
      span.setAttribute("error.type", error instanceof SandboxError ? error.code : "error");
      span.setStatus({ code: otel.SpanStatusCode.ERROR });
      throw error;
    } finally {
      span.end();
    }
  });
}
