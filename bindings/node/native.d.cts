// The addon's exports. `test/native.test.ts` compares the names with the addon's.

type NodeBuffer = Uint8Array;

export interface RunOptions {
  timeout?: number;
  env?: Record<string, string>;
  cwd?: string;
  maxOutputBytes?: number;
  shellSession?: string;
}

export interface BackgroundOptions {
  stdin: boolean;
  combined: boolean;
  paced: boolean;
  rows?: number;
  columns?: number;
}

export interface Exit {
  exitCode: number | null;
  timedOut: boolean;
  note?: string;
}

export interface Happened {
  kind: "output" | "hole" | "exit";
  data?: NodeBuffer;
  stderr?: boolean;
  offset?: number;
  missing?: number;
  exit?: Exit;
}

export interface ProcessFacts {
  pid?: number;
  command: string;
  started: number;
  exit?: Exit;
  outputEnd: number;
  terminal: boolean;
}

export interface Executed {
  output: string;
  exitCode: number | null;
  truncated: boolean;
  notices: string[];
}

export interface Entry {
  path: string;
  isDir: boolean;
  size: number;
  modified: number;
}

export interface Found {
  matches: Entry[];
  incomplete?: string;
}

export interface Match {
  path: string;
  line: number;
  text: string;
}

export interface Grepped {
  matches: Match[];
  truncated: boolean;
}

export interface Step {
  entries: number;
  bytes: number;
}

export interface TreeSummary {
  files: number;
  directories: number;
  links: number;
  bytes: number;
  skipped: number;
  linksLeftOut: number;
}

export interface Info {
  id: string;
  namespace: string;
  threadId?: string;
  labels: Record<string, string>;
  annotations: Record<string, string>;
  createdAt?: number;
  lastActivity?: number;
  status: string;
  connection?: string;
  connectionReason?: string;
  durableDirs: string[];
}

export interface Page {
  sandboxes: Info[];
  cursor?: string;
}

export interface Cleaned {
  deleted: string[];
  kept: number;
}

export interface Deletion {
  deleted: string[];
  error?: string;
}

export interface ProviderStats {
  total: number;
  running: number;
  warm: number;
  idle: number;
  threadIds: string[];
}

export interface Pool {
  available: number;
  active: number;
  total: number;
  target: number;
}

export interface Request {
  sandboxId?: string;
  labels?: Record<string, string>;
  ttlSeconds?: number | null;
  ttlIdleSeconds?: number | null;
  policy?: string;
}

export interface Call {
  id?: number;
  quiet: boolean;
}

export interface ExecuteResult {
  output: string;
  exitCode: number | null;
  truncated: boolean;
}

export interface ReadResult {
  error?: string;
  content?: string | NodeBuffer;
  mimeType?: string;
  totalLines?: number;
  startLine?: number;
  endLine?: number;
  nextOffset?: number;
}

export interface RawFile {
  content: string | NodeBuffer;
  mimeType: string;
  modified: number;
}

export interface ReadRawResult {
  error?: string;
  file?: RawFile;
}

export interface PathResult {
  error?: string;
  path?: string;
}

export interface EditResult {
  error?: string;
  path?: string;
  occurrences?: number;
}

export interface FilesResult {
  error?: string;
  files?: Entry[];
  truncated?: boolean;
}

export interface GrepResult {
  error?: string;
  matches?: Match[];
  truncated?: boolean;
}

export interface Uploaded {
  path: string;
  error: string | null;
}

export interface Downloaded {
  path: string;
  content: NodeBuffer | null;
  error: string | null;
}

export class Provider {
  constructor(
    mode: string,
    options: string,
    packageDir: string,
    onlyAdopts: boolean,
    audit?: (events: string) => string | undefined,
  );
  defaultScope(labels: Record<string, string>): string;
  getOrCreate(call: number | undefined, request: Request): Promise<Sandbox>;
  reconnect(call: number | undefined, sandboxId: string): Promise<Sandbox>;
  adopt(call: number | undefined, claimName: string): Promise<Sandbox>;
  suspend(sandboxId: string, force: boolean): Promise<void>;
  resume(call: number | undefined, sandboxId: string, policy?: string): Promise<Sandbox>;
  info(sandboxId: string): Promise<Info>;
  list(cursor: string | undefined, labels: Record<string, string>, status?: string): Promise<Page>;
  cleanup(maxIdleSeconds?: number): Promise<Cleaned>;
  stats(idleThresholdSeconds: number): Promise<ProviderStats>;
  poolStatus(): Promise<Pool>;
  extend(sandboxId: string, ttlSeconds: number): Promise<void>;
  delete(sandboxId: string): Promise<void>;
  deleteAll(labels: Record<string, string>, within: number): Promise<Deletion>;
  close(): Promise<void>;
  flushAudit(): Promise<void>;
}

