/** A sandbox without LangChain. Calls return values, and reject if they fail. */

import type * as addon from "../../native.cjs";
import { Operations, type RunOptions } from "./base.js";
import { call, direct } from "./native.js";
import type { KubernetesProviderOptions } from "./options.js";
import { bytesOf } from "./process.js";
import { type GetOrCreateOptions, KubernetesProvider } from "./provider.js";

/** The result of a command. */
export interface Executed {
  /** Both outputs, in the order written. */
  output: string;
  /** 124 after a timeout, 125 if the command never started, null if its outcome is unknown. */
  exitCode: number | null;
  truncated: boolean;
  /** Events since the previous call, such as the loss of files. */
  notices: string[];
}

/** A file or a directory. */
export interface FileEntry {
  path: string;
  isDir: boolean;
  size: number;
  modified: Date;
}

/** Files that match a pattern. */
export interface FoundFiles {
  files: FileEntry[];
  /** Why matches may be missing: `budget` (the search took too long) or `unreadable` (a directory is unreadable). */
  incomplete?: "budget" | "unreadable";
}

/** Lines that contain a text. */
export interface FoundLines {
  matches: { path: string; line: number; text: string }[];
  /** There are more matches than requested. */
  truncated: boolean;
}

export interface ExecuteOptions extends RunOptions {
  /** Limit of kept output in bytes. Default: 1 MiB. */
  maxOutputBytes?: number;
  /** Commands of one session share the working directory, exported variables and functions. */
  shellSession?: string;
}

/**
 * One sandbox, on Kubernetes or on this machine. Failures reject with a `SandboxError`.
 *
 * @example
 * await using sandbox = await Sandbox.create({ mode: "local" });
 * const { output } = await sandbox.execute("echo hello");
 */
export class Sandbox extends Operations {
  readonly #native: addon.Sandbox;
  readonly #provider: KubernetesProvider;

  /** @internal */
  constructor(native: addon.Sandbox, provider: KubernetesProvider) {
    super(async () => native);
    this.#native = native;
    this.#provider = provider;
  }

  /** Creates a sandbox, or finds the one of `sandboxId`; its id differs if there was none. */
  static async create(options: KubernetesProviderOptions & GetOrCreateOptions): Promise<Sandbox> {
    const { sandboxId, labels, ttlSeconds, ttlIdleSeconds, policy, signal, ...config } = options;
    const request = { sandboxId, labels, ttlSeconds, ttlIdleSeconds, policy, signal };
    return new KubernetesProvider(config).plain(request);
  }

  /** Finds the sandbox of that id, or rejects with `SandboxNotFoundError`. */
  static async connect(options: KubernetesProviderOptions, sandboxId: string): Promise<Sandbox> {
    return new KubernetesProvider(options).plainOf(sandboxId);
  }

  /** The id of the sandbox, with which it can be found again. */
  get id(): string {
    return this.#native.id;
  }

  /** Returns the same sandbox under an additional policy, which can only restrict it further. */
  narrowed(policy: Record<string, unknown>): Sandbox {
    return new Sandbox(
      direct(() => this.#native.narrowed(JSON.stringify(policy))),
      this.#provider,
    );
  }

  /** Runs a command line in the sandbox's shell. Aborting `signal` kills it and rejects. */
  async execute(command: string, options: ExecuteOptions = {}): Promise<Executed> {
    const { signal, ...run } = options;
    return call("execute", signal, (number) => this.#native.execute(number, command, run));
  }

  /** Reads a whole file. */
  async read(path: string, options: { signal?: AbortSignal } = {}): Promise<Uint8Array> {
    return call("read", options.signal, (number) => this.#native.read(number, path));
  }

  /** Reads a whole file as UTF-8. */
  async readText(path: string, options: { signal?: AbortSignal } = {}): Promise<string> {
    return new TextDecoder().decode(await this.read(path, options));
  }

  /** Creates or atomically replaces a file, and creates its parent directories. */
  async write(path: string, content: Uint8Array | string, options: { signal?: AbortSignal } = {}): Promise<void> {
    await call("write", options.signal, (number) => this.#native.write(number, path, bytesOf(content)));
  }

  /** Replaces text in a file, once or everywhere, and returns the number of replacements. */
  async edit(path: string, old: string, replacement: string, options: { replaceAll?: boolean } = {}): Promise<number> {
    return call("edit", undefined, () => this.#native.edit(path, old, replacement, options.replaceAll ?? false));
  }

  /** Removes a file, a link, or a directory with its content. */
  async delete(path: string): Promise<void> {
    await call("delete", undefined, () => this.#native.delete(path));
  }

  /** Lists a directory. */
  async ls(path: string): Promise<FileEntry[]> {
    return (await call("list", undefined, () => this.#native.list(path))).map(entryOf);
  }

  /** Finds regular files by name. */
  async glob(pattern: string, path = "/", options: { signal?: AbortSignal } = {}): Promise<FoundFiles> {
    const found = await call("glob", options.signal, (number) => this.#native.glob(number, pattern, path));
    return { files: found.matches.map(entryOf), incomplete: found.incomplete as FoundFiles["incomplete"] };
  }

  /** Finds lines that contain a text, which is not a regular expression. */
  async grep(
    text: string,
    path?: string,
    options: { glob?: string; maxCount?: number; signal?: AbortSignal } = {},
  ): Promise<FoundLines> {
    const { glob, maxCount, signal } = options;
    return call("grep", signal, (number) => this.#native.grep(number, text, path, glob, maxCount));
  }

  /** Deletes the sandbox. */
  async destroy(): Promise<void> {
    await this.#provider.delete(this.id);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.destroy();
  }
}

function entryOf(entry: addon.Entry): FileEntry {
  return { ...entry, modified: new Date(entry.modified) };
}
