/** One sandbox for each LangGraph thread. */

import type { CreateDeepAgentParams } from "deepagents";
import type * as addon from "../../native.cjs";
import { currentRun, type RunConfig } from "./context.js";
import { deepagents, optional } from "./deepagents.js";
import { SandboxError } from "./errors.js";
import { call, direct, native } from "./native.js";
import type { KubernetesProviderOptions } from "./options.js";
import { type CleanupResult, KubernetesProvider } from "./provider.js";
import { type KubernetesSandbox, prepare, sandboxOf, ThreadSandbox } from "./sandbox.js";

const NO_THREAD =
  "KubernetesSandboxManager: no thread_id in LangGraph config. " +
  "Invoke with config={'configurable': {'thread_id': '...'}}.";
const SCOPE_LABEL = "scope";
/** The shell session of an agent's commands, which share their working directory. */
const AGENT_SESSION = "agent";

/** The options of a manager, in addition to those of its provider. */
export interface KubernetesSandboxManagerOptions {
  /** Seconds after creation at which a new sandbox is deleted. Default: that of the provider's options. */
  ttlSeconds?: number;
  /** Seconds without a call after which a new sandbox is deleted. Default: that of the provider's options. */
  ttlIdleSeconds?: number;
  /** Labels of every sandbox, in addition to those of the provider's options. */
  defaultLabels?: Record<string, string>;
  /**
   * The scope of thread ids. Managers of one scope share sandboxes. Default: a hash of the mode, the namespace, the
   * template or image and the labels.
   */
  scope?: string;
  /** Whether a lost sandbox is recreated, which the next result reports, or is an error. Default: "recreate". */
  onLost?: "recreate" | "error";
  /** Seconds between runs of `cleanup` in the background, which start with the first sandbox. Default: never. */
  cleanupInterval?: number;
  /** Timeout of `shutdown` in seconds. Default: 25. */
  shutdownTimeout?: number;
}

/** Options of `createDeepAgent`, except for the model. */
export type AgentOptions = Omit<CreateDeepAgentParams, "model" | "middleware"> & {
  middleware?: readonly unknown[];
  /** The key of the sandbox's id in the graph's state. Default: "sandboxId". */
  stateSandboxKey?: string;
};

/** An agent of Deep Agents. */
export type Agent = ReturnType<typeof import("deepagents").createDeepAgent>;

/** `createDeepAgent` without its type parameters, whose options are only passed on. */
type MakeAgent = (params: unknown) => Agent;

type State = Record<string, unknown>;

/** A node of a LangGraph graph. */
export type AsyncNode = (state: State, config: RunConfig) => Promise<State>;

/**
 * Manages one sandbox for each LangGraph thread. The first tool call creates it, and later turns find it again. Its id
 * is derived from the scope and the thread's id, so restarted processes, replicas and concurrent calls use the same
 * sandbox.
 *
 * @example
 * const manager = new KubernetesSandboxManager({ mode: "raw" }, { ttlIdleSeconds: 1800 });
 * const agent = await manager.createAgent(model, { checkpointer: new MemorySaver() });
 * await agent.invoke({ messages }, { configurable: { thread_id: "1" } });
 * await manager.shutdown();
 */
export class KubernetesSandboxManager {
  readonly provider: KubernetesProvider;
  readonly scope: string;
  readonly #threads: addon.Threads;
  readonly #options: KubernetesSandboxManagerOptions;
  readonly #shutdownTimeout: number;
  #cleaner: NodeJS.Timeout | undefined;
  #closed = false;

