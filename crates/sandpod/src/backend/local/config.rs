//! How sandboxes on this machine are made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::guest::{GuestProgram, Manner};
use crate::guard::SandboxPolicy;
use crate::provider::Defaults;
use crate::{Result, guest_binaries};

/// How sandboxes on this machine are made.
///
/// ```
/// use sandpod::LocalConfig;
///
/// let config = LocalConfig { network: true, ..LocalConfig::default() };
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
    /// Whether sandboxes have the machine's network.
    pub network: bool,
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
    /// When a new sandbox that nobody uses ends; none: it doesn't.
    pub ttl_idle_seconds: Option<u64>,
    /// What callers may do in sandboxes.
    pub policy: Option<SandboxPolicy>,
    /// How long a command may take if a call doesn't say; 0: as long as it takes.
    pub default_exec_timeout: u64,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            program: None,
            package_dir: None,
            state_dir: None,
            network: false,
            ends_with_process: false,
            workdir: "/workspace".to_owned(),
            env: BTreeMap::new(),
            default_labels: BTreeMap::new(),
            ttl_seconds: None,
            ttl_idle_seconds: None,
            policy: None,
            default_exec_timeout: 1800,
        }
    }
}

impl LocalConfig {
    pub(crate) fn program(&self) -> Result<GuestProgram> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        let path = guest_binaries::find_guest(self.package_dir.as_deref())?;
        Ok(GuestProgram { path, args: vec!["local".to_owned()] })
    }

    pub(crate) fn manner(&self) -> Manner {
        Manner { owned: self.ends_with_process, network: self.network }
    }

    pub(crate) fn defaults(&self) -> Defaults {
        let timeout = self.default_exec_timeout;
        Defaults {
            labels: self.default_labels.clone(),
            env: self.env.clone(),
            working_dir: self.workdir.clone(),
            ttl: self.ttl_seconds.map(Duration::from_secs),
            idle_ttl: self.ttl_idle_seconds.map(Duration::from_secs),
            exec_timeout: (timeout > 0).then(|| Duration::from_secs(timeout)),
            setup: None,
            policy: self.policy.clone(),
        }
    }
}
