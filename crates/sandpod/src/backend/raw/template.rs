//! The same Pod as something that agent-sandbox makes sandboxes from.

use serde_json::{Value, json};

use super::guest::GuestMaps;
use super::ladder::GuestSource;
use super::{network, pod, unwritable};
use crate::guest_binaries;
use crate::{RawConfig, Result};

/// All objects that a `SandboxTemplate` called `name` needs, itself last: the guest's `ConfigMaps`, and without network the
/// deny-all policy. It takes a moment of computing.
pub(crate) fn template(config: &RawConfig, name: &str) -> Result<Vec<Value>> {
    config.check()?;
    let binaries = guest_binaries::find(&config.arch, config.package_dir.as_deref())?;
    let guest = GuestMaps::pack(&binaries, &config.arch)?;
    let names: Vec<_> = guest.names().map(str::to_owned).collect();
    let mut objects =
        guest.objects().map(serde_json::to_value).collect::<Result<Vec<_>, _>>().map_err(unwritable)?;
    if config.block_network {
        objects.push(serde_json::to_value(network::deny_all()?).map_err(unwritable)?);
    }
    let mut pod = pod::template_metadata(config)?;
    pod["spec"] = serde_json::to_value(pod::spec(config, &GuestSource::Maps(names))?).map_err(unwritable)?;
    objects.push(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": { "name": name },
        "spec": {
            "podTemplate": pod,
            // The policy is ours, and the same as in raw mode: in and out is nothing, and exec needs neither.
            "networkPolicyManagement": "Unmanaged",
        },
    }));
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(config.namespace);
    }
    Ok(objects)
}
