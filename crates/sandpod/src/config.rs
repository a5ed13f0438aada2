//! The configuration of raw mode ([`RawConfig`]) and of agent-sandbox mode ([`AgentSandboxConfig`]).
//!
//! The `options!` macro of [`table`] declares every option once. [`layers`] reads options from files and variables, and
//! [`mod@reference`] generates docs/configuration.md. [`check`] rejects contradictory values, and [`objects`] rejects
//! invalid Kubernetes objects.

mod agent_sandbox;
mod check;
mod layers;
mod objects;
#[cfg(test)]
mod reference;
mod shared;
mod table;
mod typescript;
#[cfg(test)]
mod typescript_reference;

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
pub use self::typescript::{TYPESCRIPT_OPTIONS, TypescriptOption, camel_case, typescript_name};
use crate::audit::CommandRedaction;
use crate::guard::SandboxPolicy;
use crate::{Error, Naming, Result, RouterDoor};

/// Directory of the guest in every sandbox.
pub(crate) const GUEST_DIR: &str = "/sandpod";
/// Prefix of the names of sandpod's own volumes.
pub(crate) const OWN_PREFIX: &str = "sandpod-";
/// Prefix of the keys of sandpod's own labels and annotations.
pub(crate) const OWN_DOMAIN: &str = "sandpod.dev/";
/// Name of the container in which commands run.
pub(crate) const CONTAINER: &str = "sandbox";
/// The command that means "no command": only the guest runs.
pub(crate) const NO_COMMAND: [&str; 2] = ["sleep", "infinity"];
/// Label with a node's CPU architecture.
pub(crate) const ARCH_LABEL: &str = "kubernetes.io/arch";

/// Directory of the guest's binding. It survives a restart of the guest, but not the loss of the sandbox's place.
pub(crate) const STATE_DIR: &str = "/run/sandpod";
/// Default working directory of commands.
pub(crate) const WORKING_DIR: &str = "/workspace";
/// Home directory of the user that runs commands.
pub(crate) const HOME: &str = "/home/sandbox";
/// Directories to which Deep Agents and common images write.
pub(crate) const WRITABLE_DIRS: [&str; 7] =
    [WORKING_DIR, "/tmp", "/app", HOME, "/large_tool_results", "/conversation_history", "/blobs"];

