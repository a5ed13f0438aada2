//! The configuration of sandboxes on this machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::guest::{GuestProgram, StartOptions};
use super::limits::Limits;
use super::{LocalMount, quantity};
use crate::audit::AuditConfig;
use crate::config::{OWN_DOMAIN, check_times, refused};
use crate::guard::SandboxPolicy;
use crate::modes::ModeConfig;
use crate::naming::IdFormat;
use crate::provider::Defaults;
use crate::{Layer, Provider, RawConfig, Result, guest_binaries};

/// The network of a local sandbox.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalNetwork {
    /// Only a loopback interface of its own: no connections to this machine or other hosts.
    #[default]
    None,
    /// The network of this machine, including services that listen on 127.0.0.1.
    Host,
}

/// The configuration of sandboxes on this machine.
///
/// ```
/// use sandpod::{LocalConfig, LocalNetwork};
///
/// let config = LocalConfig { network: LocalNetwork::Host, ..LocalConfig::default() };
/// assert_eq!(config.workdir, "/workspace");
/// ```
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// The program of the guest. Default: the guest beside the package or executable, or in the cache.
    pub program: Option<GuestProgram>,
    /// The directory of the package, which contains its guest.
    pub package_dir: Option<PathBuf>,
    /// The directory of sandboxes. Default: the user's state directory.
    pub state_dir: Option<PathBuf>,
    /// The network of sandboxes.
    pub network: LocalNetwork,
    /// The memory limit of a sandbox in bytes, enforced where cgroups can be created. Default: none.
    pub memory_limit: Option<u64>,
    /// The CPU limit of a sandbox in millicores, enforced where cgroups can be created. Default: none.
    pub cpu_limit: Option<u32>,
    /// The limit of processes and threads of a sandbox; 0 disables it.
    pub task_limit: u32,
    /// Files and directories of this machine that are mounted in new sandboxes.
    pub mounts: Vec<LocalMount>,
    /// Ends sandboxes with this process.
    pub ends_with_process: bool,
    /// The working directory of commands.
    pub workdir: String,
    /// The environment variables of every command.
    pub env: BTreeMap<String, String>,
    /// The labels of every new sandbox.
    pub default_labels: BTreeMap<String, String>,
    /// Seconds after creation at which a new sandbox is deleted. Default: never.
    pub ttl_seconds: Option<u64>,
    /// Seconds without a call after which a new sandbox is deleted. Default: never.
    pub ttl_idle_seconds: Option<u64>,
    /// The policy of sandboxes.
    pub policy: Option<SandboxPolicy>,
    /// The audit of operations.
    pub audit: AuditConfig,
    /// The timeout in seconds of commands whose call has none; 0 disables it.
    pub default_exec_timeout: u64,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            program: None,
            package_dir: None,
            state_dir: None,
            network: LocalNetwork::None,
            memory_limit: None,
            cpu_limit: None,
            task_limit: 4096,
            mounts: Vec::new(),
            ends_with_process: false,
            workdir: "/workspace".to_owned(),
            env: BTreeMap::new(),
            default_labels: BTreeMap::new(),
            ttl_seconds: None,
            ttl_idle_seconds: None,
            policy: None,
            audit: AuditConfig::default(),
            default_exec_timeout: 1800,
        }
    }
}

/// The shared options that local mode supports.
const OPTIONS: [&str; 15] = [
    "audit_commands",
    "audit_file",
    "block_network",
    "cpu_limit",
    "default_exec_timeout",
    "default_labels",
    "env",
    "memory_limit",
    "otlp_endpoint",
    "pod_ttl_seconds",
    "policy",
    "strict_audit",
    "ttl_idle_seconds",
    "ttl_seconds",
    "workdir",
];

impl LocalConfig {
    /// Reads the options that local mode supports and ignores the others. Later layers override earlier ones. Only
    /// explicit limits apply. If `block_network` is false, the sandbox has this machine's network.
    ///
    /// ```
    /// use sandpod::{Layer, LocalConfig, LocalNetwork};
    ///
    /// let file = serde_json::json!({ "namespace": "agents", "block_network": false, "memory_limit": "2Gi" });
    /// let file = Layer::arguments(file.as_object().cloned().unwrap_or_default())?;
    /// let config = LocalConfig::from_layers([file])?;
    /// assert_eq!((config.network, config.memory_limit), (LocalNetwork::Host, Some(2 << 30)));
    /// # Ok::<(), sandpod::Error>(())
    /// ```
    pub fn from_layers(layers: impl IntoIterator<Item = Layer>) -> Result<Self> {
        let said = layers.into_iter().fold(Layer::default(), |below, layer| layer.over(below));
        let limit = |name: &str| said.options().get(name).and_then(|value| value.as_str()).map(str::to_owned);
        let (memory, cpu) = (limit("memory_limit"), limit("cpu_limit"));
        let shared = RawConfig::from_layers([said])?;
        Ok(Self {
            audit: shared.audit_config(),
            policy: shared.policy,
            network: if shared.block_network { LocalNetwork::None } else { LocalNetwork::Host },
            memory_limit: memory.as_deref().map(quantity::bytes).transpose()?,
            cpu_limit: cpu.as_deref().map(quantity::thousandths).transpose()?,
            workdir: shared.workdir,
            env: shared.env,
            default_labels: shared.default_labels,
            ttl_seconds: shared.ttl_seconds.or(shared.pod_ttl_seconds),
            ttl_idle_seconds: shared.ttl_idle_seconds,
            default_exec_timeout: shared.default_exec_timeout,
            ..Self::default()
        })
    }

