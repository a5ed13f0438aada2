/** The choice of the platform's package, on simulated machines. */

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

const SOURCE = readFileSync(fileURLToPath(new URL("../native.cjs", import.meta.url)), "utf8");
const MANIFEST = JSON.parse(readFileSync(fileURLToPath(new URL("../package.json", import.meta.url)), "utf8"));

interface Machine {
  platform: string;
  arch: string;
  /** The version of glibc, which a machine with musl does not have. */
  glibc?: string;
  env?: Record<string, string>;
  /** The modules that can be loaded, by their path or name. */
  modules: string[];
}

/** Runs the loader on a machine and returns the module that it loaded. */
function load({ platform, arch, glibc, env = {}, modules }: Machine): { loaded: string; file: string } {
  const report = {
    excludeNetwork: false,
    getReport() {
      expect(this.excludeNetwork).toBe(true);
      return { header: { glibcVersionRuntime: glibc } };
    },
  };
  const fakes: Record<string, unknown> = {
    "node:fs": { existsSync: (path: string) => modules.includes(path) },
    "node:path": { join: (...parts: string[]) => parts.join("/") },
  };
  const fakeRequire = (name: string) => {
    if (name in fakes) return fakes[name];
    if (!modules.includes(name)) throw new Error(`Cannot find module '${name}'`);
    return { loaded: name };
  };
  const module = { exports: {} };
  const run = new Function("require", "process", "module", "__dirname", "__filename", SOURCE);
  run(fakeRequire, { platform, arch, env, report }, module, "/package", "/package/native.cjs");
  expect(report.excludeNetwork).toBe(false);
  return module.exports as { loaded: string; file: string };
}

const X64 = { platform: "linux", arch: "x64", glibc: "2.36" };
const ALL: [target: string, name: string, machine: Omit<Machine, "modules">][] = [
  ["x86_64-unknown-linux-gnu", "linux-x64-gnu", X64],
  ["aarch64-unknown-linux-gnu", "linux-arm64-gnu", { platform: "linux", arch: "arm64", glibc: "2.36" }],
  ["x86_64-unknown-linux-musl", "linux-x64-musl", { platform: "linux", arch: "x64" }],
  ["aarch64-unknown-linux-musl", "linux-arm64-musl", { platform: "linux", arch: "arm64" }],
  ["x86_64-apple-darwin", "darwin-x64", { platform: "darwin", arch: "x64" }],
  ["aarch64-apple-darwin", "darwin-arm64", { platform: "darwin", arch: "arm64" }],
  ["x86_64-pc-windows-msvc", "win32-x64-msvc", { platform: "win32", arch: "x64" }],
];

describe("the loader of the addon", () => {
  const packages = ALL.map(([, name]) => `@sandpod/${name}`);

  test.each(ALL)("takes the package of %s", (_, name, machine) => {
    expect(load({ ...machine, modules: packages }).loaded).toBe(`@sandpod/${name}`);
  });

  test("has a package for each target of the manifest", () => {
    expect(MANIFEST.napi.targets).toEqual(ALL.map(([target]) => target));
  });

  test("prefers the addon in the package itself, of the same platform", () => {
    const gnu = "/package/sandpod.linux-x64-gnu.node";
    expect(load({ ...X64, modules: [gnu, ...packages] }).loaded).toBe(gnu);
    const musl = { platform: "linux", arch: "x64", modules: [gnu, ...packages] };
    expect(load(musl).loaded).toBe("@sandpod/linux-x64-musl");
  });

  test("takes the file that a variable names", () => {
    const env = { NAPI_RS_NATIVE_LIBRARY_PATH: "/elsewhere/sandpod.node" };
    expect(load({ ...X64, env, modules: ["/elsewhere/sandpod.node", ...packages] }).loaded).toBe(
      "/elsewhere/sandpod.node",
    );
  });

  test("names the platform and the remedy where the package is missing", () => {
    const missing = { ...X64, modules: ["@sandpod/darwin-arm64"] };
    expect(() => load(missing)).toThrow(/no native addon for linux-x64-gnu\. Install the package again/);
  });

  test("exports its own path, by which the guest is found", () => {
    expect(load({ ...X64, modules: packages }).file).toBe("/package/native.cjs");
  });
});
