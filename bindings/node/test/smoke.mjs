/** The basic use of the package, on any runtime: prints one line for each step, and ends with an open sandbox. */

import { createDeepAgent } from "deepagents";
import { KubernetesProvider, Sandbox } from "../dist/esm/index.js";

const provider = new KubernetesProvider({ mode: "local" });
const backend = await provider.getOrCreate();
createDeepAgent({ backend });
const sandbox = await Sandbox.connect({ mode: "local" }, backend.id);

console.log((await backend.execute("echo executed")).output.trim());
await sandbox.write(
  "/workspace/bytes",
  Uint8Array.from({ length: 256 }, (_, i) => i),
);
const read = await sandbox.read("/workspace/bytes");
console.log("read", read.length, read[0], read[255]);
for await (const chunk of sandbox.stream("echo streamed")) if (chunk.text !== "") console.log(chunk.text.trim());

const controller = new AbortController();
const aborted = sandbox.execute("sleep 600", { signal: controller.signal });
controller.abort();
console.log(await aborted.catch((error) => error.name));
const results = await Promise.all(Array.from({ length: 64 }, (_, i) => backend.execute(`echo ${i}`)));
console.log(results.every(({ output }, i) => output.includes(String(i))));

await backend.close();
console.log((await provider.reconnect(backend.id).catch((error) => error)).name);
const left = await Sandbox.create({ mode: "local", ttlSeconds: 60, labels: { test: "smoke" } });
console.log((await left.execute("echo open")).output.trim());
