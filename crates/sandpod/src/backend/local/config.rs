//! How sandboxes on this machine are made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::guest::{GuestProgram, StartOptions};
use super::limits::Limits;
use super::quantity;
use crate::audit::AuditConfig;
use crate::config::{OWN_DOMAIN, check_times, refused};
use crate::guard::SandboxPolicy;
use crate::modes::ModeConfig;
use crate::provider::Defaults;
use crate::{Layer, Naming, Provider, RawConfig, Result, guest_binaries};

/// What network a local sandbox has.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalNetwork {
    /// None but a loopback of its own: it reaches nothing of this machine and nothing beyond it.
    #[default]
    None,
    /// This machine's own: it reaches whatever the machine does, what listens on 127.0.0.1 included.
    Host,
}

/// How sandboxes on this machine are made.
///
/// ```
/// use sandpod::{LocalConfig, LocalNetwork};
///
/// let config = LocalConfig { network: LocalNetwork::Host, ..LocalConfig::default() };
/// assert_eq!(config.workdir, "/workspace");
/// ```
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// What becomes the guest; none: the guest that is found beside the package or executable, or in the cache.
    pub program: Option<GuestProgram>,
    /// The folder of the package that is used, which holds its guest.
    pub package_dir: Option<PathBuf>,
    /// Where sandboxes are kept; none: in the user's state directory.
    pub state_dir: Option<PathBuf>,
    /// What network sandboxes have.
    pub network: LocalNetwork,
    /// The most memory of a sandbox, in bytes, where cgroups can be made; none: as much as there is.
    pub memory_limit: Option<u64>,
    /// The most processor time, in thousandths of a processor, where cgroups can be made; none: as much as there is.
    pub cpu_limit: Option<u32>,
    /// The most processes and threads of a sandbox; 0: as many as they like.
    pub task_limit: u32,
    /// Whether sandboxes end when this process does.
    pub ends_with_process: bool,
    /// Where commands start.
    pub workdir: String,
    /// For every command.
    pub env: BTreeMap<String, String>,
    /// On every new sandbox.
    pub default_labels: BTreeMap<String, String>,
    /// When a new sandbox ends; none: it doesn't.
    pub ttl_seconds: Option<u64>,
    /// Seconds without a call after which a new sandbox ends. None: it does not.
    pub ttl_idle_seconds: Option<u64>,
    /// What callers may do in sandboxes.
    pub policy: Option<SandboxPolicy>,
    /// Where every operation is recorded.
    pub audit: AuditConfig,
    /// How long a command may take if a call doesn't say; 0: as long as it takes.
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

/// The options that local mode has, of those that all modes share.
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
    /// Of the options in these layers, the later over the earlier, those that local mode has. Limits count where they are
    /// said; with `block_network` false the sandbox has this machine's network.
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

    /// Every option that local mode has, with the value that these layers give it, as [`from_layers`](Self::from_layers)
    /// reads them.
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
            // Unset limits have the defaults of raw mode, which local mode does not have.
            "memory_limit" | "cpu_limit" => said.options().get(name).cloned().unwrap_or_default(),
            name => shared[name].clone(),
        };
        Ok(OPTIONS.iter().map(|name| ((*name).to_owned(), value(name))).collect())
    }

    /// As [`from_layers`](Self::from_layers), for what a caller asks for itself: an option that local mode does not have
    /// is refused by name.
    pub fn from_arguments(arguments: Layer) -> Result<Self> {
        match arguments.options().keys().find(|name| !OPTIONS.contains(&name.as_str())) {
            None => Self::from_layers([arguments]),
            Some(name) => Err(refused(
                &format!("{name} has no effect on this machine"),
                &format!("Leave it out, or use mode raw. Local mode has {}.", OPTIONS.join(", ")),
            )),
        }
    }

    /// Whether sandboxes can be made by it.
    pub fn check(&self) -> Result<()> {
        check_times([("ttl_seconds", self.ttl_seconds), ("ttl_idle_seconds", self.ttl_idle_seconds)])?;
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
        StartOptions { owned: self.ends_with_process, network: self.network, limits }
    }

    pub(crate) fn defaults(&self) -> Defaults {
        let timeout = self.default_exec_timeout;
        Defaults {
            naming: Naming::Sandpod,
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
    fn a_sandbox_that_would_end_before_it_begins_is_refused() {
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
