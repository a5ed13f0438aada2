/** The operations of every sandbox, plain or for Deep Agents. These calls reject when they fail. */

import { createReadStream, createWriteStream } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import type * as addon from "../../native.cjs";
import { call, direct, native } from "./native.js";
import { bytesOf, infoOf, Process, type ProcessInfo, Stream } from "./process.js";

/** The options of a command. */
export interface RunOptions {
  /**
   * Seconds after which the command and its child processes are killed; 0 disables the timeout. Default:
   * `executeTimeoutMs` for `execute`, none for `stream` and `start`.
   */
  timeout?: number;
  /** Additional environment variables. */
  env?: Record<string, string>;
  /** Working directory. Default: that of the sandbox. */
  cwd?: string;
  /** Kills the command when the signal is aborted. */
  signal?: AbortSignal;
}

/** The options of a background command. */
export interface StartOptions extends RunOptions {
  /** Connects stdin to `Process.write`. Default: stdin is empty. */
  stdin?: boolean;
  /** Runs the command in a terminal of this size. */
  terminal?: { rows: number; columns: number };
}

/** The progress of a transfer. It restarts from zero when the transfer is retried after a lost stream. */
export interface TransferProgress {
  entries: number;
  bytes: number;
}

/** The counts of a finished transfer. */
export interface TransferSummary {
  files: number;
  directories: number;
  links: number;
  bytes: number;
  /** Sockets, devices and pipes, which are never transferred. */
  skipped: number;
  /** Links of a download that point outside of its directory, or cannot be created here. */
  linksLeftOut: number;
}

export interface TransferOptions {
  signal?: AbortSignal;
  onProgress?: (progress: TransferProgress) => void;
}

/** The content of a file to upload. */
export type Source = Uint8Array | string | Readable | AsyncIterable<Uint8Array | string>;

/** Operations of every sandbox. */
export class Operations {
  readonly #here: () => Promise<addon.Sandbox>;

  /** @internal */
  constructor(here: () => Promise<addon.Sandbox>) {
    this.#here = here;
  }

  /**
   * Runs a command line and streams its output. Leaving the iteration kills the command. Unlike `execute`, the stream
   * rejects when the sandbox is lost.
   *
   * @example
   * for await (const chunk of sandbox.stream("pip install pandas")) process.stdout.write(chunk.text);
   */
  stream(command: string, options: RunOptions & { combined?: boolean } = {}): Stream {
    const begin = () => this.#started(command, options, { paced: true, combined: options.combined ?? false });
    return new Stream(begin, 0, true, options.signal);
  }

  /** Starts a command line in the background. Default timeout: none. */
  async start(command: string, options: StartOptions = {}): Promise<Process> {
    const { stdin, terminal } = options;
    return new Process(await this.#started(command, options, { paced: false, stdin, ...terminal }));
  }

  /** Lists the started commands, oldest first. */
  async processes(): Promise<ProcessInfo[]> {
    const sandbox = await this.#here();
    return (await call("processes", undefined, () => sandbox.processes())).flatMap(infoOf);
  }

  /** Returns notices that no call has reported yet, such as a loss of files. */
  async notices(): Promise<string[]> {
    const sandbox = await this.#here();
    return direct(() => sandbox.takeNotices());
  }

  /** Creates or atomically replaces a file of any size, and creates its parent directories. */
  async uploadFile(path: string, source: Source, options: { signal?: AbortSignal } = {}): Promise<void> {
    const sandbox = await this.#here();
    const { signal } = options;
    if (typeof source === "string" || source instanceof Uint8Array) {
      return call("upload", signal, (number) => sandbox.write(number, path, bytesOf(source)));
    }
    // A stream can be read only once, but a transfer may be retried.
    await inTemporaryFile(async (file) => {
      await pipeline(source, createWriteStream(file), { signal });
      await call("upload", signal, (number) => sandbox.uploadFrom(number, file, path));
    });
  }

  /** Returns the content of a file of any size. The stream starts after the download is complete. */
  async downloadStream(path: string, options: { signal?: AbortSignal } = {}): Promise<Readable> {
    const sandbox = await this.#here();
    const directory = await mkdtemp(join(tmpdir(), "sandpod-"));
    const file = join(directory, "content");
    const remove = () => rm(directory, { recursive: true, force: true });
    try {
      await call("download", options.signal, (number) => sandbox.downloadTo(number, path, file));
    } catch (error) {
      await remove();
      throw error;
    }
    return createReadStream(file).once("close", () => void remove());
  }

  /** Copies a directory of this machine into the sandbox. */
  async uploadDirectory(localDir: string, path: string, options: TransferOptions = {}): Promise<TransferSummary> {
    const sandbox = await this.#here();
    return transfer("upload_tree", options, (number, progress) => sandbox.uploadTree(number, localDir, path, progress));
  }

  /** Copies a directory of the sandbox to this machine. Nothing is written outside of `localDir`. */
  async downloadDirectory(path: string, localDir: string, options: TransferOptions = {}): Promise<TransferSummary> {
    const sandbox = await this.#here();
    return transfer("download_tree", options, (number, progress) =>
      sandbox.downloadTree(number, path, localDir, progress),
    );
  }

  async #started(
    command: string,
    { timeout, env, cwd, signal }: RunOptions,
    background: Partial<addon.BackgroundOptions>,
  ): Promise<addon.Process> {
    const sandbox = await this.#here();
    const options = { stdin: false, combined: false, paced: false, ...defined(background) };
    return call("start", signal, (number) => sandbox.start(number, command, { timeout, env, cwd }, options));
  }
}

async function transfer(
  name: string,
  { signal, onProgress }: TransferOptions,
  work: (number: number | undefined, progress: addon.Progress) => Promise<TransferSummary>,
): Promise<TransferSummary> {
  const progress = new native.Progress();
  const summary = call(name, signal, (number) => work(number, progress));
  const reported = onProgress === undefined ? undefined : report(progress, onProgress);
  try {
    return await summary;
  } finally {
    await reported;
  }
}

async function report(progress: addon.Progress, onProgress: (step: TransferProgress) => void): Promise<void> {
  for (let step = await progress.next(); step !== null && step !== undefined; step = await progress.next()) {
    try {
      onProgress(step);
    } catch (error) {
      process.emitWarning(error instanceof Error ? error : String(error));
    }
  }
}

async function inTemporaryFile(work: (file: string) => Promise<void>): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "sandpod-"));
  try {
    await work(join(directory, "content"));
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

function defined<T extends object>(options: T): Partial<{ [Key in keyof T]: Exclude<T[Key], undefined> }> {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never;
}
