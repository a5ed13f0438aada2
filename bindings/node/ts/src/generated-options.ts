// Made by scripts/options.mjs from docs/configuration.md. Do not edit.

/** The options that the library's table has. */
export interface GeneratedOptions {
  /** Path of the kubeconfig. Default: `$KUBECONFIG`, then `~/.kube/config`, then the `ServiceAccount` of the Pod. Default: none. */
  kubeconfigPath?: string | null;
  /** Context of the kubeconfig. Default: its current context. Default: none. */
  context?: string | null;
  /** Permit an API server without a verified certificate, and plain HTTP to other machines or with credentials. Each client logs a warning. Default: `false`. */
  allowInsecureApiServer?: boolean;
  /** Namespace of the sandboxes. Default: `"deepagents-sandboxes"`. */
  namespace?: string;
  /** Milliseconds that a sandbox may take to start. Default: 120000. */
  startupTimeoutMs?: number;
  /** Seconds after which the start of an unschedulable Pod fails. Raise it on clusters that add nodes on demand. Default: `10`. */
  unschedulableGraceSeconds?: number;
  /** Milliseconds that a command may take if its call has no `timeout`; 0: no limit. Default: 300000. */
  executeTimeoutMs?: number;
  /** Naming scheme for Pods, namespaces and labels: `sandpod` or `langchain-kubernetes`. Default: `"sandpod"`. */
  naming?: string;
  /** Prefix of users' labels in the cluster: a domain with a slash, or an empty text. Default: `"sandpod.dev/"`. */
  labelPrefix?: string;
  /** Labels of every sandbox, each with `labelPrefix` before its key. Default: `{}`. */
  defaultLabels?: Record<string, string>;
  /** Seconds after creation at which the sandbox is deleted. Default: never. Default: none. */
  ttlSeconds?: number | null;
  /** Seconds without a call after which the sandbox is deleted. Default: never. Default: none. */
  ttlIdleSeconds?: number | null;
  /** Image of the sandbox. Default: `"python:3.12-slim"`. */
  image?: string;
  /** When the image is pulled: `Always`, `IfNotPresent` or `Never`. Default: `"IfNotPresent"`. */
  imagePullPolicy?: string;
  /** Names of the Secrets to pull the image with. Default: `[]`. */
  imagePullSecrets?: string[];
  /** Working directory of commands. Default: `"/workspace"`. */
  workdir?: string;
  /** Command that runs beside the guest. Default: none; `sleep infinity` stands for it. Default: `["sleep","infinity"]`. */
  command?: string[];
  /** Environment variables of every command. They are sent to the guest and are in no object of the cluster. Default: `{}`. */
  env?: Record<string, string>;
  /** Environment variables with values from the cluster, as a container's `env` with `valueFrom`. Default: `[]`. */
  envRefs?: Record<string, unknown>[];
  /** Secrets and `ConfigMaps` whose keys are environment variables, as a container's `envFrom`. Default: `[]`. */
  envFrom?: Record<string, unknown>[];
  /** CPU request. Default: `"100m"`. */
  cpuRequest?: string;
  /** CPU limit. Default: `"1000m"`. */
  cpuLimit?: string;
  /** Memory request. Default: `"256Mi"`. */
  memoryRequest?: string;
  /** Memory limit. Default: `"1Gi"`. */
  memoryLimit?: string;
  /** Ephemeral storage request. Without one, Kubernetes requests the limit. Default: `"50Mi"`. */
  ephemeralStorageRequest?: string;
  /** Ephemeral storage limit. Default: `"5Gi"`. */
  ephemeralStorageLimit?: string;
  /** Deny all network traffic. The deny-all `NetworkPolicy` is created before the Pod; if that fails, no Pod is created. Default: `true`. */
  blockNetwork?: boolean;
  /** Keep the sidecars of Istio, Linkerd, Kuma and Consul out of the Pod. Default: `true`. */
  meshOptOut?: boolean;
  /** User id of the container. None: chosen by the cluster or the image, as OpenShift requires. Default: `1000`. */
  runAsUser?: number;
  /** Group id of the container. None: chosen by the cluster or the image. Default: `1000`. */
  runAsGroup?: number;
  /** Seccomp profile: `RuntimeDefault` or `Localhost`. Default: `"RuntimeDefault"`. */
  seccompProfile?: string;
  /** Path of the profile on the node, for `Localhost`. Default: none. */
  seccompLocalhostProfile?: string | null;
  /** Create a namespace with a `ResourceQuota`, `sandpod-<id>`, for each sandbox. Requires deploy/rbac/raw-namespaces.yaml. Default: `false`. */
  namespacePerSandbox?: boolean;
  /** Labels of the namespaces of `namespacePerSandbox`, which enforce Pod Security `restricted` unless a label here differs. Default: `{}`. */
  namespaceLabels?: Record<string, string>;
  /** Older name of `ttlSeconds`, used only without it. Default: none. */
  podTtlSeconds?: number | null;
  /** Number of pre-started Pods to keep ready. Processes with the same configuration share them. Default: `0`. */
  warmPoolSize?: number;
  /** `ServiceAccount` of the Pod. Its token is never mounted. Default: none. */
  serviceAccount?: string | null;
  /** Labels that a node must have. Default: `{}`. */
  nodeSelector?: Record<string, string>;
  /** Tolerations, as in a Pod. Default: `[]`. */
  tolerations?: Record<string, unknown>[];
  /** Affinity, as in a Pod. Default: none. */
  affinity?: Record<string, unknown> | null;
  /** Priority class of the Pod. Default: none. */
  priorityClass?: string | null;
  /** Additional volumes, as in a Pod. Default: `[]`. */
  volumes?: Record<string, unknown>[];
  /** Mounts of the additional volumes, as in a container. Default: `[]`. */
  volumeMounts?: Record<string, unknown>[];
  /** Init containers, as in a Pod. Security settings that they leave out are as strict as the sandbox's. Default: `[]`. */
  initContainers?: Record<string, unknown>[];
  /** `OnFailure`: a crashed guest restarts and keeps the files. `Never`: a crash loses the Pod. Default: `"OnFailure"`. */
  restartPolicy?: string;
  /** Strategic merge patch of the Pod's spec, or a template with `metadata` and `spec`. Default: none. */
  podTemplateOverrides?: Record<string, unknown> | null;
  /** Permit overrides, volumes and init containers that weaken isolation. Default: `false`. */
  allowInsecureOverrides?: boolean;
  /** Annotations of the Pod. Default: `{}`. */
  extraAnnotations?: Record<string, string>;
  /** Shell script that runs in every new sandbox before it is handed out. If it fails, creation fails. Default: none. */
  setupScript?: string | null;
  /** Runtime class of the Pod, for example one of gVisor. Default: none. */
  runtimeClass?: string | null;
  /** Mount the root file system read-only; only `writableDirs` are writable. Default: `false`. */
  readOnlyRoot?: boolean;
  /** Directories in which every user of the sandbox can write. Default: those that Deep Agents and common images use. Default: `["/workspace","/tmp","/app","/home/sandbox","/large_tool_results","/conversation_history","/blobs"]`. */
  writableDirs?: string[];
  /** Limits of paths, commands and network; see docs/policy.md. Default: none. */
  policy?: Record<string, unknown> | null;
  /** File of the audit log, with one event per line in a hash chain. Default: none. */
  auditFile?: string | null;
  /** URL of an OpenTelemetry collector that receives the audit events, such as `http://localhost:4318`. Default: none. */
  otlpEndpoint?: string | null;
  /** Command text in audit events: `full`, or `hash` for its SHA-256. Default: `"full"`. */
  auditCommands?: string;
  /** Reject operations whose audit event cannot be written. Otherwise the failure is logged. Default: `false`. */
  strictAudit?: boolean;
  /** Image that contains the guest, as `cargo xtask guest-image` builds it. Without one, or if it cannot be pulled, the guest is mounted from `ConfigMaps`. Default: none. */
  guestImage?: string | null;
  /** CPU architecture of the nodes: `amd64` or `arm64`. Default: `"amd64"`. */
  arch?: string;
  /** URL of the API server, if neither a kubeconfig nor the Pod's `ServiceAccount` names it. Default: none. */
  kubeApiUrl?: string | null;
  /** Token for `kubeApiUrl`. Default: the token of the Pod's `ServiceAccount`, if there is one. Default: none. */
  kubeToken?: string | null;
  /** `SandboxTemplate` of the sandboxes. Its warm pool with the most ready Pods is used, if it has one. Default: none. */
  templateName?: string | null;
  /** `SandboxWarmPool` of the sandboxes. Default: none. */
  warmPoolName?: string | null;
  /** How the guest is reached: `exec`, `tunnel`, `gateway`, `direct` or `in-cluster`. Default: the first of these that works. Default: none. */
  connectionMode?: string | null;
  /** Gateway of the sandbox router. Default: none. */
  gatewayName?: string | null;
  /** Namespace of the Gateway. Default: `"default"`. */
  gatewayNamespace?: string;
  /** URL of the sandbox router. Default: none. */
  routerUrl?: string | null;
  /** Port of the sandboxes behind the router. Default: `8888`. */
  serverPort?: number;
  /** Headers of every request to the router. Default: `{}`. */
  extraHeaders?: Record<string, string>;
  /** PEM file with the client certificate for the router. Default: none. */
  clientCert?: string | null;
  /** PEM file with the key of `clientCert`. Default: none. */
  clientKey?: string | null;
  /** PEM file with the certificate authorities of the router. Default: those of the system. Default: none. */
  caCert?: string | null;
  /** Bearer token for the router. Default: none. */
  routerToken?: string | null;
  /** File with the bearer token for the router, which is read for each connection. Default: none. */
  routerTokenFile?: string | null;
  /** Namespace of the router. Default: `agent-sandbox-system`, then `default`. Default: none. */
  routerNamespace?: string | null;
  /** Service of the router. Default: `"sandbox-router-svc"`. */
  routerService?: string;
  /** File with the token that opens guests over the network; their templates hold its hash. Default: the file in `SANDPOD_GUEST_TOKEN_FILE`, then the Secret `sandpod-guest-token`, then a token set through exec. Default: none. */
  guestTokenFile?: string | null;
  /** Labels of the Pod, beside the template's. agent-sandbox accepts only those below `sandbox.users.io/`. Default: `{}`. */
  podLabels?: Record<string, string>;
  /** Annotations of the Pod, beside the template's. Default: `{}`. */
  podAnnotations?: Record<string, string>;
  /** Volumes of each sandbox, as a claim's `volumeClaimTemplates`. They replace the template's volumes of the same name. Default: `[]`. */
  volumeClaimTemplates?: Record<string, unknown>[];
}