options! {
    /// The configuration of raw mode. Names and defaults are those of `KubernetesProviderConfig`.
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
        /// Path of the kubeconfig. Default: `$KUBECONFIG`, then `~/.kube/config`, then the `ServiceAccount` of the Pod.
        kubeconfig: Option<PathBuf> = None,
        /// Context of the kubeconfig. Default: its current context.
        context: Option<String> = None,
        /// Permit an API server without a verified certificate, and plain HTTP to other machines or with credentials. Each
        /// client logs a warning.
        allow_insecure_api_server: bool = false,
        /// Namespace of the sandboxes.
        namespace: String = text("default"),
        /// Seconds in which a sandbox must be ready.
        startup_timeout_seconds: u64 = 120,
        /// Seconds after which the start of an unschedulable Pod fails. Raise it on clusters that add nodes on demand.
        unschedulable_grace_seconds: u64 = 10,
        /// Seconds after which a command is killed, for calls without a timeout of their own. 0: no timeout.
        default_exec_timeout: u64 = 1800,
        /// Naming scheme for Pods, namespaces and labels: `sandpod`, `langchain-kubernetes` or `langchain-kubernetes-js`.
        naming: Naming = Naming::Sandpod,
        /// Prefix of users' labels in the cluster: a domain with a slash, or an empty text.
        label_prefix: String = text(OWN_DOMAIN),
        /// Labels of every sandbox, each with `label_prefix` before its key.
        default_labels: BTreeMap<String, String> = BTreeMap::new(),
        /// Seconds after creation at which the sandbox is deleted. Default: never.
        ttl_seconds: Option<u64> = None,
        /// Seconds without a call after which the sandbox is deleted. Default: never.
        ttl_idle_seconds: Option<u64> = None,
        /// Image of the sandbox.
        image: String = text("python:3.12-slim"),
        /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
        image_pull_policy: String = text("IfNotPresent"),
        /// Names of the Secrets to pull the image with.
        image_pull_secrets: Vec<String> = Vec::new(),
        /// Working directory of commands.
        workdir: String = text(WORKING_DIR),
        /// Command that runs beside the guest. Default: none; `sleep infinity` stands for it.
        command: Vec<String> = NO_COMMAND.map(text).to_vec(),
        /// Environment variables of every command. They are sent to the guest and are in no object of the cluster.
        env: BTreeMap<String, String> = BTreeMap::new(),
        /// Environment variables with values from the cluster, as a container's `env` with `valueFrom`.
        env_refs: Vec<Value> = Vec::new(),
        /// Secrets and `ConfigMaps` whose keys are environment variables, as a container's `envFrom`.
        env_from: Vec<Value> = Vec::new(),
        /// CPU request.
        cpu_request: String = text("100m"),
        /// CPU limit.
        cpu_limit: String = text("1000m"),
        /// Memory request.
        memory_request: String = text("256Mi"),
        /// Memory limit.
        memory_limit: String = text("1Gi"),
        /// Ephemeral storage request. Without one, Kubernetes requests the limit.
        ephemeral_storage_request: String = text("50Mi"),
        /// Ephemeral storage limit.
        ephemeral_storage_limit: String = text("5Gi"),
        /// Deny all network traffic. The deny-all `NetworkPolicy` is created before the Pod; if that fails, no Pod is created.
        block_network: bool = true,
        /// Keep the sidecars of Istio, Linkerd, Kuma and Consul out of the Pod.
        mesh_opt_out: bool = true,
        /// User id of the container. None: chosen by the cluster or the image, as OpenShift requires.
        run_as_user: Option<i64> = Some(1000),
        /// Group id of the container. None: chosen by the cluster or the image.
        run_as_group: Option<i64> = Some(1000),
        /// Seccomp profile: `RuntimeDefault` or `Localhost`.
        seccomp_profile: String = text("RuntimeDefault"),
        /// Path of the profile on the node, for `Localhost`.
        seccomp_localhost_profile: Option<String> = None,
        /// Create a namespace with a `ResourceQuota`, `sandpod-<id>`, for each sandbox. Requires
        /// deploy/rbac/raw-namespaces.yaml.
        namespace_per_sandbox: bool = false,
        /// Labels of the namespaces of `namespace_per_sandbox`, which enforce Pod Security `restricted` unless a label here
        /// differs.
        namespace_labels: BTreeMap<String, String> = BTreeMap::new(),
        /// Older name of `ttl_seconds`, used only without it.
        pod_ttl_seconds: Option<u64> = None,
        /// Number of pre-started Pods to keep ready. Processes with the same configuration share them.
        warm_pool_size: u32 = 0,
        /// `ServiceAccount` of the Pod. Its token is never mounted.
        service_account: Option<String> = None,
        /// Labels that a node must have.
        node_selector: BTreeMap<String, String> = BTreeMap::new(),
        /// Tolerations, as in a Pod.
        tolerations: Vec<Value> = Vec::new(),
        /// Affinity, as in a Pod.
        affinity: Option<Value> = None,
        /// Priority class of the Pod.
        priority_class: Option<String> = None,
        /// Additional volumes, as in a Pod.
        volumes: Vec<Value> = Vec::new(),
        /// Mounts of the additional volumes, as in a container.
        volume_mounts: Vec<Value> = Vec::new(),
        /// Init containers, as in a Pod. Security settings that they leave out are as strict as the sandbox's.
        init_containers: Vec<Value> = Vec::new(),
        /// `OnFailure`: a crashed guest restarts and keeps the files. `Never`: a crash loses the Pod.
        restart_policy: String = text("OnFailure"),
        /// Strategic merge patch of the Pod's spec, or a template with `metadata` and `spec`.
        pod_template_overrides: Option<Value> = None,
        /// Permit overrides, volumes and init containers that weaken isolation.
        allow_insecure_overrides: bool = false,
        /// Annotations of the Pod.
        extra_annotations: BTreeMap<String, String> = BTreeMap::new(),
        /// Shell script that runs in every new sandbox before it is handed out. If it fails, creation fails.
        setup_script: Option<String> = None,
        /// Runtime class of the Pod, for example one of gVisor.
        runtime_class: Option<String> = None,
        /// Mount the root file system read-only; only `writable_dirs` are writable.
        read_only_root: bool = false,
        /// Directories in which every user of the sandbox can write. Default: those that Deep Agents and common images use.
        writable_dirs: Vec<String> = WRITABLE_DIRS.map(text).to_vec(),
        /// Limits of paths, commands and network; see docs/policy.md.
        policy: Option<SandboxPolicy> = None,
        /// File of the audit log, with one event per line in a hash chain.
        audit_file: Option<PathBuf> = None,
        /// URL of an OpenTelemetry collector that receives the audit events, such as `http://localhost:4318`.
        otlp_endpoint: Option<String> = None,
        /// Command text in audit events: `full`, or `hash` for its SHA-256.
        audit_commands: CommandRedaction = CommandRedaction::Full,
        /// Reject operations whose audit event cannot be written. Otherwise the failure is logged.
        strict_audit: bool = false,
        /// Image that contains the guest, as `cargo xtask guest-image` builds it. Without one, or if it cannot be pulled, the
        /// guest is mounted from `ConfigMaps`.
        guest_image: Option<String> = None,
        /// CPU architecture of the nodes: `amd64` or `arm64`.
        arch: String = text("amd64"),
    }
    beside {
        /// The directory of the package that the library is part of, with the guest's programs in `guest/<arch>`.
        #[serde(skip)]
        package_dir: Option<PathBuf>,
    }
}

fn text(text: &str) -> String {
    text.to_owned()
}

/// Omits the values of environment variables, because they may be secrets and debug output may be logged.
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
    /// Generates a `SandboxTemplate` of agent-sandbox for this configuration, and the objects that it needs, as JSON of
    /// the API. The template, called `name`, is the last object. Reads the guest's programs from this machine.
    ///
    /// With a `door`, clients can also reach the guests through a router. Without one, clients reach them only through
    /// exec.
    pub fn template(&self, name: &str, door: Option<&RouterDoor>) -> Result<Vec<Value>> {
        crate::backend::raw::template(self, name, door)
    }

    /// Whether a command runs beside the guest.
    pub(crate) fn has_command(&self) -> bool {
        self.command != NO_COMMAND
    }
}

/// Removes the trailing slashes of a path.
pub(crate) fn trimmed(dir: &str) -> &str {
    dir.trim_end_matches('/')
}

/// Whether the paths are equal or one contains the other.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (format!("{}/", trimmed(one)), format!("{}/", trimmed(other)));
    one.starts_with(&other) || other.starts_with(&one)
}

pub(crate) fn refused(field: &str, next: &str) -> Error {
    Error::invalid(format!("The configuration can't be used: {field}."), next)
}