export class Sandbox {
  private constructor();
  readonly id: string;
  readonly place: string;
  readonly isNew: boolean;
  readonly defaultSeconds: number | null;
  readonly defaultOutputBytes: number | null;
  narrowed(policy: string): Sandbox;
  takeNotices(): string[];
  execute(call: number | undefined, command: string, options: RunOptions): Promise<Executed>;
  start(
    call: number | undefined,
    command: string,
    options: RunOptions,
    background: BackgroundOptions,
  ): Promise<Process>;
  processes(): Promise<ProcessInfo[]>;
  read(call: number | undefined, path: string): Promise<NodeBuffer>;
  readRange(call: number | undefined, path: string, offset: number, length: number): Promise<NodeBuffer>;
  write(call: number | undefined, path: string, content: NodeBuffer): Promise<void>;
  edit(path: string, old: string, replacement: string, replaceAll: boolean): Promise<number>;
  list(path: string): Promise<Entry[]>;
  glob(call: number | undefined, pattern: string, root: string): Promise<Found>;
  grep(
    call: number | undefined,
    text: string,
    root: string | undefined,
    glob: string | undefined,
    maxCount: number | undefined,
  ): Promise<Grepped>;
  delete(path: string): Promise<void>;
  uploadFrom(call: number | undefined, localFile: string, path: string): Promise<void>;
  downloadTo(call: number | undefined, path: string, localFile: string): Promise<number>;
  uploadTree(call: number | undefined, localDir: string, path: string, progress: Progress): Promise<TreeSummary>;
  downloadTree(call: number | undefined, path: string, localDir: string, progress: Progress): Promise<TreeSummary>;
}

export class Tools {
  constructor(sandbox: Sandbox);
  static ofThread(threads: Threads, thread: string, policies: string[]): Tools;
  execute(call: Call, command: string, options: RunOptions): Promise<ExecuteResult>;
  read(call: Call, path: string, offset: number, limit: number): Promise<ReadResult>;
  readRaw(call: Call, path: string): Promise<ReadRawResult>;
  write(call: Call, path: string, content: string): Promise<PathResult>;
  edit(call: Call, path: string, old: string, replacement: string, replaceAll: boolean): Promise<EditResult>;
  delete(call: Call, path: string): Promise<PathResult>;
  ls(call: Call, path: string): Promise<FilesResult>;
  glob(call: Call, pattern: string, root: string): Promise<FilesResult>;
  grep(
    call: Call,
    text: string,
    root: string | undefined,
    glob: string | undefined,
    maxCount: number | undefined,
  ): Promise<GrepResult>;
  uploadFiles(call: Call, files: [string, NodeBuffer][]): Promise<Uploaded[]>;
  downloadFiles(call: Call, paths: string[]): Promise<Downloaded[]>;
}

export interface Life {
  labels: Record<string, string>;
  ttlSeconds?: number;
  ttlIdleSeconds?: number;
  recreate: boolean;
}

export interface ThreadState {
  sandboxId?: string;
  place?: string;
}

export class Threads {
  constructor(provider: Provider, scope: string, life: Life);
  idOf(thread: string): string;
  stateOf(thread: string): ThreadState;
  expect(thread: string, earlier: ThreadState): void;
  check(thread: string): Promise<void>;
  acquire(call: number | undefined, thread: string, earlier: ThreadState): Promise<Sandbox>;
  get(call: number | undefined, thread: string): Promise<Sandbox>;
  recordUse(sandboxId: string): void;
  forget(deleted: string[]): void;
  close(why: string): string[];
  shutDown(why: string, within: number, wholeScope: boolean): Promise<void>;
}

export class Process {
  private constructor();
  readonly name: string;
  attach(fromOffset: number): Output;
  write(data: NodeBuffer): Promise<void>;
  closeStdin(): Promise<void>;
  resize(rows: number, columns: number): Promise<void>;
  signal(signal: number): Promise<void>;
  wait(call?: number): Promise<Exit>;
}

export class Output {
  private constructor();
  next(call?: number): Promise<Happened | null>;
}

export class ProcessInfo {
  private constructor();
  facts(): ProcessFacts | null;
  takeProcess(): Process | null;
}

export class Collected {
  constructor(maxOutputBytes?: number);
  add(data: NodeBuffer, missing: number): void;
  cancelled(): ExecuteResult;
  result(exitCode: number | null, timedOut: boolean, timeout?: number): ExecuteResult;
}

export class Progress {
  constructor();
  next(): Promise<Step | null>;
}

/** The file that loaded the addon. */
export const file: string;
export function beginCall(): number;
export function cancelCall(call: number): void;
export function cancelledCommand(): ExecuteResult;
export function loadOptions(path?: string): string;
export function verifyAudit(path: string): number;
export function forwardLogs(callback?: (level: string, logger: string, text: string) => void): void;
