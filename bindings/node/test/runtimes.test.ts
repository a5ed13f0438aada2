/** The basic use of the package on every runtime that `cargo xtask test` installs, or on this one alone. */

import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, describe, expect, test } from "vitest";
import { KubernetesSandbox } from "../dist/esm/index.js";

const SMOKE = fileURLToPath(new URL("smoke.mjs", import.meta.url));
const OWN = `node ${process.versions.node.split(".")[0]}`;
const OTHERS: Record<string, string> = JSON.parse(process.env.SANDPOD_TEST_RUNTIMES ?? "{}");
const ARGUMENTS: Record<string, string[]> = { deno: ["run", "--allow-all"] };

describe("the package", () => {
  afterAll(() => KubernetesSandbox.deleteAll({ test: "smoke" }, { mode: "local" }));

  test.each(Object.entries({ [OWN]: process.execPath, ...OTHERS }))("runs on %s", async (name, program) => {
    const { stdout, stderr } = await promisify(execFile)(program, [...(ARGUMENTS[name] ?? []), SMOKE], {
      timeout: 55_000,
    });
    expect(stderr).toBe("");
    expect(stdout.split("\n")).toEqual([
      "executed",
      "read 256 0 255",
      "streamed",
      "AbortError",
      "true",
      "SandboxNotFoundError",
      "open",
      "",
    ]);
  });
});
