//! The configuration of raw mode, and of agent-sandbox mode ([`agent_sandbox`]): every option with its default, where
//! options come from, and what can't be in them.
//!
//! The list below is the only one ([`table`]): files and variables ([`layers`]) and docs/configuration.md follow it. What
//! contradicts itself is refused ([`check`]), and so is what Kubernetes would not understand ([`objects`]).

mod agent_sandbox;
mod check;
mod layers;
mod objects;
mod shared;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::agent_sandbox::AgentSandboxConfig;
pub(crate) use self::agent_sandbox::no_template;
pub(crate) use self::check::{check_times, wrong_time};
pub use self::layers::{Layer, ProcessLayers};
pub(crate) use self::objects::{PodParts, read};
use self::table::options;
use crate::audit::CommandRedaction;
use crate::guard::SandboxPolicy;
use crate::{Error, Naming, Result, RouterDoor};

/// Where the guest lies in every sandbox.
pub(crate) const GUEST_DIR: &str = "/sandpod";
/// The volumes that we make have names that begin so.
pub(crate) const OWN_PREFIX: &str = "sandpod-";
/// What the names of sandpod's own labels and annotations begin with.
pub(crate) const OWN_DOMAIN: &str = "sandpod.dev/";
/// The container that the sandbox is.
pub(crate) const CONTAINER: &str = "sandbox";
/// The command that stands for none: the guest alone keeps the Pod alive.
pub(crate) const NO_COMMAND: [&str; 2] = ["sleep", "infinity"];
/// The label by which a node says what it can run.
pub(crate) const ARCH_LABEL: &str = "kubernetes.io/arch";

/// Where the guest keeps what it is bound to: it outlives the guest, not the sandbox's place.
pub(crate) const STATE_DIR: &str = "/run/sandpod";
/// Where commands start by default.
pub(crate) const WORKING_DIR: &str = "/workspace";
/// The home of the user that commands run as.
pub(crate) const HOME: &str = "/home/sandbox";
/// What Deep Agents and common images write to.
pub(crate) const WRITABLE_DIRS: [&str; 7] =
    [WORKING_DIR, "/tmp", "/app", HOME, "/large_tool_results", "/conversation_history", "/blobs"];

