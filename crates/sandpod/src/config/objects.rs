//! Parses the options that are parts of Kubernetes objects, and rejects unknown fields in them.

use sandpod_kube::k8s_openapi::api::core::v1::{
    Affinity, Container, EnvFromSource, EnvVar, Toleration, Volume, VolumeMount,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{CONTAINER, GUEST_DIR, OWN_PREFIX, RawConfig, overlap, refused};
use crate::Result;

/// The parsed Kubernetes objects of a configuration.
pub(crate) struct PodParts {
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) affinity: Option<Affinity>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) volume_mounts: Vec<VolumeMount>,
    pub(crate) init_containers: Vec<Container>,
    pub(crate) env_refs: Vec<EnvVar>,
    pub(crate) env_from: Vec<EnvFromSource>,
}

impl RawConfig {
    /// Parses the Kubernetes objects and rejects those that conflict with sandpod's own.
    pub(crate) fn parts(&self) -> Result<PodParts> {
        let parts = PodParts {
            tolerations: read_all("tolerations", &self.tolerations)?,
            affinity: self.affinity.as_ref().map(|affinity| read("affinity", affinity)).transpose()?,
            volumes: read_all("volumes", &self.volumes)?,
            volume_mounts: read_all("volume_mounts", &self.volume_mounts)?,
            init_containers: read_all("init_containers", &self.init_containers)?,
            env_refs: read_all("env_refs", &self.env_refs)?,
            env_from: read_all("env_from", &self.env_from)?,
        };
        self.check_env_refs(&parts.env_refs)?;
        parts.check_own_names()?;
        Ok(parts)
    }

    fn check_env_refs(&self, refs: &[EnvVar]) -> Result<()> {
        if let Some(own) = refs.iter().find(|variable| variable.name.starts_with("SANDPOD_")) {
            let field = format!("env_refs: the name '{}' begins with 'SANDPOD_'", own.name);
            return Err(refused(&field, "Choose another name: those are sandpod's own."));
        }
        if let Some(plain) = refs.iter().find(|variable| variable.value_from.is_none()) {
            let field = format!("env_refs: '{}' has no valueFrom", plain.name);
            return Err(refused(&field, "Put a plain value into env, which keeps it out of the Pod."));
        }
        match refs.iter().find(|variable| self.env.contains_key(&variable.name)) {
            Some(both) => {
                let field = format!("'{}' is in env and in env_refs", both.name);
                Err(refused(&field, "Give it once."))
            }
            None => Ok(()),
        }
    }
}

impl PodParts {
    fn check_own_names(&self) -> Result<()> {
        if let Some(volume) = self.volumes.iter().find(|volume| volume.name.starts_with(OWN_PREFIX)) {
            let field = format!("volumes: the name '{}' begins with '{OWN_PREFIX}'", volume.name);
            return Err(refused(&field, "Choose another name: those are sandpod's own."));
        }
        if let Some(mount) = self.volume_mounts.iter().find(|mount| overlap(&mount.mount_path, GUEST_DIR)) {
            let field = format!("volume_mounts: '{}' hides the guest in {GUEST_DIR}", mount.mount_path);
            return Err(refused(&field, "Mount it elsewhere."));
        }
        let is_own = |name: &str| name == CONTAINER || name.starts_with(OWN_PREFIX);
        if let Some(own) = self.init_containers.iter().find(|container| is_own(&container.name)) {
            let field = format!("init_containers: the name '{}' is sandpod's own", own.name);
            return Err(refused(&field, "Choose another name."));
        }
        Ok(())
    }
}

fn read_all<T: DeserializeOwned + Serialize>(field: &str, values: &[Value]) -> Result<Vec<T>> {
    values.iter().map(|value| read(field, value)).collect()
}

/// Parses a Kubernetes object. An unknown field is an error.
pub(crate) fn read<T: DeserializeOwned + Serialize>(field: &str, value: &Value) -> Result<T> {
    let next = "Write it as in a Pod's manifest.";
    let bad = |cause: serde_json::Error| refused(&format!("{field}: {cause}"), next);
    let object: T = serde_json::from_value(value.clone()).map_err(bad)?;
    let known = serde_json::to_value(&object).map_err(bad)?;
    match first_unknown(value, &known) {
        None => Ok(object),
        Some(name) => Err(refused(&format!("{field}: Kubernetes has no field '{name}' there"), next)),
    }
}

/// Returns the first field of `given` that is not in `known`.
fn first_unknown<'a>(given: &'a Value, known: &Value) -> Option<&'a str> {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => given.iter().find_map(|(name, value)| {
            match known.get(name) {
                Some(inner) => first_unknown(value, inner),
                // Serialization omits empty lists.
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
