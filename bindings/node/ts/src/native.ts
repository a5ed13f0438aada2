/** Calls of the native half, with cancellation by signals and typed errors. */

import { dirname } from "node:path";
import native from "../../native.cjs";
import { errorOf } from "./errors.js";
import { inSpan } from "./tracing.js";

export { native };

/** Makes a synchronous call. */
export function direct<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw errorOf(error);
  }
}

/** Makes a call that `signal` cancels. `name` is the name of its span. */
export async function call<T>(
  name: string,
  signal: AbortSignal | undefined,
  work: (call: number | undefined) => Promise<T>,
): Promise<T> {
  return inSpan(name, async () => {
    try {
      return await cancellable(signal, work);
    } catch (error) {
      throw errorOf(error, signal);
    }
  });
}

async function cancellable<T>(
  signal: AbortSignal | undefined,
  work: (call: number | undefined) => Promise<T>,
): Promise<T> {
  if (signal === undefined) return work(undefined);
  signal.throwIfAborted();
  const number = native.beginCall();
  const cancel = () => native.cancelCall(number);
  signal.addEventListener("abort", cancel, { once: true });
  try {
    return await work(number);
  } finally {
    signal.removeEventListener("abort", cancel);
  }
}

/** Returns the directory of the package, which contains the guest's programs. */
export function packageDir(): string {
  return dirname(native.file);
}
