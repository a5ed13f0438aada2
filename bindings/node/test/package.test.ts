/** The released packages in empty projects, without anything of this checkout: `cargo xtask dist --quick` makes them. */

import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { beforeAll, describe, expect, test } from "vitest";

const run = promisify(execFile);
const HERE = fileURLToPath(new URL("..", import.meta.url));
const DIST = process.env.SANDPOD_TEST_DIST ?? join(HERE, "../../dist");

describe("the packed package", () => {
  let directory: string;
  let project: string;
  let main: string;
  let platform: string;

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), "sandpod-package-"));
    const tarballs = (await readdir(DIST)).filter((file) => file.endsWith(".tgz"));
    main = join(DIST, String(tarballs.find((file) => /^sandpod-\d/.test(file))));
    const own = `sandpod-${process.platform}-${process.arch}-gnu-`;
    platform = join(DIST, String(tarballs.find((file) => file.startsWith(own))));
    project = join(directory, "project");
    await mkdir(project);
    await writeFile(join(project, "package.json"), '{ "private": true }');
    await run("npm", ["install", "--no-audit", "--no-fund", "--offline", main, platform], { cwd: project });
  });

  /** Runs a script that has nothing but the package. */
  async function script(name: string, source: string): Promise<string> {
    await writeFile(join(project, name), source);
    const env = { PATH: process.env.PATH, HOME: directory, XDG_CACHE_HOME: join(directory, "cache") };
    return (await run(process.execPath, [name], { cwd: project, env })).stdout;
  }

  /** The paths of the files in a tarball. */
  async function listed(tarball: string): Promise<string[]> {
    const { stdout } = await run("tar", ["-tzf", tarball]);
    return stdout
      .trim()
      .split("\n")
      .map((file) => file.replace(/^package\//, ""));
  }

  test("holds what it needs and nothing else", async () => {
    const kinds = (await listed(main)).map((file) =>
      file.replace(/^dist\/(esm|cjs)\/.*(\.d\.ts|\.js)$/, "dist/$1/*$2").replace(/^guest\/\w+\//, "guest/*/"),
    );
    expect([...new Set(kinds)].sort()).toEqual([
      "LICENSE",
      "OPTIONS.md",
      "README.md",
      "dist/cjs/*.d.ts",
      "dist/cjs/*.js",
      "dist/cjs/package.json",
      "dist/esm/*.d.ts",
      "dist/esm/*.js",
      "guest/*/sandpod-boot",
      "guest/*/sandpod-guest",
      "native.cjs",
      "native.d.cts",
      "package.json",
    ]);
    const addon = `sandpod.${process.platform}-${process.arch}-gnu.node`;
    expect((await listed(platform)).sort()).toEqual(["LICENSE", "README.md", "package.json", addon]);
    for (const tarball of [main, platform]) expect((await stat(tarball)).size).toBeLessThan(25 * 1024 * 1024);
  });

  const USE = `
    const sandbox = await Sandbox.create({ mode: "local" });
    console.log((await sandbox.execute("echo from the package")).output.trim());
    await sandbox.destroy();
    const provider = new KubernetesProvider({ mode: "local" });
    await provider.getOrCreate().catch((error) => console.log(error.name + ": " + error.message));`;
  const PRINTED =
    "from the package\nMissingDependencyError: Missing dependencies for Deep Agents. " +
    "Install with: npm install deepagents langchain @langchain/core @langchain/langgraph zod\n";

  test("works as an ES module without LangChain", async () => {
    const source = `import { KubernetesProvider, Sandbox } from "sandpod";${USE}`;
    expect(await script("use.mjs", source)).toBe(PRINTED);
  });

  test("works as a CommonJS module without LangChain", async () => {
    const source = `const { KubernetesProvider, Sandbox } = require("sandpod"); (async () => {${USE}})();`;
    expect(await script("use.cjs", source)).toBe(PRINTED);
  });

  const TYPED = `
    import { createDeepAgent } from "deepagents";
    import { KubernetesProvider, KubernetesSandbox, KubernetesSandboxManager, Sandbox } from "sandpod";
    import type { BackendProtocolV2, SandboxBackendProtocolV2 } from "deepagents";

    export async function use(provider: KubernetesProvider): Promise<number | null> {
      const sandbox: KubernetesSandbox = await provider.getOrCreate({ labels: { a: "b" } });
      const backend: BackendProtocolV2 & SandboxBackendProtocolV2 = sandbox;
      createDeepAgent({ backend });
      const agent = await new KubernetesSandboxManager({ mode: "raw" }).createAgent("a:model");
      await agent.invoke({ messages: [] }, { configurable: { thread_id: "1" } });
      for await (const { text } of sandbox.stream("ls")) console.log(text.length);
      const plain = await Sandbox.create({ mode: "local", executeTimeoutMs: 1000 });
      // @ts-expect-error: no such mode
      new KubernetesProvider({ mode: "none" });
      // @ts-expect-error: no such option
      new KubernetesProvider({ imagee: "none" });
      const { exitCode } = await plain.execute("true", { timeout: 1 });
      return exitCode;
    }
  `;

  test.each([
    ["node16", "node16", "use.mts"],
    ["node16", "node16", "use.cts"],
    ["bundler", "esnext", "use.ts"],
  ])("has types for moduleResolution %s (%s, %s)", async (moduleResolution, module, name) => {
    for (const peer of ["deepagents", "@types"]) {
      await symlink(join(HERE, "node_modules", peer), join(project, "node_modules", peer)).catch(() => {});
    }
    await writeFile(join(project, name), TYPED);
    const args = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2022", "--lib", "es2023,esnext.disposable"];
    const modules = ["--module", module, "--moduleResolution", moduleResolution, "--types", "node", name];
    const tsc = join(HERE, "node_modules/.bin/tsc");
    const { stdout } = await run(tsc, [...args, ...modules], { cwd: project }).catch((error) => error);
    expect(stdout).toBe("");
  });

  test("has no fault that publint or are-the-types-wrong finds", async () => {
    const bin = join(HERE, "node_modules/.bin");
    await run(join(bin, "publint"), ["--strict", main], { cwd: directory });
    await run(join(bin, "attw"), ["--quiet", "--profile", "node16", main], { cwd: directory });
  });

  test("has tests whose types are right", async () => {
    const tsc = join(HERE, "node_modules/.bin/tsc");
    const { stdout } = await run(tsc, ["-p", "tsconfig.test.json"], { cwd: HERE }).catch((error) => error);
    expect(stdout).toBe("");
  });

  test("names no local path and no other registry in its lock file", async () => {
    const lock = await readFile(join(HERE, "package-lock.json"), "utf8");
    for (const [, url] of lock.matchAll(/"resolved": "([^"]+)"/g))
      expect(url).toMatch(/^https:\/\/registry\.npmjs\.org\//);
  });
});
