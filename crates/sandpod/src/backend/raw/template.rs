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
    let names = guest.names().map(str::to_owned).collect();
    let maps = guest.objects().map(serde_json::to_value).collect::<Result<Vec<_>, _>>();
    let mut objects = maps.map_err(unwritable)?;
    objects.extend(objects_beside_guest(config, name, names)?);
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(config.namespace);
    }
    Ok(objects)
}

/// The same objects for a guest that is in the `ConfigMaps` of these names.
fn objects_beside_guest(config: &RawConfig, name: &str, maps: Vec<String>) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    if config.block_network {
        objects.push(serde_json::to_value(network::deny_all()?).map_err(unwritable)?);
    }
    let mut pod = pod::template_metadata(config)?;
    pod["spec"] = serde_json::to_value(pod::spec(config, &GuestSource::Maps(maps))?).map_err(unwritable)?;
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
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG_MAP: &str = include_str!("../../../../../deploy/agent-sandbox/template-config-map.yaml");
    const GVISOR: &str = include_str!("../../../../../deploy/agent-sandbox/template-gvisor.yaml");

    #[test]
    fn the_files_of_deploy_are_what_is_printed_but_for_the_guest_itself() {
        let maps: Vec<_> = (0..2).map(|part| format!("sandpod-guest-HASH-amd64-{part}")).collect();
        for (file, runtime_class) in [(CONFIG_MAP, None), (GVISOR, Some("gvisor".to_owned()))] {
            let config = RawConfig { runtime_class, ..RawConfig::default() };
            let printed = objects_beside_guest(&config, "python", maps.clone()).unwrap();
            let written: Vec<Value> = serde_saphyr::from_multiple(file).unwrap();
            assert_eq!(written, printed);
        }
    }
}
