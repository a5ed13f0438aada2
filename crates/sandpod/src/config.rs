//! The configuration of raw mode, and what can't be in it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use sandpod_kube::k8s_openapi::api::core::v1::{Container, Toleration, Volume, VolumeMount};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::provider::Defaults;
use crate::{Error, ErrorKind, Result};

/// Where the guest lies in every sandbox.
pub(crate) const GUEST_DIR: &str = "/sandpod";
/// The volumes that we make have names that begin so.
pub(crate) const OWN_PREFIX: &str = "sandpod-";
/// The container that the sandbox is.
pub(crate) const CONTAINER: &str = "sandbox";
/// The command that stands for none: the guest alone keeps the Pod alive.
pub(crate) const NO_COMMAND: [&str; 2] = ["sleep", "infinity"];
/// The label by which a node says what it can run.
pub(crate) const ARCH_LABEL: &str = "kubernetes.io/arch";

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
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context; without one its current context.
    pub context: Option<String>,
    /// The folder of the package that we are part of, which holds the guest's programs in `guest/<arch>`. For bindings.
    #[serde(skip)]
    pub package_dir: Option<PathBuf>,
    /// Where sandboxes are made.
    pub namespace: String,
    /// How long a sandbox may take to start.
    pub startup_timeout_seconds: u64,
    /// How long a command may take if a call doesn't say; 0: as long as it takes.
    pub default_exec_timeout: u64,
    /// Labels of every sandbox, each below `sandpod.dev/`.
    pub default_labels: BTreeMap<String, String>,
    /// A sandbox ends so long after it was handed out.
    pub ttl_seconds: Option<u64>,
    /// A sandbox ends after so long without a call.
    pub ttl_idle_seconds: Option<u64>,
    /// The image.
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub image_pull_policy: String,
    /// Names of the secrets to pull the image with.
    pub image_pull_secrets: Vec<String>,
    /// Where commands start.
    pub workdir: String,
    /// What runs beside the guest; the default means nothing.
    pub command: Vec<String>,
    /// For every command. It reaches the sandbox through the guest and is in no object of the cluster.
    pub env: BTreeMap<String, String>,
    /// Processor time that the node must have.
    pub cpu_request: String,
    /// The most processor time.
    pub cpu_limit: String,
    /// Memory that the node must have.
    pub memory_request: String,
    /// The most memory.
    pub memory_limit: String,
    /// The most disk space.
    pub ephemeral_storage_limit: String,
    /// No network: a deny-all `NetworkPolicy` is there before the Pod, or there is no Pod.
    pub block_network: bool,
    /// The user; none: the cluster or the image decides, as OpenShift wants it.
    pub run_as_user: Option<i64>,
    /// The group; none: the cluster or the image decides.
    pub run_as_group: Option<i64>,
    /// `RuntimeDefault` or `Localhost`.
    pub seccomp_profile: String,
    /// The node's file for `Localhost`.
    pub seccomp_localhost_profile: Option<String>,
    /// Not in this version.
    pub namespace_per_sandbox: bool,
    /// The older name of `ttl_seconds`; counts only when it is set.
    pub pod_ttl_seconds: Option<u64>,
    /// Not in this version.
    pub warm_pool_size: u32,
    /// The Pod's `ServiceAccount`; its token is never mounted.
    pub service_account: Option<String>,
    /// The labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// As in a Pod.
    pub tolerations: Vec<Value>,
    /// Further volumes, as in a Pod.
    pub volumes: Vec<Value>,
    /// Where they are mounted, as in a container.
    pub volume_mounts: Vec<Value>,
    /// What runs before, as in a Pod.
    pub init_containers: Vec<Value>,
    /// Not in this version.
    pub pod_template_overrides: Option<Value>,
    /// Annotations of the Pod.
    pub extra_annotations: BTreeMap<String, String>,
    /// Not in this version.
    pub setup_script: Option<String>,
    /// The Pod's runtime class, for example one of gVisor.
    pub runtime_class: Option<String>,
    /// The image's files can't be changed; only `writable_dirs` can.
    pub read_only_root: bool,
    /// Directories that commands can write to, whoever they run as.
    pub writable_dirs: Vec<String>,
    /// The processor of the nodes: `amd64` or `arm64`.
    pub arch: String,
}

