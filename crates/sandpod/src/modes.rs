//! The registry of backends: the name of each mode and the configuration that opens its [`Provider`].
//!
//! A new backend needs a row in the table below, a configuration that implements [`ModeConfig`], and a directory in
//! `backend/`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::any_of;
use crate::naming::IdFormat;
use crate::{
    AgentSandboxConfig, AuditConfig, Error, Layer, LocalConfig, Provider, RawConfig, Result, SandboxId,
};

/// The configuration of one mode.
pub(crate) trait ModeConfig: Sized {
    /// Merges the layers over the defaults. Later layers win. Options of other modes are ignored.
    fn from_layers(layers: Vec<Layer>) -> Result<Self>;
    /// Same as `from_layers`, but rejects an option of another mode by name.
    fn from_arguments(arguments: Layer) -> Result<Self>;
    /// Returns every option of the mode with its value from these layers.
    fn options(layers: Vec<Layer>) -> Result<Map<String, Value>>;
    /// Checks that sandboxes can be created.
    fn check(&self) -> Result<()>;
    /// Checks that existing sandboxes can be used.
    fn check_settings(&self) -> Result<()>;
    /// Configuration of the audit.
    fn audit(&self) -> AuditConfig;
    /// Sets the directory of the package that contains the guest.
    fn set_package_dir(&mut self, dir: PathBuf);
    /// Namespace and template or image of the sandboxes.
    fn origin(&self) -> [&str; 2];
    /// Format of the ids of sandboxes.
    fn id_format(&self) -> IdFormat;
    /// Labels of every sandbox.
    fn default_labels(&self) -> &BTreeMap<String, String>;
    /// Creates the provider. Sends no request to a cluster.
    async fn open(self) -> Result<Provider>;
}

