// Made by scripts/options.mjs from docs/configuration.md. Do not edit.

/** The options that the library's table has. */
export interface GeneratedOptions {
  /** The kubeconfig; without one `$KUBECONFIG`, `~/.kube/config` or the Pod that we run in. Default: none. */
  kubeconfigPath?: string | null;
  /** The kubeconfig's context; without one its current context. Default: none. */
  context?: string | null;
  /** Accepts an API server whose certificate is not verified, and plain HTTP beyond this machine or with credentials. Logs a warning for each client. Default: `false`. */
  allowInsecureApiServer?: boolean;
  /** Where sandboxes are made. Default: `"deepagents-sandboxes"`. */
  namespace?: string;
  /** Milliseconds that a sandbox may take to start. Default: 120000. */
  startupTimeoutMs?: number;
  /** How long no node may fit before a start is given up. Raise it where nodes are added on demand. Default: `10`. */
  unschedulableGraceSeconds?: number;
  /** Milliseconds that a command may take if its call has no `timeout`; 0: no limit. Default: 300000. */
  executeTimeoutMs?: number;
  /** Who knows the names of Pods, of their namespaces and labels: `sandpod`, or `langchain-kubernetes` as its users expect them. Default: `"sandpod"`. */
  naming?: string;
  /** What the name of every label of yours begins with in the cluster: a domain and a slash, or nothing. Default: `"sandpod.dev/"`. */
  labelPrefix?: string;
  /** Labels of every sandbox, each below `labelPrefix`. Default: `{}`. */
  defaultLabels?: Record<string, string>;
  /** A sandbox ends so long after it was handed out. Default: none. */
  ttlSeconds?: number | null;
  /** A sandbox ends after so long without a call. Default: none. */
  ttlIdleSeconds?: number | null;
  /** The image. Default: `"python:3.12-slim"`. */
  image?: string;
  /** `Always`, `IfNotPresent` or `Never`. Default: `"IfNotPresent"`. */
  imagePullPolicy?: string;
  /** Names of the secrets to pull the image with. Default: `[]`. */
  imagePullSecrets?: string[];
  /** Where commands start. Default: `"/workspace"`. */
  workdir?: string;
  /** What runs beside the guest; the default means nothing. Default: `["sleep","infinity"]`. */
  command?: string[];
  /** For every command. It reaches the sandbox through the guest and is in no object of the cluster. Default: `{}`. */
  env?: Record<string, string>;
  /** Variables whose values lie in the cluster, as a container's `env` with `valueFrom`. Default: `[]`. */
  envRefs?: Record<string, unknown>[];
  /** Secrets and `ConfigMaps` whose every key is a variable, as a container's `envFrom`. Default: `[]`. */
  envFrom?: Record<string, unknown>[];
  /** Processor time that the node must have. Default: `"100m"`. */
  cpuRequest?: string;
  /** The most processor time. Default: `"1000m"`. */
  cpuLimit?: string;
  /** Memory that the node must have. Default: `"256Mi"`. */
  memoryRequest?: string;
  /** The most memory. Default: `"1Gi"`. */
  memoryLimit?: string;
  /** Disk space that the node must have. Without a request Kubernetes takes the limit for it. Default: `"50Mi"`. */
  ephemeralStorageRequest?: string;
  /** The most disk space. Default: `"5Gi"`. */
  ephemeralStorageLimit?: string;
  /** No network: a deny-all `NetworkPolicy` is there before the Pod, or there is no Pod. Default: `true`. */
  blockNetwork?: boolean;
  /** Tells Istio, Linkerd, Kuma and Consul to put no sidecar into the Pod. Default: `true`. */
  meshOptOut?: boolean;
  /** The user; none: the cluster or the image decides, as OpenShift wants it. Default: `1000`. */
  runAsUser?: number;
  /** The group; none: the cluster or the image decides. Default: `1000`. */
  runAsGroup?: number;
  /** `RuntimeDefault` or `Localhost`. Default: `"RuntimeDefault"`. */
  seccompProfile?: string;
  /** The node's file for `Localhost`. Default: none. */
  seccompLocalhostProfile?: string | null;
  /** A namespace with a `ResourceQuota` for each sandbox, `sandpod-<id>`. It needs deploy/rbac/raw-namespaces.yaml. Default: `false`. */
  namespacePerSandbox?: boolean;
  /** Labels of these namespaces; they enforce Pod Security `restricted` unless a label here says otherwise. Default: `{}`. */
  namespaceLabels?: Record<string, string>;
  /** The older name of `ttlSeconds`; counts only when it is set. Default: none. */
  podTtlSeconds?: number | null;
  /** So many Pods wait, started, for sandboxes to take them. Processes with the same configuration share them. Default: `0`. */
  warmPoolSize?: number;
  /** The Pod's `ServiceAccount`; its token is never mounted. Default: none. */
  serviceAccount?: string | null;
  /** The labels that a node must have. Default: `{}`. */
  nodeSelector?: Record<string, string>;
  /** As in a Pod. Default: `[]`. */
  tolerations?: Record<string, unknown>[];
  /** As in a Pod. Default: none. */
  affinity?: Record<string, unknown> | null;
  /** The Pod's priority class. Default: none. */
  priorityClass?: string | null;
  /** Further volumes, as in a Pod. Default: `[]`. */
  volumes?: Record<string, unknown>[];
  /** Where they are mounted, as in a container. Default: `[]`. */
  volumeMounts?: Record<string, unknown>[];
  /** What runs before, as in a Pod. What they don't say of their security is as strict as the sandbox's own. Default: `[]`. */
  initContainers?: Record<string, unknown>[];
  /** `OnFailure`: a guest that crashes starts again and keeps the files. `Never`: the Pod is lost then. Default: `"OnFailure"`. */
  restartPolicy?: string;
  /** Merged into the Pod's spec as kubectl's strategic patches are; or a template with `metadata` and `spec`. Default: none. */
  podTemplateOverrides?: Record<string, unknown> | null;
  /** Takes what weakens the sandbox, in overrides, volumes and init containers. Default: `false`. */
  allowInsecureOverrides?: boolean;
  /** Annotations of the Pod. Default: `{}`. */
  extraAnnotations?: Record<string, string>;
  /** A shell script that runs in every new place before it is handed out; if it fails there is no sandbox. Default: none. */
  setupScript?: string | null;
  /** The Pod's runtime class, for example one of gVisor. Default: none. */
  runtimeClass?: string | null;
  /** The image's files can't be changed; only `writableDirs` can. Default: `false`. */
  readOnlyRoot?: boolean;
  /** Directories that commands can write to, whoever they run as. Default: `["/workspace","/tmp","/app","/home/sandbox","/large_tool_results","/conversation_history","/blobs"]`. */
  writableDirs?: string[];
  /** What callers may do in sandboxes: docs/policy.md. Default: none. */
  policy?: Record<string, unknown> | null;
  /** A file that every operation is told to, line by line, in a chain of hashes. Default: none. */
  auditFile?: string | null;
  /** An OpenTelemetry collector that every operation is told to, such as `http://localhost:4318`. Default: none. */
  otlpEndpoint?: string | null;
  /** What is told of commands: `full`, or `hash` for their SHA-256. Default: `"full"`. */
  auditCommands?: string;
  /** What can't be told to the audit is not done; otherwise it is logged and done. Default: `false`. */
  strictAudit?: boolean;
  /** An image that brings the guest, as `cargo xtask guest-image` makes it; where it can't be had, or with none, the guest comes from `ConfigMaps`. Default: none. */
  guestImage?: string | null;
  /** The processor of the nodes: `amd64` or `arm64`. Default: `"amd64"`. */
  arch?: string;
  /** The API server's URL, when neither a kubeconfig nor the Pod that we run in says it. Default: none. */
  kubeApiUrl?: string | null;
  /** The token for `kubeApiUrl`; without one that of the Pod that we run in, if any. Default: none. */
  kubeToken?: string | null;
  /** The `SandboxTemplate` that sandboxes are made from: by the pool of it that has most ready, or else cold. Default: none. */
  templateName?: string | null;
  /** The `SandboxWarmPool` that sandboxes are taken from. Default: none. */
  warmPoolName?: string | null;
  /** The only way to the guest: `exec`, `tunnel`, `gateway`, `direct` or `in-cluster`. None: the first of these that works. Default: none. */
  connectionMode?: string | null;
  /** The Gateway in front of the sandbox router. Default: none. */
  gatewayName?: string | null;
  /** Its namespace. Default: `"default"`. */
  gatewayNamespace?: string;
  /** The sandbox router's URL. Default: none. */
  routerUrl?: string | null;
  /** The port on which sandboxes answer behind the router. Default: `8888`. */
  serverPort?: number;
  /** Headers of every request to the router. Default: `{}`. */
  extraHeaders?: Record<string, string>;
  /** A PEM file with the certificate that we show to the router. Default: none. */
  clientCert?: string | null;
  /** A PEM file with its key. Default: none. */
  clientKey?: string | null;
  /** A PEM file with the certificates that the router's is checked by; none: the system's. Default: none. */
  caCert?: string | null;
  /** Opens the router, as a bearer token. Default: none. */
  routerToken?: string | null;
  /** A file that holds it, read anew for each connection. Default: none. */
  routerTokenFile?: string | null;
  /** The router's namespace; none: `agent-sandbox-system`, then `default`. Default: none. */
  routerNamespace?: string | null;
  /** The router's Service. Default: `"sandbox-router-svc"`. */
  routerService?: string;
  /** A file with the secret whose hash the template's guests start with: it opens them over the network. None: the file that `SANDPOD_GUEST_TOKEN_FILE` names, the namespace's Secret `sandpod-guest-token`, or a token by exec. Default: none. */
  guestTokenFile?: string | null;
  /** Labels of the Pod, beside the template's; agent-sandbox takes those below `sandbox.users.io/` alone. Default: `{}`. */
  podLabels?: Record<string, string>;
  /** Annotations of the Pod, beside the template's. Default: `{}`. */
  podAnnotations?: Record<string, string>;
  /** Volumes of each sandbox's own, as a claim's `volumeClaimTemplates`, over the template's of the same name. Default: `[]`. */
  volumeClaimTemplates?: Record<string, unknown>[];
}
