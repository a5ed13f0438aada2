/** The result types of Deep Agents' sandbox protocol, so that a sandbox can be used without Deep Agents. */

export interface ExecuteResponse {
  /** Both outputs, in the order written. */
  output: string;
  /** 124 after a timeout or a cancellation, 125 if the command never started, null if its outcome is unknown. */
  exitCode: number | null;
  truncated: boolean;
}

export type FileOperationError = "file_not_found" | "permission_denied" | "is_directory" | "invalid_path";

export interface FileUploadResponse {
  path: string;
  error: FileOperationError | null;
}

export interface FileDownloadResponse {
  path: string;
  content: Uint8Array | null;
  error: FileOperationError | null;
}

export interface FileInfo {
  path: string;
  is_dir?: boolean;
  size?: number;
  modified_at?: string;
}

export interface GrepMatch {
  path: string;
  line: number;
  text: string;
}

export interface LsResult {
  error?: string;
  files?: FileInfo[];
}

export interface GlobResult {
  error?: string;
  files?: FileInfo[];
  truncated?: boolean;
}

export interface GrepResult {
  error?: string;
  matches?: GrepMatch[];
  truncated?: boolean;
}

export interface ReadResult {
  error?: string;
  content?: string | Uint8Array;
  mimeType?: string;
  totalLines?: number;
  startLine?: number;
  endLine?: number;
  nextOffset?: number;
}

export interface FileData {
  content: string | Uint8Array;
  mimeType: string;
  created_at: string;
  modified_at: string;
}

export interface ReadRawResult {
  error?: string;
  data?: FileData;
}

export interface WriteResult {
  error?: string;
  path?: string;
  filesUpdate?: null;
}

export interface EditResult {
  error?: string;
  path?: string;
  filesUpdate?: null;
  occurrences?: number;
}

export interface DeleteResult {
  error?: string;
  path?: string;
  filesUpdate?: null;
}