macro_rules! modes {
    ($( $(#[doc = $doc:literal])+ $mode:ident, $name:literal, $config:ident; )+) => {
        /// Where sandboxes run.
        ///
        /// ```
        /// use sandpod::Mode;
        ///
        /// assert_eq!("raw".parse::<Mode>()?, Mode::Raw);
        /// assert!("docker".parse::<Mode>().is_err());
        /// # Ok::<(), sandpod::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum Mode {
            $( $(#[doc = $doc])+ $mode, )+
        }

        impl Mode {
            /// All modes.
            pub const ALL: &[Self] = &[$( Self::$mode ),+];

            /// The name, as in options and variables.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$mode => $name, )+ }
            }
        }

        /// The configuration of any mode.
        ///
        /// ```no_run
        /// # async fn example() -> sandpod::Result<()> {
        /// use sandpod::{Config, Layer, Mode, Provider};
        ///
        /// let config = Config::from_layers(Mode::Local, [Layer::of_process(None)?])?;
        /// let provider = Provider::open(config).await?;
        /// # Ok(())
        /// # }
        /// ```
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Config {
            $( $(#[doc = $doc])+ $mode(Box<$config>), )+
        }

        $( impl From<$config> for Config {
            fn from(config: $config) -> Self {
                Self::$mode(Box::new(config))
            }
        } )+

        impl Config {
            /// Merges the layers over the defaults of a mode. Later layers win. Options of other modes are ignored,
            /// because several modes may share a file. The result is not checked.
            pub fn from_layers(mode: Mode, layers: impl IntoIterator<Item = Layer>) -> Result<Self> {
                let layers = layers.into_iter().collect();
                Ok(match mode { $( Mode::$mode => <$config as ModeConfig>::from_layers(layers)?.into(), )+ })
            }

            /// Same as [`from_layers`](Self::from_layers), but rejects an option that the mode does not have by name.
            pub fn from_arguments(mode: Mode, arguments: Layer) -> Result<Self> {
                Ok(match mode { $( Mode::$mode => <$config as ModeConfig>::from_arguments(arguments)?.into(), )+ })
            }

            /// Returns every option of a mode with its value from these layers.
            pub fn options(mode: Mode, layers: impl IntoIterator<Item = Layer>) -> Result<Map<String, Value>> {
                let layers = layers.into_iter().collect();
                match mode { $( Mode::$mode => <$config as ModeConfig>::options(layers), )+ }
            }

            /// The mode of this configuration.
            #[must_use]
            pub fn mode(&self) -> Mode {
                match self { $( Self::$mode(_) => Mode::$mode, )+ }
            }

            /// Checks that sandboxes can be created. Agent-sandbox mode requires a template or a warm pool.
            pub fn check(&self) -> Result<()> {
                match self { $( Self::$mode(config) => ModeConfig::check(config.as_ref()), )+ }
            }

            /// Checks that existing sandboxes can be used.
            pub fn check_settings(&self) -> Result<()> {
                match self { $( Self::$mode(config) => ModeConfig::check_settings(config.as_ref()), )+ }
            }

            /// Configuration of the audit.
            #[must_use]
            pub fn audit(&self) -> AuditConfig {
                match self { $( Self::$mode(config) => config.audit(), )+ }
            }

            /// Sets the directory of a package that bundles this library. The guest is in its `guest/<arch>`.
            #[must_use]
            pub fn in_package(mut self, dir: impl Into<PathBuf>) -> Self {
                match &mut self { $( Self::$mode(config) => config.set_package_dir(dir.into()), )+ }
                self
            }

            fn id_format(&self) -> IdFormat {
                match self { $( Self::$mode(config) => ModeConfig::id_format(config.as_ref()), )+ }
            }

            pub(crate) fn origin(&self) -> [&str; 2] {
                match self { $( Self::$mode(config) => config.origin(), )+ }
            }

            pub(crate) fn default_labels(&self) -> &BTreeMap<String, String> {
                match self { $( Self::$mode(config) => config.default_labels(), )+ }
            }

            pub(crate) async fn open(self) -> Result<Provider> {
                match self { $( Self::$mode(config) => Box::pin(config.open()).await, )+ }
            }
        }
    };
}

// Columns: mode, name, configuration.
modes! {
    /// Runs sandboxes in Pods of agent-sandbox.
    AgentSandbox, "agent-sandbox", AgentSandboxConfig;
    /// Runs sandboxes in Pods that sandpod creates.
    Raw, "raw", RawConfig;
    /// Runs sandboxes in Linux namespaces on this machine.
    Local, "local", LocalConfig;
}

impl Config {
    /// Parses an id that a user wrote: the id alone, or `NAMESPACE/ID`. An error of kind
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) means that the sandbox would be in another namespace.
    pub fn parse_id(&self, text: &str) -> Result<SandboxId> {
        self.id_format().parse(text)
    }

    /// Returns an id as users of the configured naming write it.
    #[must_use]
    pub fn show_id(&self, id: &SandboxId) -> String {
        self.id_format().show(id)
    }

    /// Default scope of a thread manager. Managers with the same mode, namespace, template or image, and labels share
    /// it. `labels` are the manager's labels in addition to those of the configuration.
    #[must_use]
    pub fn default_scope(&self, labels: &BTreeMap<String, String>) -> String {
        let mut all = self.default_labels().clone();
        all.extend(labels.clone());
        let parts = json!([self.mode().as_str(), self.origin(), all]).to_string();
        HEXLOWER.encode(&Sha256::digest(parts)[..8])
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|mode| mode.as_str() == name).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            let names: Vec<_> = Self::ALL.iter().map(|mode| mode.as_str()).collect();
            let next = format!("Must be {}.", any_of(&names));
            Error::invalid(format!("Unknown mode: '{}'.", shown.escape_debug()), next)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn arguments(options: &Value) -> Layer {
        Layer::arguments(options.as_object().cloned().unwrap()).unwrap()
    }

    #[test]
    fn unknown_mode_error_lists_all_modes() {
        let error = "docker".parse::<Mode>().unwrap_err();
        assert_eq!(error.to_string(), "Unknown mode: 'docker'. Must be 'agent-sandbox', 'raw' or 'local'.");
    }

    #[test]
    fn each_mode_reads_its_own_options_and_rejects_others() {
        for (mode, other) in [
            (Mode::AgentSandbox, json!({ "image": "busybox" })),
            (Mode::Raw, json!({ "template_name": "t" })),
            (Mode::Local, json!({ "namespace": "agents" })),
        ] {
            let config = Config::from_layers(mode, [arguments(&other)]).unwrap();
            assert_eq!(config.mode(), mode);
            let error = Config::from_arguments(mode, arguments(&other)).unwrap_err();
            let name = other.as_object().unwrap().keys().next().unwrap();
            assert!(error.to_string().contains(name.as_str()), "{error}");
            assert!(!Config::options(mode, []).unwrap().contains_key(name));
        }
    }

    #[test]
    fn agent_sandbox_mode_requires_a_template_only_for_creation() {
        let config = Config::from(AgentSandboxConfig::default());
        assert!(config.check().is_err());
        config.check_settings().unwrap();
    }

    #[test]
    fn default_scope_depends_on_mode_namespace_origin_and_labels() {
        let scope = |mode, options: Value, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Config::from_arguments(mode, arguments(&options)).unwrap().default_scope(&labels)
        };
        let scopes = BTreeSet::from([
            scope(Mode::Raw, json!({}), &[]),
            scope(Mode::Raw, json!({ "namespace": "agents" }), &[]),
            scope(Mode::Raw, json!({ "image": "busybox" }), &[]),
            scope(Mode::Raw, json!({ "default_labels": { "team": "search" } }), &[]),
            scope(Mode::AgentSandbox, json!({ "template_name": "t" }), &[]),
        ]);
        assert_eq!(scopes.len(), 5);
        let of_labels = scope(Mode::Raw, json!({}), &[("team", "search")]);
        assert!(scopes.contains(&of_labels) && of_labels.len() == 16);
    }
}