    /// Returns every option of local mode with its value, as [`from_layers`](Self::from_layers) resolves it.
    ///
    /// ```
    /// let options = sandpod::LocalConfig::options([])?;
    /// assert_eq!(options["workdir"], "/workspace");
    /// assert!(options["memory_limit"].is_null() && !options.contains_key("image"));
    /// # Ok::<(), sandpod::Error>(())
    /// ```
    pub fn options(layers: impl IntoIterator<Item = Layer>) -> Result<Map<String, Value>> {
        let said = layers.into_iter().fold(Layer::default(), |below, layer| layer.over(below));
        Self::from_layers([said.clone()])?;
        let shared = serde_json::to_value(RawConfig::from_layers([said.clone()])?);
        let shared = shared.map_err(|cause| refused(&cause.to_string(), "Report this."))?;
        let value = |name: &str| match name {
            // Local mode does not use raw mode's defaults of these limits.
            "memory_limit" | "cpu_limit" => said.options().get(name).cloned().unwrap_or_default(),
            name => shared[name].clone(),
        };
        Ok(OPTIONS.iter().map(|name| ((*name).to_owned(), value(name))).collect())
    }

    /// Reads explicit arguments as [`from_layers`](Self::from_layers) does, but rejects options that local mode does
    /// not support.
    pub fn from_arguments(arguments: Layer) -> Result<Self> {
        match arguments.options().keys().find(|name| !OPTIONS.contains(&name.as_str())) {
            None => Self::from_layers([arguments]),
            Some(name) => Err(refused(
                &format!("{name} has no effect on this machine"),
                &format!("Leave it out, or use mode raw. Local mode has {}.", OPTIONS.join(", ")),
            )),
        }
    }

    /// Validates the configuration.
    pub fn check(&self) -> Result<()> {
        check_times([("ttl_seconds", self.ttl_seconds), ("ttl_idle_seconds", self.ttl_idle_seconds)])?;
        self.mounts.iter().try_for_each(LocalMount::check)?;
        self.policy.as_ref().map_or(Ok(()), SandboxPolicy::check)
    }

    pub(crate) fn program(&self) -> Result<GuestProgram> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        guest_binaries::find_guest(self.package_dir.as_deref()).map(GuestProgram::at)
    }

    pub(crate) fn start_options(&self) -> StartOptions {
        let limits = Limits { memory: self.memory_limit, cpu: self.cpu_limit, tasks: self.task_limit };
        let mounts = self.mounts.clone();
        StartOptions { owned: self.ends_with_process, network: self.network, limits, mounts }
    }

    pub(crate) fn defaults(&self) -> Defaults {
        let timeout = self.default_exec_timeout;
        Defaults {
            ids: IdFormat::default(),
            label_prefix: OWN_DOMAIN.to_owned(),
            labels: self.default_labels.clone(),
            env: self.env.clone(),
            working_dir: Some(self.workdir.clone()),
            ttl: self.ttl_seconds.map(Duration::from_secs),
            idle_ttl: self.ttl_idle_seconds.map(Duration::from_secs),
            exec_timeout: (timeout > 0).then(|| Duration::from_secs(timeout)),
            setup: None,
            policy: self.policy.clone(),
        }
    }
}

impl ModeConfig for LocalConfig {
    fn from_layers(layers: Vec<Layer>) -> Result<Self> {
        Self::from_layers(layers)
    }

    fn from_arguments(arguments: Layer) -> Result<Self> {
        Self::from_arguments(arguments)
    }

    fn options(layers: Vec<Layer>) -> Result<Map<String, Value>> {
        Self::options(layers)
    }

    fn check(&self) -> Result<()> {
        self.check()
    }

    fn check_settings(&self) -> Result<()> {
        self.check()
    }

    fn audit(&self) -> AuditConfig {
        self.audit.clone()
    }

    fn set_package_dir(&mut self, dir: PathBuf) {
        self.package_dir = Some(dir);
    }

    fn origin(&self) -> [&str; 2] {
        ["", ""]
    }

    fn id_format(&self) -> IdFormat {
        IdFormat::default()
    }

    fn default_labels(&self) -> &BTreeMap<String, String> {
        &self.default_labels
    }

    async fn open(self) -> Result<Provider> {
        Provider::local(&self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_ttl_that_is_zero_or_out_of_range_is_rejected() {
        for (option, value, wrong) in [
            ("ttl_seconds", 0, "ttl_seconds is 0"),
            ("pod_ttl_seconds", 0, "ttl_seconds is 0"),
            ("ttl_idle_seconds", 0, "ttl_idle_seconds is 0"),
            ("ttl_seconds", u64::MAX, "ttl_seconds is more than 100 years"),
        ] {
            let said = Layer::arguments([(option.to_owned(), json!(value))].into_iter().collect()).unwrap();
            let error = LocalConfig::from_layers([said]).unwrap().check().unwrap_err();
            assert!(error.message().contains(wrong), "{error}");
        }
    }
}