impl Default for RawConfig {
    fn default() -> Self {
        let text = str::to_owned;
        let writable = [
            "/workspace",
            "/tmp",
            "/app",
            "/home/sandbox",
            "/large_tool_results",
            "/conversation_history",
            "/blobs",
        ];
        Self {
            kubeconfig: None,
            context: None,
            package_dir: None,
            namespace: text("default"),
            startup_timeout_seconds: 120,
            default_exec_timeout: 1800,
            default_labels: BTreeMap::new(),
            ttl_seconds: None,
            ttl_idle_seconds: None,
            image: text("python:3.12-slim"),
            image_pull_policy: text("IfNotPresent"),
            image_pull_secrets: Vec::new(),
            workdir: text("/workspace"),
            command: NO_COMMAND.map(text).to_vec(),
            env: BTreeMap::new(),
            cpu_request: text("100m"),
            cpu_limit: text("1000m"),
            memory_request: text("256Mi"),
            memory_limit: text("1Gi"),
            ephemeral_storage_limit: text("5Gi"),
            block_network: true,
            run_as_user: Some(1000),
            run_as_group: Some(1000),
            seccomp_profile: text("RuntimeDefault"),
            seccomp_localhost_profile: None,
            namespace_per_sandbox: false,
            pod_ttl_seconds: None,
            warm_pool_size: 0,
            service_account: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            volumes: Vec::new(),
            volume_mounts: Vec::new(),
            init_containers: Vec::new(),
            pod_template_overrides: None,
            extra_annotations: BTreeMap::new(),
            setup_script: None,
            runtime_class: None,
            read_only_root: false,
            writable_dirs: writable.map(text).to_vec(),
            arch: text("amd64"),
        }
    }
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

/// The parts of a configuration that are Kubernetes objects, read.
pub(crate) struct PodParts {
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) volume_mounts: Vec<VolumeMount>,
    pub(crate) init_containers: Vec<Container>,
}

impl RawConfig {
    /// Whether a sandbox can be made of it: refuses what contradicts itself and what this version can't do.
    pub fn check(&self) -> Result<()> {
        self.check_supported()?;
        self.check_values()?;
        self.check_dirs()?;
        self.check_labels()?;
        self.parts().map(drop)
    }

    /// What every sandbox has unless a request says otherwise.
    pub(crate) fn defaults(&self) -> Defaults {
        let timeout = self.default_exec_timeout;
        Defaults {
            labels: self.default_labels.clone(),
            env: self.env.clone(),
            working_dir: self.workdir.clone(),
            ttl: self.ttl_seconds.or(self.pod_ttl_seconds).map(Duration::from_secs),
            idle_ttl: self.ttl_idle_seconds.map(Duration::from_secs),
            exec_timeout: (timeout > 0).then(|| Duration::from_secs(timeout)),
        }
    }

    /// Whether something is to run beside the guest.
    pub(crate) fn has_command(&self) -> bool {
        self.command != NO_COMMAND
    }

    /// The Kubernetes objects in it, and no field lost.
    pub(crate) fn parts(&self) -> Result<PodParts> {
        let parts = PodParts {
            tolerations: read_all("tolerations", &self.tolerations)?,
            volumes: read_all("volumes", &self.volumes)?,
            volume_mounts: read_all("volume_mounts", &self.volume_mounts)?,
            init_containers: read_all("init_containers", &self.init_containers)?,
        };
        if let Some(volume) = parts.volumes.iter().find(|volume| volume.name.starts_with(OWN_PREFIX)) {
            let field = format!("volumes: the name '{}' begins with '{OWN_PREFIX}'", volume.name);
            return Err(refused(&field, "Choose another name: those are sandpod's own."));
        }
        if let Some(mount) = parts.volume_mounts.iter().find(|mount| overlap(&mount.mount_path, GUEST_DIR)) {
            let field = format!("volume_mounts: '{}' hides the guest in {GUEST_DIR}", mount.mount_path);
            return Err(refused(&field, "Mount it elsewhere."));
        }
        if parts.init_containers.iter().any(|container| container.name == CONTAINER) {
            let field = format!("init_containers: the name '{CONTAINER}' is the sandbox's own container");
            return Err(refused(&field, "Choose another name."));
        }
        Ok(parts)
    }

