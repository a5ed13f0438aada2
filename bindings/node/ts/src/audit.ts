/** Audit callbacks and the library's log. */

import { direct, native } from "./native.js";

/** One event: an operation, before or after it. docs/policy.md describes the fields. */
export type AuditEvent = Record<string, unknown>;

/** Receives events. With `strictAudit`, an error that it throws blocks the operation. */
export type AuditCallback = (event: AuditEvent) => void;

/** Passes events to a callback. */
export class AuditRecorder {
  readonly #callback: AuditCallback;

  constructor(callback: AuditCallback) {
    this.#callback = callback;
  }

  /** Passes events, which are JSON, to the callback. Returns the message of the error that it throws, if any. */
  receive(events: string): string | undefined {
    try {
      for (const event of JSON.parse(events) as AuditEvent[]) this.#callback(event);
      return undefined;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }
}

/** Returns how many lines an audit file has, and throws if its chain of hashes is broken. */
export function verifyAudit(path: string): number {
  return direct(() => native.verifyAudit(path));
}

export type LogLevel = "error" | "warn" | "info" | "debug" | "trace";

/** Calls `log` with each line of the library's log. Without a function, the log is discarded. */
export function forwardLogs(log?: (level: LogLevel, logger: string, text: string) => void): void {
  native.forwardLogs(log as (level: string, logger: string, text: string) => void);
}
