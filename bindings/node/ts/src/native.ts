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
  const group = CallGroup.of(signal);
  group.add(number);
  try {
    return await work(number);
  } finally {
    group.remove(number);
  }
}

/** The calls in flight that a signal cancels. They share a listener: from the eleventh on, Node warns of a leak. */
class CallGroup {
  static readonly #all = new WeakMap<AbortSignal, CallGroup>();
  readonly #signal: AbortSignal;
  readonly #calls = new Set<number>();
  readonly #cancel = () => {
    for (const call of this.#calls) native.cancelCall(call);
  };

  private constructor(signal: AbortSignal) {
    this.#signal = signal;
  }

  static of(signal: AbortSignal): CallGroup {
    const group = CallGroup.#all.get(signal) ?? new CallGroup(signal);
    CallGroup.#all.set(signal, group);
    return group;
  }

  add(call: number): void {
    if (this.#calls.size === 0) this.#signal.addEventListener("abort", this.#cancel);
    this.#calls.add(call);
  }

  remove(call: number): void {
    this.#calls.delete(call);
    if (this.#calls.size === 0) this.#signal.removeEventListener("abort", this.#cancel);
  }
}

/** Returns the directory of the package, which contains the guest's programs. */
export function packageDir(): string {
  return dirname(native.file);
}