    fn check_supported(&self) -> Result<()> {
        let missing = [
            ("warm_pool_size", self.warm_pool_size > 0),
            ("namespace_per_sandbox", self.namespace_per_sandbox),
            ("setup_script", self.setup_script.is_some()),
            ("pod_template_overrides", self.pod_template_overrides.is_some()),
        ];
        match missing.iter().find(|(_, used)| *used) {
            None => Ok(()),
            Some((name, _)) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{name} is not supported by this version of sandpod."),
                format!("Leave {name} at its default."),
            )),
        }
    }

    fn check_values(&self) -> Result<()> {
        if !["Always", "IfNotPresent", "Never"].contains(&self.image_pull_policy.as_str()) {
            let field = format!("image_pull_policy is '{}'", self.image_pull_policy);
            return Err(refused(&field, "Use 'Always', 'IfNotPresent' or 'Never'."));
        }
        if !["amd64", "arm64"].contains(&self.arch.as_str()) {
            return Err(refused(&format!("arch is '{}'", self.arch), "Use 'amd64' or 'arm64'."));
        }
        match (self.seccomp_profile.as_str(), &self.seccomp_localhost_profile) {
            ("RuntimeDefault", None) | ("Localhost", Some(_)) => {}
            ("Localhost", None) => {
                let field = "seccomp_profile is 'Localhost' without seccomp_localhost_profile";
                return Err(refused(field, "Name the profile's file on the nodes there."));
            }
            ("RuntimeDefault", Some(_)) => {
                let field = "seccomp_localhost_profile is set, but seccomp_profile is 'RuntimeDefault'";
                return Err(refused(field, "Set seccomp_profile to 'Localhost', or leave the other out."));
            }
            (other, _) => {
                let field = format!("seccomp_profile is '{other}'");
                return Err(refused(&field, "Use 'RuntimeDefault' or 'Localhost'."));
            }
        }
        if self.run_as_user == Some(0) {
            let field = "run_as_user is 0, but sandboxes never run as root";
            return Err(refused(field, "Use another user, such as 1000."));
        }
        if self.node_selector.get(ARCH_LABEL).is_some_and(|arch| *arch != self.arch) {
            let field = format!("node_selector asks for another {ARCH_LABEL} than arch, '{}'", self.arch);
            return Err(refused(&field, "Set arch, and leave the label to sandpod."));
        }
        if let (Some(ttl), Some(pod_ttl)) = (self.ttl_seconds, self.pod_ttl_seconds)
            && ttl != pod_ttl
        {
            let field = format!("ttl_seconds is {ttl} and pod_ttl_seconds, its older name, is {pod_ttl}");
            return Err(refused(&field, "Set only ttl_seconds."));
        }
        let positive = [
            ("startup_timeout_seconds", Some(self.startup_timeout_seconds)),
            ("ttl_seconds", self.ttl_seconds),
            ("pod_ttl_seconds", self.pod_ttl_seconds),
            ("ttl_idle_seconds", self.ttl_idle_seconds),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == Some(0)) {
            return Err(refused(&format!("{name} is 0"), "Give at least one second, or leave it out."));
        }
        let texts = [
            ("namespace", &self.namespace),
            ("image", &self.image),
            ("cpu_request", &self.cpu_request),
            ("cpu_limit", &self.cpu_limit),
            ("memory_request", &self.memory_request),
            ("memory_limit", &self.memory_limit),
            ("ephemeral_storage_limit", &self.ephemeral_storage_limit),
        ];
        if let Some((name, _)) = texts.iter().find(|(_, value)| value.trim().is_empty()) {
            return Err(refused(
                &format!("{name} is empty"),
                "Give a value, or leave it out for the default.",
            ));
        }
        if self.command.is_empty() {
            let next = "Leave it out: the default, ['sleep', 'infinity'], runs nothing but the guest.";
            return Err(refused("command is empty", next));
        }
        if let Some(name) = self.env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            let field = format!("env has the name {name:?}");
            return Err(refused(&field, "Use names without '=' and NUL that are not empty."));
        }
        Ok(())
    }

    fn check_dirs(&self) -> Result<()> {
        let dirs = self.writable_dirs.iter().map(|dir| ("writable_dirs", dir));
        for (name, dir) in dirs.chain([("workdir", &self.workdir)]) {
            let plain = dir.starts_with('/') && !dir.split('/').any(|part| part == ".." || part == ".");
            if !plain || dir.contains([':', '\0']) {
                let field = format!("{name} has {dir:?}");
                return Err(refused(&field, "Use absolute paths without '.', '..' and ':'."));
            }
        }
        for dir in &self.writable_dirs {
            let dir = trimmed(dir);
            let system = ["", "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/lib"];
            if system.contains(&dir) || overlap(dir, GUEST_DIR) {
                let field = format!("writable_dirs has '{dir}/', which would hide the system or the guest");
                return Err(refused(&field, "Use directories of your own, such as /workspace."));
            }
        }
        Ok(())
    }

    fn check_labels(&self) -> Result<()> {
        for (key, value) in &self.default_labels {
            let reserved = ["id", "network"].contains(&key.as_str());
            if reserved || key.is_empty() || !is_label(key) || !is_label(value) {
                let field = format!("default_labels has {key:?}: {value:?}");
                let next =
                    "Use up to 63 letters, digits, '-', '_' and '.', and neither 'id' nor 'network' as key.";
                return Err(refused(&field, next));
            }
        }
        Ok(())
    }
}