options! {
    /// How sandboxes are made as plain Pods. Names and defaults are those of `KubernetesProviderConfig`.
    ///
    /// ```
    /// let config: sandpod::RawConfig = serde_json::from_str(r#"{ "namespace": "agents" }"#)?;
    /// assert_eq!(config.image, "python:3.12-slim");
    /// assert!(config.check().is_ok());
    /// assert!(serde_json::from_str::<sandpod::RawConfig>(r#"{ "namespcae": "agents" }"#).is_err());
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[derive(Clone, Deserialize, PartialEq, Serialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct RawConfig {
        /// The kubeconfig; without one `$KUBECONFIG`, `~/.kube/config` or the Pod that we run in.
        kubeconfig: Option<PathBuf> = None,
        /// The kubeconfig's context; without one its current context.
        context: Option<String> = None,
        /// Accepts an API server whose certificate is not verified, and plain HTTP beyond this machine or with credentials. Logs a
        /// warning for each client.
        allow_insecure_api_server: bool = false,
        /// Where sandboxes are made.
        namespace: String = text("default"),
        /// How long a sandbox may take to start.
        startup_timeout_seconds: u64 = 120,
        /// How long no node may fit before a start is given up. Raise it where nodes are added on demand.
        unschedulable_grace_seconds: u64 = 10,
        /// How long a command may take if a call doesn't say; 0: as long as it takes.
        default_exec_timeout: u64 = 1800,
        /// Who knows the names of Pods, of their namespaces and labels: `sandpod`, or `langchain-kubernetes` as its users
        /// expect them.
        naming: Naming = Naming::Sandpod,
        /// What the name of every label of yours begins with in the cluster: a domain and a slash, or nothing.
        label_prefix: String = text(OWN_DOMAIN),
        /// Labels of every sandbox, each below `label_prefix`.
        default_labels: BTreeMap<String, String> = BTreeMap::new(),
        /// A sandbox ends so long after it was handed out.
        ttl_seconds: Option<u64> = None,
        /// A sandbox ends after so long without a call.
        ttl_idle_seconds: Option<u64> = None,
        /// The image.
        image: String = text("python:3.12-slim"),
        /// `Always`, `IfNotPresent` or `Never`.
        image_pull_policy: String = text("IfNotPresent"),
        /// Names of the secrets to pull the image with.
        image_pull_secrets: Vec<String> = Vec::new(),
        /// Where commands start.
        workdir: String = text(WORKING_DIR),
        /// What runs beside the guest; the default means nothing.
        command: Vec<String> = NO_COMMAND.map(text).to_vec(),
        /// For every command. It reaches the sandbox through the guest and is in no object of the cluster.
        env: BTreeMap<String, String> = BTreeMap::new(),
        /// Variables whose values lie in the cluster, as a container's `env` with `valueFrom`.
        env_refs: Vec<Value> = Vec::new(),
        /// Secrets and `ConfigMaps` whose every key is a variable, as a container's `envFrom`.
        env_from: Vec<Value> = Vec::new(),
        /// Processor time that the node must have.
        cpu_request: String = text("100m"),
        /// The most processor time.
        cpu_limit: String = text("1000m"),
        /// Memory that the node must have.
        memory_request: String = text("256Mi"),
        /// The most memory.
        memory_limit: String = text("1Gi"),
        /// Disk space that the node must have. Without a request Kubernetes takes the limit for it.
        ephemeral_storage_request: String = text("50Mi"),
        /// The most disk space.
        ephemeral_storage_limit: String = text("5Gi"),
        /// No network: a deny-all `NetworkPolicy` is there before the Pod, or there is no Pod.
        block_network: bool = true,
        /// Tells Istio, Linkerd, Kuma and Consul to put no sidecar into the Pod.
        mesh_opt_out: bool = true,
        /// The user; none: the cluster or the image decides, as OpenShift wants it.
        run_as_user: Option<i64> = Some(1000),
        /// The group; none: the cluster or the image decides.
        run_as_group: Option<i64> = Some(1000),
        /// `RuntimeDefault` or `Localhost`.
        seccomp_profile: String = text("RuntimeDefault"),
        /// The node's file for `Localhost`.
        seccomp_localhost_profile: Option<String> = None,
        /// A namespace with a `ResourceQuota` for each sandbox, `sandpod-<id>`. It needs deploy/rbac/raw-namespaces.yaml.
        namespace_per_sandbox: bool = false,
        /// Labels of these namespaces; they enforce Pod Security `restricted` unless a label here says otherwise.
        namespace_labels: BTreeMap<String, String> = BTreeMap::new(),
        /// The older name of `ttl_seconds`; counts only when it is set.
        pod_ttl_seconds: Option<u64> = None,
        /// So many Pods wait, started, for sandboxes to take them. Processes with the same configuration share them.
        warm_pool_size: u32 = 0,
        /// The Pod's `ServiceAccount`; its token is never mounted.
        service_account: Option<String> = None,
        /// The labels that a node must have.
        node_selector: BTreeMap<String, String> = BTreeMap::new(),
        /// As in a Pod.
        tolerations: Vec<Value> = Vec::new(),
        /// As in a Pod.
        affinity: Option<Value> = None,
        /// The Pod's priority class.
        priority_class: Option<String> = None,
        /// Further volumes, as in a Pod.
        volumes: Vec<Value> = Vec::new(),
        /// Where they are mounted, as in a container.
        volume_mounts: Vec<Value> = Vec::new(),
        /// What runs before, as in a Pod. What they don't say of their security is as strict as the sandbox's own.
        init_containers: Vec<Value> = Vec::new(),
        /// `OnFailure`: a guest that crashes starts again and keeps the files. `Never`: the Pod is lost then.
        restart_policy: String = text("OnFailure"),
        /// Merged into the Pod's spec as kubectl's strategic patches are; or a template with `metadata` and `spec`.
        pod_template_overrides: Option<Value> = None,
        /// Takes what weakens the sandbox, in overrides, volumes and init containers.
        allow_insecure_overrides: bool = false,
        /// Annotations of the Pod.
        extra_annotations: BTreeMap<String, String> = BTreeMap::new(),
        /// A shell script that runs in every new place before it is handed out; if it fails there is no sandbox.
        setup_script: Option<String> = None,
        /// The Pod's runtime class, for example one of gVisor.
        runtime_class: Option<String> = None,
        /// The image's files can't be changed; only `writable_dirs` can.
        read_only_root: bool = false,
        /// Directories that commands can write to, whoever they run as.
        writable_dirs: Vec<String> = WRITABLE_DIRS.map(text).to_vec(),
        /// What callers may do in sandboxes: docs/policy.md.
        policy: Option<SandboxPolicy> = None,
        /// A file that every operation is told to, line by line, in a chain of hashes.
        audit_file: Option<PathBuf> = None,
        /// An OpenTelemetry collector that every operation is told to, such as `http://localhost:4318`.
        otlp_endpoint: Option<String> = None,
        /// What is told of commands: `full`, or `hash` for their SHA-256.
        audit_commands: CommandRedaction = CommandRedaction::Full,
        /// What can't be told to the audit is not done; otherwise it is logged and done.
        strict_audit: bool = false,
        /// An image that brings the guest, as `cargo xtask guest-image` makes it; where it can't be had, or with none, the
        /// guest comes from `ConfigMaps`.
        guest_image: Option<String> = None,
        /// The processor of the nodes: `amd64` or `arm64`.
        arch: String = text("amd64"),
    }
    beside {
        /// The folder of the package that we are part of, which holds the guest's programs in `guest/<arch>`. For bindings.
        #[serde(skip)]
        package_dir: Option<PathBuf>,
    }
}

fn text(text: &str) -> String {
    text.to_owned()
}

/// The environment may hold secrets, and what is debugged ends in logs.
impl fmt::Debug for RawConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawConfig")
            .field("namespace", &self.namespace)
            .field("image", &self.image)
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

impl RawConfig {
    /// All objects that a `SandboxTemplate` of agent-sandbox needs to make sandboxes of this configuration, as the JSON of
    /// the API; the template called `name` is the last. Programs of the guest are found as for a sandbox.
    ///
    /// With a `door` its guests are reached by a router, too; without one only by exec.
    pub fn template(&self, name: &str, door: Option<&RouterDoor>) -> Result<Vec<Value>> {
        crate::backend::raw::template(self, name, door)
    }

    /// Whether something is to run beside the guest.
    pub(crate) fn has_command(&self) -> bool {
        self.command != NO_COMMAND
    }
}

/// A path without slashes at its end.
pub(crate) fn trimmed(dir: &str) -> &str {
    dir.trim_end_matches('/')
}

/// Whether one of the paths is the other or lies in it.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (format!("{}/", trimmed(one)), format!("{}/", trimmed(other)));
    one.starts_with(&other) || other.starts_with(&one)
}

pub(crate) fn refused(field: &str, next: &str) -> Error {
    Error::invalid(format!("The configuration can't be used: {field}."), next)
}
