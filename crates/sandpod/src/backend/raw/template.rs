//! Writes the Pod of a configuration as a `SandboxTemplate` of agent-sandbox.

use serde_json::{Value, json};

use super::delivery::GuestSource;
use super::network::NETWORK_LABEL;
use super::{network, pod};
use crate::backend::kubernetes::anchor::MANAGED_BY;
use crate::backend::kubernetes::guest::GuestMaps;
use crate::backend::kubernetes::unwritable;
use crate::config::CONTAINER;
use crate::guest_binaries;
use crate::{RawConfig, Result};

/// The port on which the guest listens for the router.
const DOOR: u16 = 8888;
/// The policy of Pods with such a port, and the value of [`NETWORK_LABEL`] that it selects.
const ROUTER_POLICY: (&str, &str) = ("sandpod-router-only", "router-only");
/// The Secret with the hash of the token that opens the guest.
const SECRET: &str = "sandpod-guest-token";

/// A router that may connect to the guests of a template.
///
/// Its Pods have the label `app` with the value [`name`](Self::name). The port opens only with the token whose hash is in the
/// Secret `sandpod-guest-token`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RouterDoor {
    /// The namespace of the router.
    pub namespace: String,
    /// The value of the label `app` of its Pods.
    pub name: String,
}

/// Returns the objects that a `SandboxTemplate` called `name` needs, itself last: the guest's `ConfigMaps`, and without
/// network the deny-all policy, or with a `door` one that admits the router. It compresses, so call it from a blocking
/// thread.
pub(crate) fn template(config: &RawConfig, name: &str, door: Option<&RouterDoor>) -> Result<Vec<Value>> {
    config.check()?;
    let binaries = guest_binaries::find(&config.arch, config.package_dir.as_deref())?;
    let guest = GuestMaps::pack(&binaries, &config.arch)?;
    let names = guest.names().map(str::to_owned).collect();
    let maps = guest.objects().map(serde_json::to_value).collect::<Result<Vec<_>, _>>();
    let mut objects = maps.map_err(unwritable)?;
    objects.extend(objects_beside_guest(config, name, names, door)?);
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(config.namespace);
    }
    Ok(objects)
}

/// Returns the objects besides the `ConfigMaps`, for a guest in the `ConfigMaps` of these names.
fn objects_beside_guest(
    config: &RawConfig,
    name: &str,
    maps: Vec<String>,
    door: Option<&RouterDoor>,
) -> Result<Vec<Value>> {
    let mut pod = pod::template_metadata(config)?;
    pod["spec"] = serde_json::to_value(pod::spec(config, &GuestSource::Maps(maps))?).map_err(unwritable)?;
    let mut objects = Vec::new();
    if let Some(door) = door {
        open(&mut pod["spec"]);
        if config.block_network {
            pod["metadata"]["labels"][NETWORK_LABEL.0] = json!(ROUTER_POLICY.1);
            objects.push(router_only(door));
        }
    } else if config.block_network {
        objects.push(serde_json::to_value(network::deny_all()?).map_err(unwritable)?);
    }
    objects.push(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": { "name": name },
        "spec": {
            "podTemplate": pod,
            // The policy is ours: no traffic, except from the router if there is a door. exec needs no network.
            "networkPolicyManagement": "Unmanaged",
        },
    }));
    Ok(objects)
}

/// Makes the guest listen for the router, which it admits by a token.
fn open(spec: &mut Value) {
    let containers = spec["containers"].as_array_mut().into_iter().flatten();
    for container in containers.filter(|container| container["name"] == CONTAINER) {
        if let Some(command) = container["command"].as_array_mut() {
            // After "boot serve", and before the command that runs beside the guest.
            command.insert(command.len().min(2), json!("--websocket"));
        }
        let hash = json!({ "secretKeyRef": { "name": SECRET, "key": "sha256" } });
        add(container, "env", json!({ "name": "SANDPOD_TOKEN_SHA256", "valueFrom": hash }));
        add(container, "ports", json!({ "containerPort": DOOR }));
        container["readinessProbe"] = json!({ "tcpSocket": { "port": DOOR }, "periodSeconds": 1 });
    }
}

fn add(container: &mut Value, list: &str, item: Value) {
    match container[list].as_array_mut() {
        Some(items) => items.push(item),
        None => container[list] = json!([item]),
    }
}

/// Returns the policy that admits the router and nothing else.
fn router_only(door: &RouterDoor) -> Value {
    let router = json!({
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": door.namespace } },
        "podSelector": { "matchLabels": { "app": door.name } },
    });
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": ROUTER_POLICY.0, "labels": { MANAGED_BY.0: MANAGED_BY.1 } },
        "spec": {
            "podSelector": { "matchLabels": { NETWORK_LABEL.0: ROUTER_POLICY.1 } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": [router], "ports": [{ "port": DOOR }] }],
        },
    })
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
            let printed = objects_beside_guest(&config, "python", maps.clone(), None).unwrap();
            let written: Vec<Value> = serde_saphyr::from_multiple(file).unwrap();
            assert_eq!(written, printed);
        }
    }

    #[test]
    fn with_a_door_the_guest_listens_and_the_policy_admits_the_router_alone() {
        let door = RouterDoor { namespace: "doors".to_owned(), name: "sandbox-router".to_owned() };
        let config = RawConfig { command: vec!["sleep".to_owned(), "9".to_owned()], ..RawConfig::default() };
        let objects = objects_beside_guest(&config, "python", vec!["map".to_owned()], Some(&door)).unwrap();
        let [policy, template] = &objects[..] else { panic!("{objects:?}") };
        let pod = &template["spec"]["podTemplate"];
        assert_eq!(pod["metadata"]["labels"][NETWORK_LABEL.0], "router-only");
        assert_eq!(policy["spec"]["podSelector"]["matchLabels"], json!({ NETWORK_LABEL.0: "router-only" }));
        assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(policy["spec"]["egress"], Value::Null, "nothing goes out");
        let from = &policy["spec"]["ingress"][0]["from"];
        assert_eq!(from[0]["podSelector"]["matchLabels"]["app"], "sandbox-router");
        assert_eq!(from[0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], "doors");
        assert_eq!((from.as_array().unwrap().len(), &policy["spec"]["ingress"][1]), (1, &Value::Null));
        let container = &pod["spec"]["containers"][0];
        let command = json!(["/sandpod/boot", "serve", "--websocket", "--", "sleep", "9"]);
        assert_eq!(
            (&container["command"], &container["ports"][0]["containerPort"]),
            (&command, &json!(8888))
        );
        let open = RawConfig { block_network: false, ..RawConfig::default() };
        assert_eq!(objects_beside_guest(&open, "python", Vec::new(), Some(&door)).unwrap().len(), 1);
    }
}