/// A path without slashes at its end.
pub(crate) fn trimmed(dir: &str) -> &str {
    dir.trim_end_matches('/')
}

/// Whether one of the paths is the other or lies in it.
fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (format!("{}/", trimmed(one)), format!("{}/", trimmed(other)));
    one.starts_with(&other) || other.starts_with(&one)
}

/// What Kubernetes takes as a label's value, and as its key's name.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let outer = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().all(|&byte| inner(byte)) && outer(bytes.first()) && outer(bytes.last())
}

fn refused(field: &str, next: &str) -> Error {
    Error::invalid(format!("The configuration can't be used: {field}."), next)
}

fn read_all<T: DeserializeOwned + Serialize>(field: &str, values: &[Value]) -> Result<Vec<T>> {
    values.iter().map(|value| read(field, value)).collect()
}

/// Reads a Kubernetes object; a field that Kubernetes doesn't know is refused, not dropped.
fn read<T: DeserializeOwned + Serialize>(field: &str, value: &Value) -> Result<T> {
    let next = "Write it as in a Pod's manifest.";
    let bad = |cause: serde_json::Error| refused(&format!("{field}: {cause}"), next);
    let object: T = serde_json::from_value(value.clone()).map_err(bad)?;
    let known = serde_json::to_value(&object).map_err(bad)?;
    match first_unknown(value, &known) {
        None => Ok(object),
        Some(name) => Err(refused(&format!("{field}: Kubernetes has no field '{name}' there"), next)),
    }
}