  /** Validates the options. Does not connect to a cluster. */
  constructor(providerOptions: KubernetesProviderOptions, options: KubernetesSandboxManagerOptions = {}) {
    const { ttlSeconds, ttlIdleSeconds, defaultLabels = {}, onLost = "recreate", shutdownTimeout = 25 } = options;
    if (onLost !== "recreate" && onLost !== "error") {
      throw new TypeError(`onLost is '${onLost}'. Use 'recreate' or 'error'.`);
    }
    atLeastZero("cleanupInterval", options.cleanupInterval);
    atLeastZero("shutdownTimeout", shutdownTimeout);
    this.#options = options;
    this.#shutdownTimeout = shutdownTimeout;
    this.provider = this.makeProvider(providerOptions);
    this.scope = options.scope ?? direct(() => this.provider.native.defaultScope(defaultLabels));
    const life = { labels: defaultLabels, ttlSeconds, ttlIdleSeconds, recreate: onLost === "recreate" };
    this.#threads = direct(() => new native.Threads(this.provider.native, this.scope, life));
  }

  /** @internal */
  protected makeProvider(options: KubernetesProviderOptions): KubernetesProvider {
    return new KubernetesProvider(options);
  }

  /** Returns a backend that uses the sandbox of the calling thread in each call. */
  async backend(): Promise<ThreadSandbox> {
    await prepare();
    return new ThreadSandbox(this.#threads, this.scope, AGENT_SESSION, () => {
      this.#startCleaning();
      return threadOf(currentRun());
    });
  }

  /**
   * Creates a deep agent whose tools use the sandbox of the current thread. After a turn that used the sandbox, the
   * graph's state contains its id.
   *
   * A `backend` in the options replaces the manager's. Create it with `backend()`, for example as the default of a
   * `CompositeBackend`.
   */
  async createAgent(model: CreateDeepAgentParams["model"], options: AgentOptions = {}): Promise<Agent> {
    const { stateSandboxKey = "sandboxId", middleware = [], ...others } = options;
    const { createDeepAgent } = await deepagents();
    const backend = options.backend ?? (await this.backend());
    const own = await this.#middleware(stateSandboxKey);
    const params = { ...others, model, backend, middleware: [own, ...middleware] };
    return (createDeepAgent as MakeAgent)(params);
  }

  /** Creates a node that acquires the thread's sandbox before an agent's node runs, and writes its id to the state. */
  createSetupNode(options: { stateSandboxKey?: string } = {}): AsyncNode {
    const key = options.stateSandboxKey ?? "sandboxId";
    return async (state, config) => {
      const thread = threadOf(config);
      await this.#acquire(thread, state, key, config.signal);
      return this.#stateOf(thread, key);
    };
  }

  /** Creates a node that acquires the thread's sandbox and runs a deep agent in it, without streaming its steps. */
  createAgentNode(model: CreateDeepAgentParams["model"], options: AgentOptions = {}): AsyncNode {
    const { stateSandboxKey: key = "sandboxId", ...others } = options;
    const made = this.#agentOfNode(model, others);
    // The node awaits the promise and reports its failure.
    made.catch(() => {});
    return async (state, config) => {
      const thread = threadOf(config);
      const agent = await made;
      await this.#acquire(thread, state, key, config.signal);
      const result = (await agent.invoke({ messages: state.messages } as never, config as never)) as State;
      return { messages: result.messages, ...this.#stateOf(thread, key) };
    };
  }

  async #agentOfNode(model: CreateDeepAgentParams["model"], options: AgentOptions): Promise<Agent> {
    const { createDeepAgent } = await deepagents();
    const backend = options.backend ?? (await this.backend());
    return (createDeepAgent as MakeAgent)({ ...options, model, backend });
  }

  /** Finds the sandbox of that id. If there is none, creates one with another id. */
  async getOrReconnect(sandboxId?: string | null): Promise<KubernetesSandbox> {
    await prepare();
    this.#startCleaning();
    const { ttlSeconds, ttlIdleSeconds, defaultLabels } = this.#options;
    const labels = { ...defaultLabels, [SCOPE_LABEL]: this.scope };
    const request = { sandboxId: sandboxId ?? undefined, labels, ttlSeconds, ttlIdleSeconds };
    const sandbox = await this.provider.make(request);
    direct(() => this.#threads.recordUse(sandbox.id));
    return sandboxOf(sandbox, this.provider);
  }

  /** Deletes expired sandboxes. `maxIdleSeconds` overrides their own idle TTLs. */
  async cleanup(maxIdleSeconds?: number): Promise<CleanupResult> {
    const result = await this.provider.cleanup(maxIdleSeconds);
    direct(() => this.#threads.forget(result.deleted));
    return result;
  }

  /**
   * Deletes the sandboxes that this process created or found, or with `all` those of the whole scope. A `SandboxError`
   * names those that are left; another call retries them.
   */
  async shutdown({ all = false }: { all?: boolean } = {}): Promise<void> {
    this.#stopCleaning();
    await call("shut_down", undefined, () =>
      this.#threads.shutDown(
        "This KubernetesSandboxManager was shut down, and its sandboxes are deleted.",
        this.#shutdownTimeout,
        all,
      ),
    );
  }

  /** Stops background work and keeps the sandboxes, so that another process can use them. */
  async close(): Promise<void> {
    this.#stopCleaning();
    direct(() => this.#threads.close("This KubernetesSandboxManager was closed."));
    await this.provider.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.shutdown();
  }

  #stopCleaning(): void {
    this.#closed = true;
    clearInterval(this.#cleaner);
  }

  #startCleaning(): void {
    const seconds = this.#options.cleanupInterval;
    if (seconds === undefined || this.#cleaner !== undefined || this.#closed) return;
    const clean = () => {
      this.cleanup().catch((error: Error) => process.emitWarning(error));
    };
    this.#cleaner = setInterval(clean, seconds * 1000).unref();
  }

  async #acquire(thread: string, state: State, key: string, signal?: AbortSignal): Promise<void> {
    this.#startCleaning();
    await call("acquire", signal, (number) => this.#threads.acquire(number, thread, earlierOf(state, key)));
  }

  #stateOf(thread: string, key: string): State {
    const { sandboxId, place } = direct(() => this.#threads.stateOf(thread));
    if (sandboxId === undefined) return {};
    return place === undefined ? { [key]: sandboxId } : { [key]: sandboxId, [placeKey(key)]: place };
  }

  /** Keeps the sandbox's id and place in the graph's state, and checks before each turn whether it still exists. */
  async #middleware(key: string): Promise<unknown> {
    const packages = "langchain zod";
    const { z } = await optional(() => import("zod"), packages, "LangChain");
    const { createMiddleware } = await optional(() => import("langchain"), packages, "LangChain");
    const expect = (state: unknown) => {
      direct(() => this.#threads.expect(threadOf(currentRun()), earlierOf(state as State, key)));
    };
    return createMiddleware({
      name: "SandboxState",
      stateSchema: z.object({ [key]: z.string().optional(), [placeKey(key)]: z.string().optional() }),
      beforeAgent: async (state) => {
        expect(state);
        // If the check fails, the first tool call finds out whether the sandbox exists.
        await call("info", undefined, () => this.#threads.check(threadOf(currentRun()))).catch(() => {});
        return undefined;
      },
      afterAgent: async () => this.#stateOf(threadOf(currentRun()), key) as Record<string, string>,
      wrapToolCall: async (request, handler) => {
        // If another process started the turn, its first hook did not run here.
        expect(request.state);
        return handler(request);
      },
    });
  }
}

function threadOf(config: RunConfig | undefined): string {
  const thread = config?.configurable?.thread_id;
  if (thread === undefined || thread === null || thread === "") throw new SandboxError(NO_THREAD, "no_thread");
  return String(thread);
}

function earlierOf(state: State, key: string): addon.ThreadState {
  const text = (value: unknown) => (typeof value === "string" ? value : undefined);
  return { sandboxId: text(state[key]), place: text(state[placeKey(key)]) };
}

/** Returns the key of the sandbox's place in the state, for the key of its id. */
function placeKey(key: string): string {
  return `${key.replace(/(_id|Id)$/, "")}${key.endsWith("_id") ? "_place" : "Place"}`;
}

function atLeastZero(name: string, value: number | undefined): void {
  if (value !== undefined && !(value > 0)) {
    throw new TypeError(`${name} is ${value}, but must be more than 0 seconds.`);
  }
}
