/** Background commands and streamed output. */

import type * as addon from "../../native.cjs";
import { call, direct } from "./native.js";

const SIGKILL = 9;

/** A part of a command's output. */
export interface OutputChunk {
  data: Uint8Array;
  /** The same as text. A character that is split between two chunks belongs to the second one. */
  text: string;
  stderr: boolean;
  /** The number of bytes before this chunk that were dropped because of the output limit. */
  missing: number;
}

/** The exit of a command. */
export interface ProcessExit {
  /** 128 + the signal that ended it; 124 after its timeout; 125 if it never started; null if it is unknown. */
  exitCode: number | null;
  timedOut: boolean;
  /** Why the sandbox ended it, if it did so for another reason than the timeout. */
  note?: string;
}

/**
 * The streamed output of a command. Iterate over it once, with `for await`. Afterwards, `exit` is the exit of the
 * command. A `break` kills the command, unless it was started in the background.
 */
export class Stream implements AsyncIterable<OutputChunk> {
  /** The exit of the command, after it has ended. */
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

  /** The exit code of the command, after it has ended. */
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
      // The sandbox kills the command at its timeout.
      overdue = (error as { code?: unknown }).code === "deadline_exceeded";
      throw error;
    } finally {
      if (this.#owned && this.exit === undefined && !overdue) {
        await call("signal", undefined, () => process.signal(SIGKILL));
      }
    }
  }
}

/** A started command. It continues to run without this object; `processes()` of its sandbox lists it. */
export class Process {
  readonly #native: addon.Process;

  /** @internal */
  constructor(native: addon.Process) {
    this.#native = native;
  }

  /** The name of the command in the sandbox. */
  get name(): string {
    return this.#native.name;
  }

  /** Streams the output from an offset, which counts both outputs. Leaving the stream does not kill the command. */
  attach(fromOffset = 0, options: { signal?: AbortSignal } = {}): Stream {
    return new Stream(async () => this.#native, fromOffset, false, options.signal);
  }

  /** Writes to stdin of a command that was started with `stdin: true` or a terminal. */
  async write(data: Uint8Array | string): Promise<void> {
    await call("write_stdin", undefined, () => this.#native.write(bytesOf(data)));
  }

  /** Closes stdin; in a terminal, sends Ctrl-D. */
  async closeStdin(): Promise<void> {
    await call("close_stdin", undefined, () => this.#native.closeStdin());
  }

  /** Resizes the terminal of the command. */
  async resize(rows: number, columns: number): Promise<void> {
    await call("resize", undefined, () => this.#native.resize(rows, columns));
  }

  /** Sends a signal to the command and its child processes. */
  async signal(signal: number): Promise<void> {
    await call("signal", undefined, () => this.#native.signal(signal));
  }

  /** Kills the command and its child processes. */
  async kill(): Promise<void> {
    await this.signal(SIGKILL);
  }

  /** Waits until the command has ended. */
  async wait(options: { signal?: AbortSignal } = {}): Promise<ProcessExit> {
    return call("wait", options.signal, (number) => this.#native.wait(number));
  }
}

/** The state of a started command. */
export interface ProcessInfo {
  process: Process;
  /** The command line, truncated if it is long. */
  command: string;
  /** The process id in the sandbox, while the command runs. */
  pid?: number;
  /** The start time, by the sandbox's clock. */
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
