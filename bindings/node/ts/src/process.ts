/** Background commands, and output while it is written. */

import type * as addon from "../../native.cjs";
import { call, direct } from "./native.js";

const SIGKILL = 9;

/** A part of a command's output. */
export interface OutputChunk {
  data: Uint8Array;
  /** The same as text; a character that arrives in two parts is in the second one's. */
  text: string;
  stderr: boolean;
  /** Bytes before it that were dropped to keep within bounds. */
  missing: number;
}

/** How a command ended. */
export interface ProcessExit {
  /** 128 + the signal that ended it; 124 after its timeout; 125 if it never started; null if it is unknown. */
  exitCode: number | null;
  timedOut: boolean;
  /** Why the sandbox ended it, if it did so for another reason than the timeout. */
  note?: string;
}

/**
 * A command's output while it is written: iterate over it once, with `for await`. After the iteration, `exit` is how the
 * command ended. A `break` kills the command, unless the stream is of a process that was started to go on.
 */
export class Stream implements AsyncIterable<OutputChunk> {
  /** How the command ended, once it has. */
  exit: ProcessExit | undefined;
  readonly #begin: () => Promise<addon.Process>;
  readonly #from: number;
  readonly #owned: boolean;
  readonly #signal: AbortSignal | undefined;

  /** @internal */
  constructor(begin: () => Promise<addon.Process>, from: number, owned: boolean, signal?: AbortSignal) {
    this.#begin = begin;
    this.#from = from;
    this.#owned = owned;
    this.#signal = signal;
  }

  /** The command's exit code, once it has ended. */
  get exitCode(): number | null | undefined {
    return this.exit?.exitCode;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<OutputChunk, void, undefined> {
    const process = await this.#begin();
    const decoders = [new TextDecoder(), new TextDecoder()];
    const output = direct(() => process.attach(this.#from));
    let missing = 0;
    let overdue = false;
    try {
      for (;;) {
        const event = await call("output", this.#signal, (number) => output.next(number));
        if (event === null) return;
        if (event.exit !== undefined) this.exit = event.exit;
        missing += event.missing ?? 0;
        if (event.data === undefined) continue;
        const stderr = event.stderr ?? false;
        const text = decoders[Number(stderr)]?.decode(event.data, { stream: true }) ?? "";
        const chunk = { data: event.data, text, stderr, missing };
        missing = 0;
        yield chunk;
      }
    } catch (error) {
      // The sandbox ends the command at its timeout by itself.
      overdue = (error as { code?: unknown }).code === "deadline_exceeded";
      throw error;
    } finally {
      if (this.#owned && this.exit === undefined && !overdue) {
        await call("signal", undefined, () => process.signal(SIGKILL));
      }
    }
  }
}

/** A started command. It goes on without this object; `processes()` of its sandbox finds it again. */
export class Process {
  readonly #native: addon.Process;

  /** @internal */
  constructor(native: addon.Process) {
    this.#native = native;
  }

  /** The sandbox's name for it. */
  get name(): string {
    return this.#native.name;
  }

  /** Follows its output to its end, from an offset that counts both outputs. Leaving the stream ends nothing. */
  attach(fromOffset = 0, options: { signal?: AbortSignal } = {}): Stream {
    return new Stream(async () => this.#native, fromOffset, false, options.signal);
  }

  /** Writes to its standard input, which `stdin: true` or a terminal gave it. */
  async write(data: Uint8Array | string): Promise<void> {
    await call("write_stdin", undefined, () => this.#native.write(bytesOf(data)));
  }

  /** Ends its standard input; in a terminal as Ctrl-D does. */
  async closeStdin(): Promise<void> {
    await call("close_stdin", undefined, () => this.#native.closeStdin());
  }

  /** Changes the size of its terminal. */
  async resize(rows: number, columns: number): Promise<void> {
    await call("resize", undefined, () => this.#native.resize(rows, columns));
  }

  /** Sends a signal to it and to all that it started. */
  async signal(signal: number): Promise<void> {
    await call("signal", undefined, () => this.#native.signal(signal));
  }

  /** Ends it and all that it started, at once. */
  async kill(): Promise<void> {
    await this.signal(SIGKILL);
  }

  /** Waits until it has ended. */
  async wait(options: { signal?: AbortSignal } = {}): Promise<ProcessExit> {
    return call("wait", options.signal, (number) => this.#native.wait(number));
  }
}

/** A command that was started in a sandbox. */
export interface ProcessInfo {
  process: Process;
  /** The command line, cut where it is long. */
  command: string;
  /** Its number in the sandbox, while it runs. */
  pid?: number;
  /** When it was started, by the sandbox's clock. */
  started: Date;
  exit?: ProcessExit;
  /** Bytes of output so far. */
  outputEnd: number;
  terminal: boolean;
}

/** @internal */
export function infoOf(info: addon.ProcessInfo): ProcessInfo[] {
  const facts = info.facts();
  const process = info.takeProcess();
  if (facts === null || process === null) return [];
  return [{ ...facts, started: new Date(facts.started), process: new Process(process) }];
}

/** @internal */
export function bytesOf(data: Uint8Array | string): Uint8Array {
  return typeof data === "string" ? new TextEncoder().encode(data) : data;
}