/// The first field of `given` that is not in `known`.
fn first_unknown<'a>(given: &'a Value, known: &Value) -> Option<&'a str> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(name, value)| {
            match known.get(name) {
                Some(inner) => first_unknown(value, inner),
                // An empty list is left out when it is written.
                None if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => None,
                None => Some(name.as_str()),
            }
        }),
        (Value::Array(given), Value::Array(known)) => {
            given.iter().zip(known).find_map(|(given, known)| first_unknown(given, known))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What `check` says of the default configuration with `fields` changed.
    fn said(fields: Value) -> (ErrorKind, String) {
        let config: RawConfig = serde_json::from_value(fields).unwrap();
        let error = config.check().unwrap_err();
        (error.kind(), error.to_string())
    }

    #[test]
    fn the_defaults_are_usable() {
        RawConfig::default().check().unwrap();
    }

    #[test]
    fn secrets_of_the_environment_are_not_debugged() {
        let config: RawConfig = serde_json::from_value(json!({ "env": { "TOKEN": "s3cret" } })).unwrap();
        let shown = format!("{config:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let error = serde_json::from_value::<RawConfig>(json!({ "imgae": "x" })).unwrap_err();
        assert!(error.to_string().contains("imgae"), "{error}");
    }

    #[test]
    fn what_this_version_cannot_do_is_refused_by_name_and_never_ignored() {
        for (name, value) in [
            ("warm_pool_size", json!(1)),
            ("namespace_per_sandbox", json!(true)),
            ("setup_script", json!("true")),
            ("pod_template_overrides", json!({})),
        ] {
            let (kind, message) = said(json!({ name: value }));
            assert_eq!(kind, ErrorKind::Unsupported);
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn a_contradiction_is_refused_with_the_names_of_its_fields() {
        for (fields, names) in [
            (json!({ "seccomp_profile": "Localhost" }), ["seccomp_profile", "seccomp_localhost_profile"]),
            (json!({ "seccomp_localhost_profile": "x" }), ["seccomp_profile", "seccomp_localhost_profile"]),
            (json!({ "ttl_seconds": 1, "pod_ttl_seconds": 2 }), ["ttl_seconds", "pod_ttl_seconds"]),
            (json!({ "arch": "arm64", "node_selector": { ARCH_LABEL: "amd64" } }), ["node_selector", "arch"]),
            (json!({ "run_as_user": 0 }), ["run_as_user", "root"]),
        ] {
            let (kind, message) = said(fields);
            assert_eq!(kind, ErrorKind::InvalidInput);
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        }
    }

    #[test]
    fn a_value_that_means_nothing_is_refused() {
        for fields in [
            json!({ "image": "" }),
            json!({ "image_pull_policy": "Sometimes" }),
            json!({ "arch": "riscv" }),
            json!({ "seccomp_profile": "Unconfined" }),
            json!({ "startup_timeout_seconds": 0 }),
            json!({ "command": [] }),
            json!({ "env": { "A=B": "c" } }),
            json!({ "workdir": "workspace" }),
            json!({ "writable_dirs": ["/a/../etc"] }),
            json!({ "writable_dirs": ["/"] }),
            json!({ "writable_dirs": ["/sandpod/x"] }),
            json!({ "volumes": [{ "name": "sandpod-guest", "emptyDir": {} }] }),
            json!({ "volume_mounts": [{ "name": "x", "mountPath": "/sandpod" }] }),
            json!({ "volume_mounts": [{ "name": "x", "mountPath": "/" }] }),
            json!({ "init_containers": [{ "name": "sandbox" }] }),
            json!({ "default_labels": { "id": "x" } }),
            json!({ "default_labels": { "team": "a b" } }),
        ] {
            assert_eq!(said(fields.clone()).0, ErrorKind::InvalidInput, "{fields}");
        }
    }

    #[test]
    fn a_misspelt_field_of_a_kubernetes_object_is_refused_and_not_dropped() {
        let (_, message) = said(json!({ "tolerations": [{ "key": "a", "efect": "NoSchedule" }] }));
        assert!(message.contains("efect"), "{message}");
        let (_, message) = said(json!({ "volumes": [{ "name": "a", "emptyDir": { "sizeLimt": "1Mi" } }] }));
        assert!(message.contains("sizeLimt"), "{message}");
    }
}
