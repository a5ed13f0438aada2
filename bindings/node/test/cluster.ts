/** A namespace of the test cluster, with the rights that sandpod ships and no more. */

import { execFile, execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { KubernetesProvider, type KubernetesProviderOptions } from "../dist/esm/index.js";

const ADMIN = process.env.SANDPOD_TEST_KUBECONFIG;

/** Whether there is a cluster to test on. */
export const HAS_CLUSTER = ADMIN !== undefined;

const GUEST_TOKEN = "what opens guests over the network";
const ROLES = fileURLToPath(new URL("../../../deploy/rbac/", import.meta.url));

/** The parts of objects that tests read. */
export interface KubernetesObject {
  metadata: { name: string; labels?: Record<string, string>; annotations?: Record<string, string> };
  spec: Record<string, unknown>;
}

/** A namespace that is made for the tests of one file. */
export class Namespace {
  readonly name: string;
  /** Objects that deleting the namespace leaves. */
  readonly #clusterWide: string[] = [];
  readonly #directory = mkdtempSync(join(tmpdir(), "sandpod-cluster-"));

  constructor(purpose: string) {
    this.name = `sandpod-node-${purpose}-${process.pid}-${Date.now()}`;
  }

  kubectl(args: string[], input?: string): string {
    const command = [`--kubeconfig=${ADMIN}`, `--namespace=${this.name}`, ...args];
    return execFileSync("kubectl", command, { input, encoding: "utf8", stdio: ["pipe", "pipe", "pipe"] });
  }

  create(): void {
    this.kubectl(["create", "namespace", this.name]);
    this.kubectl(["label", "namespace", this.name, "pod-security.kubernetes.io/enforce=restricted"]);
  }

  /** Deletes the namespace, and fails if sandboxes were left in it. */
  async delete(): Promise<void> {
    const left = JSON.parse(this.kubectl(["get", "leases,pods", "--output=json"])).items as {
      metadata: { name: string; deletionTimestamp?: string };
    }[];
    const names = left
      .filter(({ metadata }) => metadata.deletionTimestamp === undefined)
      .map(({ metadata }) => metadata.name);
    if (this.#clusterWide.length > 0) this.kubectl(["delete", ...this.#clusterWide]);
    await promisify(execFile)("kubectl", [`--kubeconfig=${ADMIN}`, "delete", "namespace", this.name, "--wait=false"]);
    if (names.length > 0) throw new Error(`left behind: ${names}`);
  }

  /** Deletes the Pod of a sandbox of raw mode, as a node that fails does. */
  losePod(sandboxId: string): void {
    type Pod = { metadata: { name: string; ownerReferences?: { name: string }[] } };
    const pods = JSON.parse(this.kubectl(["get", "pods", "--output=json"])).items as Pod[];
    const isOwn = ({ metadata }: Pod) => metadata.ownerReferences?.some(({ name }) => name === sandboxId);
    const names = pods.filter(isOwn).map(({ metadata }) => metadata.name);
    if (names.length !== 1) throw new Error(`${sandboxId} has the Pods ${names}`);
    this.kubectl(["delete", "pod", ...names, "--grace-period=1"]);
  }

  /** Options of raw mode, by an account with its role. */
  raw(): KubernetesProviderOptions {
    return {
      mode: "raw",
      namespace: this.name,
      kubeconfigPath: this.#account("raw"),
      image: "sandpod.test/busybox:1",
      cpuRequest: "1m",
      memoryRequest: "8Mi",
    };
  }

  /** Options of raw mode, by an account whose requests go through an HTTP proxy. */
  rawThrough(proxy: string): KubernetesProviderOptions {
    const options = this.raw();
    const path = String(options.kubeconfigPath);
    const config = JSON.parse(readFileSync(path, "utf8"));
    config.clusters[0].cluster["proxy-url"] = proxy;
    writeFileSync(path, JSON.stringify(config));
    return options;
  }

  /** Options of raw mode for sandboxes with a namespace each, by an account with that role. */
  namespacePerSandbox(): KubernetesProviderOptions {
    return {
      ...this.raw(),
      kubeconfigPath: this.#account("raw-namespaces"),
      namespacePerSandbox: true,
    };
  }

  /** An object of the cluster. */
  get<T = KubernetesObject>(kind: string, name: string, namespace = this.name): T {
    return JSON.parse(this.kubectl(["get", kind, name, `--namespace=${namespace}`, "--output=json"]));
  }

  /** Options of agent-sandbox mode, for a template with the guest in it. */
  async agentSandbox(): Promise<KubernetesProviderOptions> {
    const raw = new KubernetesProvider(this.raw());
    // It brings the guest into the namespace.
    await raw.delete((await raw.getOrCreate()).id);
    const maps = this.kubectl(["get", "configmaps", "--output=name"]).split("\n");
    const guest = maps.flatMap((name) => name.match(/^configmap\/(sandpod-guest-.*)/)?.[1] ?? []);
    this.kubectl(["apply", "--filename=-"], JSON.stringify(template(guest)));
    const guestTokenFile = join(this.#directory, "token");
    writeFileSync(guestTokenFile, GUEST_TOKEN);
    return {
      mode: "agent-sandbox",
      namespace: this.name,
      kubeconfigPath: this.#account("agent-sandbox"),
      templateName: "python",
      guestTokenFile,
    };
  }

  /** The URL of the testbed's sandbox router. */
  routerUrl(): string {
    const get = ["get", "pods", "--selector=app=sandbox-router", "--output=jsonpath={.items[0].status.podIP}"];
    const address = execFileSync("kubectl", [`--kubeconfig=${ADMIN}`, "--namespace=agent-sandbox-system", ...get], {
      encoding: "utf8",
    });
    return `http://${address}:8080`;
  }

  /** Applies the role of a mode, and writes the kubeconfig of its account. */
  #account(mode: string): string {
    const role = readFileSync(join(ROLES, `${mode}.yaml`), "utf8").replaceAll("NAMESPACE", this.name);
    // Objects of the cluster get a name of their own, because tests share the cluster.
    const own = role.replace(/(kind: Cluster\w+\n(?:metadata:\n)? *name: )(\S+)/g, `$1$2-${this.name}`);
    this.kubectl(["apply", "--filename=-"], own);
    const clusterWide = [...own.matchAll(/^kind: (ClusterRole|ClusterRoleBinding)\nmetadata:\n {2}name: (\S+)/gm)];
    this.#clusterWide.push(...clusterWide.map(([, kind, name]) => `${kind}/${name}`));
    const token = this.kubectl(["create", "token", `sandpod-${mode}`, "--duration=2h"]).trim();
    const view = ["config", "view", "--raw", "--minify", "--flatten", "--output=json"];
    const [{ cluster }] = JSON.parse(this.kubectl(view)).clusters;
    const path = join(this.#directory, mode);
    const config = {
      apiVersion: "v1",
      kind: "Config",
      "current-context": "test",
      clusters: [{ name: "test", cluster }],
      users: [{ name: "test", user: { token } }],
      contexts: [{ name: "test", context: { cluster: "test", user: "test" } }],
    };
    writeFileSync(path, JSON.stringify(config));
    return path;
  }
}

function template(guest: string[]): object {
  const places = {
    state: "/run/sandpod",
    workspace: "/workspace",
    app: "/app",
    home: "/home/sandbox",
    results: "/large_tool_results",
    history: "/conversation_history",
    blobs: "/blobs",
  };
  const container = {
    name: "sandbox",
    image: "sandpod.test/python:1",
    command: ["/sandpod/boot", "serve", "--stock-apis"],
    env: [
      { name: "SANDPOD_STATE_DIR", value: "/run/sandpod" },
      { name: "SANDPOD_TOKEN_SHA256", value: createHash("sha256").update(GUEST_TOKEN).digest("hex") },
    ],
    readinessProbe: { tcpSocket: { port: 8888 }, periodSeconds: 1 },
    resources: { requests: { cpu: "1m", memory: "8Mi" } },
    securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ["ALL"] } },
    volumeMounts: [
      { name: "guest", mountPath: "/sandpod", readOnly: true },
      ...Object.entries(places).map(([name, mountPath]) => ({ name, mountPath })),
    ],
  };
  const sources = guest.map((name) => ({ configMap: { name } }));
  const podSpec = {
    restartPolicy: "OnFailure",
    terminationGracePeriodSeconds: 1,
    securityContext: {
      runAsNonRoot: true,
      runAsUser: 1000,
      runAsGroup: 1000,
      seccompProfile: { type: "RuntimeDefault" },
    },
    containers: [container],
    volumes: [
      { name: "guest", projected: { defaultMode: 0o555, sources } },
      ...Object.keys(places).map((name) => ({ name, emptyDir: {} })),
    ],
  };
  return {
    apiVersion: "extensions.agents.x-k8s.io/v1beta1",
    kind: "SandboxTemplate",
    metadata: { name: "python" },
    spec: { networkPolicyManagement: "Unmanaged", podTemplate: { spec: podSpec } },
  };
}
