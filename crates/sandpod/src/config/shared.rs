//! What the configurations of both modes in a cluster mean alike: their options have the same names there.

use std::time::Duration;

use super::{AgentSandboxConfig, RawConfig};
use crate::Naming;
use crate::audit::AuditConfig;
use crate::provider::Defaults;
use crate::setup::SetupScript;

macro_rules! shared {
    ($($config:ty, $naming:expr, $working_dir:expr);+) => {$(
        impl $config {
            /// What every sandbox has unless a request says otherwise.
            pub(crate) fn defaults(&self) -> Defaults {
                let timeout = self.default_exec_timeout;
                let naming: fn(&Self) -> Naming = $naming;
                let working_dir: fn(&Self) -> Option<String> = $working_dir;
                Defaults {
                    naming: naming(self),
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

            /// Who hears of every operation.
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
    )+};
}

// A claim has a name that is never another's, whoever knows the names of what is noted on it.
shared!(
    AgentSandboxConfig, |_| Naming::Sandpod, |config| config.workdir.clone();
    RawConfig, |config| config.naming, |config| Some(config.workdir.clone())
);
