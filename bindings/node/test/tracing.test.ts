/** Spans of OpenTelemetry. */

import { type Span, type SpanOptions, type Tracer, trace } from "@opentelemetry/api";
import { expect, test } from "vitest";
import { Sandbox } from "../dist/esm/index.js";

interface Recorded {
  name: string;
  attributes: Record<string, unknown>;
  ended: boolean;
}

test("each call has a span without its command, its paths and its contents", async () => {
  const spans: Recorded[] = [];
  const startActiveSpan = <T>(name: string, ...rest: (SpanOptions | ((span: Span) => T))[]): T => {
    const recorded: Recorded = { name, attributes: {}, ended: false };
    spans.push(recorded);
    const span = {
      setAttribute: (key: string, value: unknown) => {
        recorded.attributes[key] = value;
      },
      setStatus: () => {},
      end: () => {
        recorded.ended = true;
      },
    };
    return (rest.at(-1) as (span: Span) => T)(span as unknown as Span);
  };
  trace.setGlobalTracerProvider({ getTracer: () => ({ startActiveSpan }) as unknown as Tracer });
  const sandbox = await Sandbox.create({ mode: "local" });
  await sandbox.execute("echo a secret; exit 3");
  await sandbox.read("/a/secret/path").catch(() => {});
  await sandbox.destroy();
  trace.disable();
  expect(spans).toEqual([
    { name: "sandpod.get_or_create", attributes: { "sandpod.sandbox_id": sandbox.id }, ended: true },
    { name: "sandpod.execute", attributes: { "sandpod.exit_code": 3 }, ended: true },
    { name: "sandpod.read", attributes: { "error.type": "not_found" }, ended: true },
    { name: "sandpod.delete", attributes: {}, ended: true },
  ]);
  expect(JSON.stringify(spans)).not.toContain("secret");
});
