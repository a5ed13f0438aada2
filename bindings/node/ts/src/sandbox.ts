/** Sandboxes as backends of Deep Agents. */

import type { Readable } from "node:stream";
import type * as addon from "../../native.cjs";
import { Operations, type Source, type StartOptions, type TransferOptions, type TransferSummary } from "./base.js";
import { currentRun, eitherSignal, isMiddleware } from "./context.js";
import { joinBaseSandbox } from "./deepagents.js";
import { SandboxError } from "./errors.js";
import { call, direct, native } from "./native.js";
import type { KubernetesProviderOptions } from "./options.js";
import { type ExecuteOptions, Sandbox } from "./plain.js";
import type { OutputChunk, Process, ProcessInfo, Stream } from "./process.js";
import type {
  DeleteResult,
  EditResult,
  ExecuteResponse,
  FileDownloadResponse,
  FileInfo,
  FileUploadResponse,
  GlobResult,
  GrepResult,
  LsResult,
  ReadRawResult,
  ReadResult,
  WriteResult,
} from "./protocol.js";
import { type GetOrCreateOptions, KubernetesProvider } from "./provider.js";

/** The options of a new sandbox. */
export type KubernetesSandboxOptions = KubernetesProviderOptions &
  Omit<GetOrCreateOptions, "sandboxId"> & {
    /** Files that are written before the sandbox is returned. */
    initialFiles?: Record<string, string | Uint8Array>;
  };

export interface AgentExecuteOptions extends ExecuteOptions {
  /** Called with each chunk of output as it arrives. */
  onOutput?: (chunk: OutputChunk) => void;
}

/** The key of the parts of a sandbox that a provider created. */
const MADE = Symbol("made");
const ALREADY = "The sandbox is initialized already. Use it, or make another one.";
const NOT_YET = "The sandbox is not initialized. Call initialize(), or use KubernetesSandbox.create().";

/** The parts of a sandbox: the native sandbox, after its creation, and its provider. */
interface Parts {
  sandbox?: addon.Sandbox;
  tools?: addon.Tools;
  /** Undefined if a manager deletes the sandbox. */
  provider?: KubernetesProvider;
}

/** Becomes a subclass of Deep Agents' `BaseSandbox` with the first sandbox. */
class Root {}

/**
 * A sandbox as a backend of Deep Agents. Every operation is native, so the image needs only the tools that commands
 * use. Results report failures of the sandbox. Only invalid arguments throw.
 *
 * If the sandbox has lost its files since its last use, the first result reports the loss.
 */
export class KubernetesSandbox extends Root {
  readonly #options: KubernetesSandboxOptions | undefined;
  readonly #parts: Parts;
  readonly #operations: Operations;
  readonly #temporaryId = `kubernetes-sandbox-${Date.now()}`;
  #state: "new" | "running" | "closed" = "new";

  /** Prepares a sandbox, which `initialize` creates. `create` does both. */
  constructor(options: KubernetesSandboxOptions = {}) {
    super();
    const made = (options as { [MADE]?: Parts })[MADE];
    this.#parts = made ?? { provider: new KubernetesProvider(configOf(options)) };
    this.#options = made === undefined ? options : undefined;
    this.#operations = new Operations(() => this.native());
    if (made?.sandbox !== undefined) this.#run(made.sandbox);
  }

  /** Creates a sandbox. */
  static async create(options: KubernetesSandboxOptions = {}): Promise<KubernetesSandbox> {
    const sandbox = new KubernetesSandbox(options);
    await sandbox.initialize();
    return sandbox;
  }

  /** Finds the sandbox of that id, or rejects with `SandboxNotFoundError`. */
  static async fromId(id: string, options: KubernetesProviderOptions = {}): Promise<KubernetesSandbox> {
    return new KubernetesProvider(options).reconnect(id);
  }

  /** Deletes every sandbox with these labels and returns how many there were. */
  static async deleteAll(labels: Record<string, string>, options: KubernetesProviderOptions = {}): Promise<number> {
    return new KubernetesProvider(options).deleteAll(labels);
  }

  /** Creates the sandbox that the constructor prepared. If its initial files cannot be written, it is deleted. */
  async initialize(): Promise<void> {
    if (this.#state !== "new") throw new SandboxError(ALREADY, "ALREADY_INITIALIZED");
    await joinBaseSandbox(Root);
    const { initialFiles, ...options } = this.#options ?? {};
    const sandbox = await this.#provider().make(requestOf(options));
    const files = Object.entries(initialFiles ?? {});
    const encoded = files.map(([path, content]): [string, Uint8Array] => [path, bytes(content)]);
    const failed = (await new native.Tools(sandbox).uploadFiles({ quiet: true }, encoded)).find(({ error }) => error);
    if (failed !== undefined) {
      await this.#provider().delete(sandbox.id);
      const message = `The initial file ${failed.path} could not be written: ${failed.error}.`;
      throw new SandboxError(message, "FILE_OPERATION_FAILED");
    }
    this.#run(sandbox);
  }

  #run(sandbox: addon.Sandbox): void {
    this.#parts.sandbox = sandbox;
    this.#parts.tools = new native.Tools(sandbox);
    this.#state = "running";
  }

