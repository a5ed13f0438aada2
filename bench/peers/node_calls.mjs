/**
 * The calls of `cargo xtask bench node`, from Node: makes one step for each line of stdin and prints its duration. The
 * arguments are the package, the options of its provider, the id of the sandbox, and the sizes of the steps.
 */

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [home, options, id, sizes] = process.argv.slice(2);
const { Sandbox } = await import(pathToFileURL(`${home}/dist/esm/index.js`).href);
const sandbox = await Sandbox.connect(JSON.parse(options), id);
const { bulk, callers, each } = JSON.parse(sizes);
const small = new Uint8Array(1024).fill(97);
const large = new Uint8Array(bulk);
for (let i = 0; i < bulk; i += 65_536) crypto.getRandomValues(large.subarray(i, i + 65_536));

async function executeTrue() {
  const { exitCode, output } = await sandbox.execute("true");
  if (exitCode !== 0) throw new Error(`true failed: ${output}`);
}

const STEPS = {
  execute: executeTrue,
  write: () => sandbox.write("/workspace/small", small),
  read: () => sandbox.read("/workspace/small"),
  parallel: () =>
    Promise.all(
      Array.from({ length: callers }, async () => {
        for (let i = 0; i < each; i++) await executeTrue();
      }),
    ),
  up: () => sandbox.write("/workspace/bulk", large),
  down: () => sandbox.read("/workspace/bulk"),
};

for await (const step of createInterface({ input: process.stdin })) {
  const begin = performance.now();
  try {
    await STEPS[step]();
    console.log(JSON.stringify({ ms: performance.now() - begin }));
  } catch (error) {
    console.log(JSON.stringify({ failure: String(error) }));
  }
}
