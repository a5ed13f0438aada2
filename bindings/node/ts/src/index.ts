/**
 * Sandboxes on Kubernetes, or on this machine, for LangChain Deep Agents.
 *
 * `Sandbox` needs no LangChain; the other classes load Deep Agents when they are first used.
 */

export { type AuditCallback, type AuditEvent, forwardLogs, type LogLevel, verifyAudit } from "./audit.js";
export type {
  RunOptions,
  Source,
  StartOptions,
  TransferOptions,
  TransferProgress,
  TransferSummary,
} from "./base.js";
export {
  MissingDependencyError,
  NamespaceConflictError,
  SandboxError,
  SandboxExecError,
  SandboxNotFoundError,
  SandboxRouterError,
  SandboxStartupTimeoutError,
  TemplateNotFoundError,
} from "./errors.js";
export {
  type Agent,
  type AgentOptions,
  type AsyncNode,
  KubernetesSandboxManager,
  type KubernetesSandboxManagerOptions,
} from "./manager.js";
export { type KubernetesProviderOptions, loadOptions, type SandboxMode } from "./options.js";
export {
  type Executed,
  type ExecuteOptions,
  type FileEntry,
  type FoundFiles,
  type FoundLines,
  Sandbox,
} from "./plain.js";
export type { OutputChunk, Process, ProcessExit, ProcessInfo, Stream } from "./process.js";
export type * from "./protocol.js";
export {
  type CleanupResult,
  type GetOrCreateOptions,
  KubernetesProvider,
  type ProviderStats,
  type SandboxInfo,
  type SandboxListOptions,
  type SandboxListResponse,
  type SandboxStatus,
  type WarmPoolStatus,
} from "./provider.js";
export {
  type AgentExecuteOptions,
  createKubernetesSandboxFactory,
  createKubernetesSandboxFactoryFromSandbox,
  KubernetesSandbox,
  type KubernetesSandboxOptions,
  type ThreadSandbox,
} from "./sandbox.js";
