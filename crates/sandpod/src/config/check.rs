//! Validation of [`RawConfig`].

use std::time::Duration;

use super::{ARCH_LABEL, GUEST_DIR, RawConfig, overlap, refused, trimmed};
use crate::backend::raw;
use crate::error::any_of;
use crate::guard::SandboxPolicy;
use crate::{Result, labels};

/// Maximum duration of any option. The sum of two such durations is still a valid date.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl RawConfig {
    /// Checks that sandboxes can be created. Rejects contradictory and unsupported values, and overrides that weaken
    /// isolation without `allow_insecure_overrides`.
    pub fn check(&self) -> Result<()> {
        self.check_choices()?;
        self.check_seccomp()?;
        self.check_contradictions()?;
        self.check_values()?;
        self.check_dirs()?;
        labels::check_prefix(&self.label_prefix)?;
        labels::check(&self.label_prefix, &self.default_labels)?;
        self.policy.as_ref().map_or(Ok(()), SandboxPolicy::check)?;
        raw::check(self)
    }

    fn check_choices(&self) -> Result<()> {
        one_of("image_pull_policy", &self.image_pull_policy, &["Always", "IfNotPresent", "Never"])?;
        one_of("arch", &self.arch, &["amd64", "arm64"])?;
        // With `Always`, an expired sandbox would restart.
        one_of("restart_policy", &self.restart_policy, &["OnFailure", "Never"])
    }

    fn check_seccomp(&self) -> Result<()> {
        match (self.seccomp_profile.as_str(), &self.seccomp_localhost_profile) {
            ("RuntimeDefault", None) | ("Localhost", Some(_)) => Ok(()),
            ("Localhost", None) => Err(refused(
                "seccomp_profile is 'Localhost' without seccomp_localhost_profile",
                "Name the profile's file on the nodes there.",
            )),
            ("RuntimeDefault", Some(_)) => Err(refused(
                "seccomp_localhost_profile is set, but seccomp_profile is 'RuntimeDefault'",
                "Set seccomp_profile to 'Localhost', or leave the other out.",
            )),
            (other, _) => one_of("seccomp_profile", other, &["RuntimeDefault", "Localhost"]),
        }
    }

    fn check_contradictions(&self) -> Result<()> {
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
        if !self.namespace_labels.is_empty() && !self.namespace_per_sandbox {
            let field = "namespace_labels is set, but namespace_per_sandbox is false";
            return Err(refused(field, "Set namespace_per_sandbox, or leave the labels out."));
        }
        if self.namespace_per_sandbox && self.warm_pool_size > 0 {
            let field =
                "namespace_per_sandbox and warm_pool_size are both set, but a Pod can't change its namespace";
            return Err(refused(field, "Set one of them."));
        }
        Ok(())
    }

    fn check_values(&self) -> Result<()> {
        check_times([
            ("startup_timeout_seconds", Some(self.startup_timeout_seconds)),
            ("ttl_seconds", self.ttl_seconds),
            ("pod_ttl_seconds", self.pod_ttl_seconds),
            ("ttl_idle_seconds", self.ttl_idle_seconds),
        ])?;
        let texts = [
            ("namespace", &self.namespace),
            ("image", &self.image),
            ("cpu_request", &self.cpu_request),
            ("cpu_limit", &self.cpu_limit),
            ("memory_request", &self.memory_request),
            ("memory_limit", &self.memory_limit),
            ("ephemeral_storage_request", &self.ephemeral_storage_request),
            ("ephemeral_storage_limit", &self.ephemeral_storage_limit),
        ];
        let script = self.setup_script.iter().map(|script| ("setup_script", script));
        if let Some((name, _)) = texts.into_iter().chain(script).find(|(_, value)| value.trim().is_empty()) {
            let next = "Give a value, or leave it out for the default.";
            return Err(refused(&format!("{name} is empty"), next));
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
}

/// Returns what is wrong with a duration and how to fix it, or `None` if the duration is valid.
pub(crate) fn wrong_time(time: Duration) -> Option<(&'static str, &'static str)> {
    if time.is_zero() {
        Some(("is 0", "Give at least one second, or leave it out."))
    } else if time > LONGEST {
        Some(("is more than 100 years", "Give less, or leave it out."))
    } else {
        None
    }
}

/// Rejects invalid numbers of seconds by the name of their option.
pub(crate) fn check_times<const N: usize>(times: [(&str, Option<u64>); N]) -> Result<()> {
    for (name, seconds) in times {
        if let Some((wrong, next)) = seconds.map(Duration::from_secs).and_then(wrong_time) {
            return Err(refused(&format!("{name} {wrong}"), next));
        }
    }
    Ok(())
}

pub(super) fn one_of(name: &str, value: &str, choices: &[&str]) -> Result<()> {
    if choices.contains(&value) {
        return Ok(());
    }
    Err(refused(&format!("{name} is '{value}'"), &format!("Use {}.", any_of(choices))))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ErrorKind;

    /// Returns the error of `check` for the default configuration with these fields.
    fn rejection(fields: &Value) -> (ErrorKind, String) {
        let config: RawConfig = serde_json::from_value(fields.clone()).unwrap();
        let error = config.check().map_or_else(|error| error, |()| panic!("{fields} is accepted"));
        (error.kind(), error.to_string())
    }

    #[test]
    fn defaults_are_valid() {
        RawConfig::default().check().unwrap();
    }

    #[test]
    fn c1_c2_c3_d1_d2_d3_defaults_match_the_replaced_packages() {
        let defaults = serde_json::to_value(RawConfig::default()).unwrap();
        for (option, value) in [
            ("namespace", json!("default")),
            ("startup_timeout_seconds", json!(120)),
            ("default_exec_timeout", json!(1800)),
            ("image", json!("python:3.12-slim")),
            ("image_pull_policy", json!("IfNotPresent")),
            ("image_pull_secrets", json!([])),
            ("workdir", json!("/workspace")),
            ("command", json!(["sleep", "infinity"])),
            ("env", json!({})),
            ("cpu_request", json!("100m")),
            ("cpu_limit", json!("1000m")),
            ("memory_request", json!("256Mi")),
            ("memory_limit", json!("1Gi")),
            ("ephemeral_storage_limit", json!("5Gi")),
            ("block_network", json!(true)),
            ("run_as_user", json!(1000)),
            ("run_as_group", json!(1000)),
            ("seccomp_profile", json!("RuntimeDefault")),
            ("namespace_per_sandbox", json!(false)),
            ("warm_pool_size", json!(0)),
        ] {
            assert_eq!(defaults[option], value, "{option}");
        }
    }

    #[test]
    fn environment_values_are_not_in_debug_output() {
        let config: RawConfig = serde_json::from_value(json!({ "env": { "TOKEN": "s3cret" } })).unwrap();
        let shown = format!("{config:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn unknown_field_is_rejected_by_name() {
        let error = serde_json::from_value::<RawConfig>(json!({ "imgae": "x" })).unwrap_err();
        assert!(error.to_string().contains("imgae"), "{error}");
    }

    #[test]
    fn contradictory_options_are_rejected_by_name() {
        for (fields, names) in [
            (json!({ "seccomp_profile": "Localhost" }), ["seccomp_profile", "seccomp_localhost_profile"]),
            (json!({ "seccomp_localhost_profile": "x" }), ["seccomp_profile", "seccomp_localhost_profile"]),
            (json!({ "ttl_seconds": 1, "pod_ttl_seconds": 2 }), ["ttl_seconds", "pod_ttl_seconds"]),
            (json!({ "arch": "arm64", "node_selector": { ARCH_LABEL: "amd64" } }), ["node_selector", "arch"]),
            (json!({ "run_as_user": 0 }), ["run_as_user", "root"]),
            (json!({ "namespace_labels": { "a": "b" } }), ["namespace_labels", "namespace_per_sandbox"]),
            (
                json!({ "warm_pool_size": 1, "namespace_per_sandbox": true }),
                ["warm_pool_size", "namespace_per_sandbox"],
            ),
            (json!({ "env": { "A": "b" }, "env_refs": [{ "name": "A" }] }), ["env_refs", "env"]),
        ] {
            let (kind, message) = rejection(&fields);
            assert_eq!(kind, ErrorKind::InvalidInput);
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        }
    }

    #[test]
    fn invalid_values_are_rejected() {
        for fields in [
            json!({ "image": "" }),
            json!({ "image_pull_policy": "Sometimes" }),
            json!({ "restart_policy": "Always" }),
            json!({ "arch": "riscv" }),
            json!({ "seccomp_profile": "Unconfined" }),
            json!({ "startup_timeout_seconds": 0 }),
            json!({ "ttl_seconds": 0 }),
            json!({ "ttl_idle_seconds": u64::MAX }),
            json!({ "setup_script": " " }),
            json!({ "command": [] }),
            json!({ "env": { "A=B": "c" } }),
            json!({ "env_refs": [{ "name": "SANDPOD_STATE_DIR", "value": "/x" }] }),
            json!({ "workdir": "workspace" }),
            json!({ "writable_dirs": ["/a/../etc"] }),
            json!({ "writable_dirs": ["/"] }),
            json!({ "writable_dirs": ["/sandpod/x"] }),
            json!({ "volumes": [{ "name": "sandpod-guest", "emptyDir": {} }] }),
            json!({ "volume_mounts": [{ "name": "x", "mountPath": "/sandpod" }] }),
            json!({ "volume_mounts": [{ "name": "x", "mountPath": "/" }] }),
            json!({ "init_containers": [{ "name": "sandbox" }] }),
            json!({ "init_containers": [{ "name": "sandpod-guest" }] }),
            json!({ "default_labels": { "id": "x" } }),
            json!({ "default_labels": { "a b": "team" } }),
        ] {
            assert_eq!(rejection(&fields).0, ErrorKind::InvalidInput, "{fields}");
        }
    }

    #[test]
    fn misspelled_field_of_a_kubernetes_object_is_rejected() {
        for (fields, name) in [
            (json!({ "tolerations": [{ "key": "a", "efect": "NoSchedule" }] }), "efect"),
            (json!({ "volumes": [{ "name": "a", "emptyDir": { "sizeLimt": "1Mi" } }] }), "sizeLimt"),
            (json!({ "affinity": { "nodeAfinity": {} } }), "nodeAfinity"),
            (json!({ "pod_template_overrides": { "dnsPolcy": "None" } }), "dnsPolcy"),
        ] {
            let (_, message) = rejection(&fields);
            assert!(message.contains(name), "{message}");
        }
    }
}
