import { KubernetesSandbox } from "../dist/esm/index.js";
import { behaviours } from "./behaviours.js";

behaviours("local", {
  create: (options) => KubernetesSandbox.create({ mode: "local", ...options }),
  uninitialized: () => new KubernetesSandbox({ mode: "local" }),
});
