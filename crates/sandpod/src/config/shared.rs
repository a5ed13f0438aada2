//! Implements [`ModeConfig`] for [`RawConfig`] and [`AgentSandboxConfig`], which share the names of many options.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{AgentSandboxConfig, Layer, RawConfig, refused};
use crate::audit::AuditConfig;
use crate::modes::ModeConfig;
use crate::naming::{IdFormat, Namespaces};
use crate::provider::Defaults;
use crate::setup::SetupScript;
use crate::{Naming, Provider, Result};

macro_rules! shared {
    ($($config:ty, $ids:expr, $working_dir:expr, $origin:expr, $check_settings:ident, $open:ident);+) => {$(
        impl $config {
            /// Defaults of every sandbox. A request can override them.
            pub(crate) fn defaults(&self) -> Defaults {
                let timeout = self.default_exec_timeout;
                let working_dir: fn(&Self) -> Option<String> = $working_dir;
                Defaults {
                    ids: ModeConfig::id_format(self),
                    label_prefix: self.label_prefix.clone(),
                    labels: self.default_labels.clone(),
                    env: self.env.clone(),
                    working_dir: working_dir(self),
                    ttl: self.ttl_seconds.or(self.pod_ttl_seconds).map(Duration::from_secs),
                    idle_ttl: self.ttl_idle_seconds.map(Duration::from_secs),
                    exec_timeout: (timeout > 0).then(|| Duration::from_secs(timeout)),
                    setup: self.setup_script.clone().map(|script| SetupScript {
                        script,
                        limit: Duration::from_secs(self.startup_timeout_seconds),
                    }),
                    policy: self.policy.clone(),
                }
            }

            /// Configuration of the audit.
            #[must_use]
            pub fn audit_config(&self) -> AuditConfig {
                AuditConfig {
                    file: self.audit_file.clone(),
                    otlp_endpoint: self.otlp_endpoint.clone(),
                    commands: self.audit_commands,
                    strict: self.strict_audit,
                }
            }
        }

        impl ModeConfig for $config {
            fn from_layers(layers: Vec<Layer>) -> Result<Self> {
                Self::from_layers(layers)
            }

            fn from_arguments(arguments: Layer) -> Result<Self> {
                Self::from_arguments(arguments)
            }

            fn options(layers: Vec<Layer>) -> Result<Map<String, Value>> {
                let config = Self::from_layers(layers)?;
                config.$check_settings()?;
                let options = serde_json::to_value(config);
                let options = options.map_err(|cause| refused(&cause.to_string(), "Report this."))?;
                Ok(options.as_object().cloned().unwrap_or_default())
            }

            fn check(&self) -> Result<()> {
                self.check()
            }

            fn check_settings(&self) -> Result<()> {
                self.$check_settings()
            }

            fn audit(&self) -> AuditConfig {
                self.audit_config()
            }

            fn set_package_dir(&mut self, dir: PathBuf) {
                self.package_dir = Some(dir);
            }

            fn origin(&self) -> [&str; 2] {
                let origin: fn(&Self) -> &str = $origin;
                [&self.namespace, origin(self)]
            }

            fn id_format(&self) -> IdFormat {
                let ids: fn(&Self) -> IdFormat = $ids;
                ids(self)
            }

            fn default_labels(&self) -> &BTreeMap<String, String> {
                &self.default_labels
            }

            async fn open(self) -> Result<Provider> {
                Provider::$open(self).await
            }
        }
    )+};
}

// Claims always have sandpod's own names, never those of the packages that sandpod replaces.
shared!(
    AgentSandboxConfig,
    |config| IdFormat { naming: Naming::Sandpod, namespaces: Namespaces::Shared(config.namespace.clone()) },
    |config| config.workdir.clone(),
    |config| config.template_name.as_deref().or(config.warm_pool_name.as_deref()).unwrap_or_default(),
    check_settings,
    agent_sandbox;
    RawConfig,
    |config| IdFormat {
        naming: config.naming,
        namespaces: if config.namespace_per_sandbox {
            Namespaces::PerSandbox
        } else {
            Namespaces::Shared(config.namespace.clone())
        },
    },
    |config| Some(config.workdir.clone()),
    |config| &config.image,
    check,
    connect
);