  /** The id of the sandbox, with which it can be found again. Before `initialize` it is temporary. */
  get id(): string {
    return this.#parts.sandbox?.id ?? this.#temporaryId;
  }

  /** Whether the sandbox exists and was not closed by this object. */
  get isRunning(): boolean {
    return this.#state === "running";
  }

  /** The same sandbox without Deep Agents' results: its calls reject if they fail. */
  get instance(): Sandbox {
    return new Sandbox(this.#sandbox(), this.#provider());
  }

  /** @internal */
  async native(): Promise<addon.Sandbox> {
    return this.#sandbox();
  }

  /** @internal */
  tools(): addon.Tools {
    this.#sandbox();
    return this.#parts.tools as addon.Tools;
  }

  /** @internal */
  protected shellSession(): string | undefined {
    return undefined;
  }

  #provider(): KubernetesProvider {
    if (this.#parts.provider === undefined) throw new SandboxError(NOT_YET, "NOT_INITIALIZED");
    return this.#parts.provider;
  }

  #sandbox(): addon.Sandbox {
    if (this.#parts.sandbox === undefined) throw new SandboxError(NOT_YET, "NOT_INITIALIZED");
    return this.#parts.sandbox;
  }

  /** Returns the same sandbox under an additional policy, which can only restrict it further. */
  narrowed(policy: Record<string, unknown>): KubernetesSandbox {
    const narrowed = direct(() => this.#sandbox().narrowed(JSON.stringify(policy)));
    return sandboxOf(narrowed, this.#provider());
  }

  /**
   * Runs a command line in the sandbox's shell. The command is killed after `timeout` seconds, or when `signal` or the
   * signal of the LangGraph run is aborted. Its exit code is then 124, and its output ends with a line that has the reason.
   */
  async execute(command: string, options: AgentExecuteOptions = {}): Promise<ExecuteResponse> {
    const { signal: own, onOutput, ...run } = options;
    const signal = eitherSignal(own, currentRun()?.signal);
    const shellSession = run.shellSession ?? this.shellSession();
    if (onOutput !== undefined) return this.#executeAloud(command, { ...run, signal }, onOutput);
    return this.#ask("execute", { signal }, native.cancelledCommand, (tools, how) =>
      tools.execute(how, command, { ...run, shellSession }),
    );
  }

  async #executeAloud(
    command: string,
    { maxOutputBytes, ...options }: ExecuteOptions,
    onOutput: (chunk: OutputChunk) => void,
  ): Promise<ExecuteResponse> {
    let collected = new native.Collected(maxOutputBytes);
    try {
      const { defaultSeconds, defaultOutputBytes } = await this.native();
      const timeout = options.timeout ?? defaultSeconds ?? 0;
      collected = new native.Collected(maxOutputBytes ?? defaultOutputBytes ?? undefined);
      const stream = this.#operations.stream(command, { ...options, timeout, combined: true });
      for await (const chunk of stream) {
        collected.add(chunk.data, chunk.missing);
        onOutput(chunk);
      }
      return collected.result(stream.exit?.exitCode ?? null, stream.exit?.timedOut ?? false, timeout);
    } catch (error) {
      if (options.signal?.aborted) return collected.cancelled();
      if (!SandboxError.isInstance(error)) throw error;
      return { output: error.message, exitCode: null, truncated: false };
    }
  }

  /** Reads a page of a text file unchanged, or a whole binary file. */
  async read(filePath: string, offset = 0, limit = 500): Promise<ReadResult> {
    return this.#ask("read", {}, failure, (tools, how) => tools.read(how, filePath, offset, limit));
  }

  /** Reads a whole file with its times. */
  async readRaw(filePath: string): Promise<ReadRawResult> {
    const read = await this.#ask("read", {}, failure, (tools, how) => tools.readRaw(how, filePath));
    if (!("file" in read) || read.file === undefined) return { error: read.error };
    const { content, mimeType, modified } = read.file;
    const time = new Date(modified).toISOString();
    return { data: { content, mimeType, created_at: time, modified_at: time } };
  }

  /** Creates or replaces a file, and creates its parent directories. */
  async write(filePath: string, content: string): Promise<WriteResult> {
    const how = { written: [filePath] };
    return changed(await this.#ask("write", how, failure, (tools, how) => tools.write(how, filePath, content)));
  }

  /** Replaces text in a file. Concurrent edits of one file are serialized. */
  async edit(filePath: string, oldString: string, newString: string, replaceAll = false): Promise<EditResult> {
    return changed(
      await this.#ask("edit", {}, failure, (tools, how) => tools.edit(how, filePath, oldString, newString, replaceAll)),
    );
  }

  /** Removes a file, a link, or a directory with its content. */
  async delete(filePath: string): Promise<DeleteResult> {
    return changed(await this.#ask("delete", {}, failure, (tools, how) => tools.delete(how, filePath)));
  }

  /** Lists a directory. A missing directory has no files. */
  async ls(path: string): Promise<LsResult> {
    const listed = await this.#ask("list", {}, failure, (tools, how) => tools.ls(how, path));
    return "files" in listed ? { files: listed.files?.map(infoOf) } : { error: listed.error };
  }

  /** Finds files by name. Their paths are relative to `path`. */
  async glob(pattern: string, path = "/"): Promise<GlobResult> {
    const found = await this.#ask("glob", {}, failure, (tools, how) => tools.glob(how, pattern, path));
    if (!("files" in found)) return { error: found.error };
    return { files: found.files?.map(infoOf), truncated: found.truncated };
  }

  /** Finds lines that contain a text, which is not a regular expression. */
  async grep(
    pattern: string,
    path: string | null = "/",
    glob: string | null = null,
    maxCount: number | null = null,
  ): Promise<GrepResult> {
    const options = [path ?? "/", glob ?? undefined, maxCount ?? undefined] as const;
    return this.#ask("grep", {}, failure, (tools, how) => tools.grep(how, pattern, ...options));
  }

  /** Writes files. Each has its own outcome, in the order given. */
  async uploadFiles(files: [string, Uint8Array][]): Promise<FileUploadResponse[]> {
    const paths = files.map(([path]) => path);
    const failed = (error: string) => paths.map((path) => ({ path, error }));
    const uploaded = await this.#ask("upload", { written: paths }, failed, (tools, how) =>
      tools.uploadFiles(how, files),
    );
    return uploaded as FileUploadResponse[];
  }

  /** Reads whole files. Each has its own outcome, in the order given. */
  async downloadFiles(paths: string[]): Promise<FileDownloadResponse[]> {
    const failed = (error: string) => paths.map((path) => ({ path, content: null, error }));
    const downloaded = await this.#ask("download", {}, failed, (tools, how) => tools.downloadFiles(how, paths));
    return downloaded as FileDownloadResponse[];
  }

  /** Runs a command line and streams its output. A `break` kills the command. */
  stream(command: string, options: ExecuteOptions = {}): Stream {
    return this.#operations.stream(command, options);
  }

  /** Starts a command line in the background. Default timeout: none. */
  start(command: string, options: StartOptions = {}): Promise<Process> {
    return this.#operations.start(command, options);
  }

  /** Lists the started commands, oldest first. */
  processes(): Promise<ProcessInfo[]> {
    return this.#operations.processes();
  }

  /** Returns notices that no call has reported yet, such as a loss of files. */
  notices(): Promise<string[]> {
    return this.#operations.notices();
  }

  /** Creates or replaces a file of any size from bytes, text or a stream. */
  uploadFile(path: string, source: Source, options: { signal?: AbortSignal } = {}): Promise<void> {
    return this.#operations.uploadFile(path, source, options);
  }

  /** Returns the content of a file of any size. The stream starts after the download is complete. */
  downloadStream(path: string, options: { signal?: AbortSignal } = {}): Promise<Readable> {
    return this.#operations.downloadStream(path, options);
  }

  /** Copies a directory of this machine into the sandbox. */
  uploadDirectory(localDir: string, path: string, options: TransferOptions = {}): Promise<TransferSummary> {
    return this.#operations.uploadDirectory(localDir, path, options);
  }

  /** Copies a directory of the sandbox to this machine. */
  downloadDirectory(path: string, localDir: string, options: TransferOptions = {}): Promise<TransferSummary> {
    return this.#operations.downloadDirectory(path, localDir, options);
  }

  /** Deletes the sandbox. Further calls have no effect. */
  async close(): Promise<void> {
    const wasRunning = this.#state === "running";
    this.#state = "closed";
    if (wasRunning && this.#parts.sandbox !== undefined) await this.#provider().delete(this.#parts.sandbox.id);
  }

  /** Deletes the sandbox, as `close` does. */
  async stop(): Promise<void> {
    await this.close();
  }

  /** Deletes the sandbox, as `close` does. */
  async kill(): Promise<void> {
    await this.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Makes a call. `failed` converts a failure, including a cancellation, to a result. */
  async #ask<T, F>(
    name: string,
    { signal, written = [] }: { signal?: AbortSignal; written?: string[] },
    failed: (message: string) => F,
    work: (tools: addon.Tools, how: addon.Call) => Promise<T>,
  ): Promise<T | F> {
    const quiet = isMiddleware(written);
    const either = signal ?? currentRun()?.signal;
    try {
      const tools = this.tools();
      return await call(name, either, (id) => work(tools, { id, quiet }));
    } catch (error) {
      if (either?.aborted) return failed("The call was cancelled.");
      if (SandboxError.isInstance(error) && error.code !== "NOT_INITIALIZED") return failed(error.message);
      throw error;
    }
  }
}

/** @internal */
export function sandboxOf(sandbox: addon.Sandbox, provider: KubernetesProvider): KubernetesSandbox {
  return new KubernetesSandbox({ [MADE]: { sandbox, provider } } as KubernetesSandboxOptions);
}

/** @internal Loads Deep Agents, whose `BaseSandbox` is the base class of sandboxes. */
export function prepare(): Promise<void> {
  return joinBaseSandbox(Root);
}

/**
 * A backend that uses the sandbox of the calling LangGraph thread in each call. `KubernetesSandboxManager` creates it.
 * The first call of a thread creates its sandbox. A call outside of a thread returns an error as its result.
 */
export class ThreadSandbox extends KubernetesSandbox {
  readonly #threads: addon.Threads;
  readonly #scope: string;
  readonly #session: string;
  readonly #thread: () => string;
  readonly #policies: string[];

  /** @internal */
  constructor(threads: addon.Threads, scope: string, session: string, thread: () => string, policies: string[] = []) {
    super({ [MADE]: {} } as KubernetesSandboxOptions);
    this.#threads = threads;
    this.#scope = scope;
    this.#session = session;
    this.#thread = thread;
    this.#policies = policies;
  }

  /** The id of the calling thread's sandbox, whether it exists or not. Outside of a thread: the scope. */
  override get id(): string {
    try {
      return this.#threads.idOf(this.#thread());
    } catch {
      return this.#scope;
    }
  }

  override get isRunning(): boolean {
    return true;
  }

  override narrowed(policy: Record<string, unknown>): ThreadSandbox {
    const policies = [...this.#policies, JSON.stringify(policy)];
    return new ThreadSandbox(this.#threads, this.#scope, this.#session, this.#thread, policies);
  }

  /** @internal */
  override async native(): Promise<addon.Sandbox> {
    const thread = this.#thread();
    const sandbox = await call("get_or_create", currentRun()?.signal, (number) => this.#threads.get(number, thread));
    return direct(() => this.#policies.reduce((narrowed, policy) => narrowed.narrowed(policy), sandbox));
  }

  /** @internal */
  override tools(): addon.Tools {
    const thread = this.#thread();
    return direct(() => native.Tools.ofThread(this.#threads, thread, this.#policies));
  }

  /** @internal */
  protected override shellSession(): string {
    return this.#session;
  }

  /** Does nothing: the manager deletes its sandboxes. */
  override async close(): Promise<void> {}
}

/** Returns a function that creates a sandbox in each call. */
export function createKubernetesSandboxFactory(
  options: KubernetesSandboxOptions = {},
): () => Promise<KubernetesSandbox> {
  return () => KubernetesSandbox.create(options);
}

/** Returns a backend factory that always returns this sandbox. */
export function createKubernetesSandboxFactoryFromSandbox(sandbox: KubernetesSandbox): () => KubernetesSandbox {
  return () => sandbox;
}

function configOf(options: KubernetesSandboxOptions): KubernetesProviderOptions {
  const { labels, ttlSeconds, ttlIdleSeconds, policy, signal, initialFiles, ...config } = options;
  return config;
}

function requestOf(options: KubernetesSandboxOptions): GetOrCreateOptions {
  const { labels, ttlSeconds, ttlIdleSeconds, policy, signal } = options;
  return { labels, ttlSeconds, ttlIdleSeconds, policy, signal };
}

function failure(error: string): { error: string } {
  return { error };
}

function changed<T extends { error?: string }>(result: T): T & { filesUpdate?: null } {
  return result.error === undefined ? { ...result, filesUpdate: null } : result;
}

function infoOf(entry: addon.Entry): FileInfo {
  const modified_at = new Date(entry.modified).toISOString();
  return { path: entry.path, is_dir: entry.isDir, size: entry.size, modified_at };
}

function bytes(content: string | Uint8Array): Uint8Array {
  return typeof content === "string" ? new TextEncoder().encode(content) : content;
}
