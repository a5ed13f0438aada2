//! Checks a `SandboxTemplate` of agent-sandbox.

use std::collections::BTreeMap;

use sandpod_kube::agent_sandbox::{NetworkPolicyManagement, SandboxTemplate};
use sandpod_kube::k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::kube::ResourceExt;

use super::Finding;
use crate::backend::agent_sandbox::has_guest;
use crate::config::{ARCH_LABEL, CONTAINER, GUEST_DIR, WRITABLE_DIRS, trimmed};

/// Directories of [`WRITABLE_DIRS`] that are not checked: stock runtimes use the first, and every image has the second.
const NOT_OURS: [&str; 2] = ["/app", "/tmp"];

/// Returns the command that generates and applies a complete template.
pub(super) fn manifest(name: &str, namespace: &str) -> String {
    format!(
        "sandpod manifests template --name {name} --namespace {namespace} --image IMAGE | kubectl apply --server-side -f -"
    )
}

/// Checks that the template contains the guest.
pub(super) fn guest(template: &SandboxTemplate, namespace: &str) -> Finding {
    const CHECK: &str = "template";
    let name = template.name_any();
    match container(template).filter(|container| has_guest(container)) {
        Some(container) => Finding::good(
            CHECK,
            format!("{name} brings sandpod's guest, in the container {}", container.name),
        ),
        None => Finding::unsure(
            CHECK,
            format!("{name} brings no guest: it is pushed into every sandbox, or its stock runtime is used"),
            format!(
                "For a quicker start and all features use one that brings it: {}",
                manifest(&name, namespace)
            ),
        ),
    }
}

/// Checks that the working directory and the directories of Deep Agents are writable.
pub(super) fn writable(template: &SandboxTemplate, workdir: &str) -> Finding {
    const CHECK: &str = "writable places";
    let usual = WRITABLE_DIRS.into_iter().filter(|dir| !NOT_OURS.contains(dir) && *dir != workdir);
    let wanted: Vec<_> = [workdir].into_iter().chain(usual).collect();
    let covered =
        |dir: &str| mounts(template).any(|mount| format!("{dir}/").starts_with(&format!("{mount}/")));
    let missing: Vec<_> = wanted.into_iter().filter(|dir| !covered(trimmed(dir))).collect();
    if missing.is_empty() || is_root(template) {
        return Finding::good(CHECK, format!("{workdir} and the directories of Deep Agents"));
    }
    Finding::unsure(
        CHECK,
        format!(
            "no volume is at {}: it depends on the image whether commands can write there",
            missing.join(", ")
        ),
        "Mount an emptyDir there in the template, as those of `sandpod manifests template` do.",
    )
}

/// Checks that the guest in the template's `ConfigMaps` is the installed version. Returns `None` if there are no such
/// `ConfigMaps`.
pub(super) fn version(template: &SandboxTemplate, ours: &[String], namespace: &str) -> Option<Finding> {
    const CHECK: &str = "template's guest";
    let theirs = config_maps(template);
    if theirs.is_empty() {
        return None;
    }
    if ours.iter().all(|name| theirs.contains(name)) {
        return Some(Finding::good(CHECK, "the same as installed here"));
    }
    Some(Finding::unsure(
        CHECK,
        "another version than the one that is installed here",
        format!("Print the template again: {}", manifest(&template.name_any(), namespace)),
    ))
}

/// Returns the names of the `ConfigMaps` that contain the guest.
pub(super) fn config_maps(template: &SandboxTemplate) -> Vec<String> {
    let mount =
        container(template).into_iter().flat_map(|container| container.volume_mounts.iter().flatten());
    let of_guest = mount.filter(|mount| trimmed(&mount.mount_path) == GUEST_DIR).map(|mount| &mount.name);
    let names: Vec<_> = of_guest.collect();
    let volumes = spec(template).into_iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| names.contains(&&volume.name)).flat_map(sources).collect()
}

fn sources(volume: &Volume) -> Vec<String> {
    let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    let mut names: Vec<_> =
        projected.filter_map(|source| Some(source.config_map.as_ref()?.name.clone())).collect();
    names.extend(volume.config_map.as_ref().map(|map| map.name.clone()));
    names
}

/// Checks that a `NetworkPolicy` selects the template's Pods.
pub(super) fn policy(template: &SandboxTemplate, policies: &[NetworkPolicy], namespace: &str) -> Finding {
    const CHECK: &str = "network policy";
    if template.spec.network_policy_management == NetworkPolicyManagement::Managed {
        return Finding::good(CHECK, "the controller makes one for the template");
    }
    let metadata = template.spec.pod_template.metadata.as_ref();
    let labels = metadata.and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    let chosen: Vec<_> =
        policies.iter().filter(|policy| selects(policy, &labels)).map(ResourceExt::name_any).collect();
    if chosen.is_empty() {
        return Finding::unsure(
            CHECK,
            "none selects the template's Pods: sandboxes reach all that the cluster does",
            format!(
                "Give its Pods the label sandpod.dev/network: deny-all, and: sandpod manifests networkpolicy --namespace \
                 {namespace} | kubectl apply --server-side -f -"
            ),
        );
    }
    Finding::good(CHECK, format!("{} selects the template's Pods", chosen.join(", ")))
}

/// Whether a policy selects Pods with these labels. `matchExpressions` are not evaluated and count as no match.
fn selects(policy: &NetworkPolicy, labels: &BTreeMap<String, String>) -> bool {
    let selector = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref());
    let Some(selector) = selector else { return true };
    let wanted = selector.match_labels.iter().flatten();
    selector.match_expressions.is_none()
        && wanted.into_iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// Returns a Pod of the template, as the controller would create it.
pub(super) fn pod(template: &SandboxTemplate) -> Pod {
    let mut pod = Pod { spec: spec(template).cloned(), ..Pod::default() };
    let metadata = template.spec.pod_template.metadata.clone().unwrap_or_default();
    pod.metadata.generate_name = Some("sandpod-doctor-".to_owned());
    (pod.metadata.labels, pod.metadata.annotations) = (metadata.labels, metadata.annotations);
    pod
}

/// Returns the CPU architecture in the template's node selector.
pub(super) fn arch(template: &SandboxTemplate) -> Option<&str> {
    spec(template)?.node_selector.as_ref()?.get(ARCH_LABEL).map(String::as_str)
}

fn spec(template: &SandboxTemplate) -> Option<&PodSpec> {
    template.spec.pod_template.spec.as_ref()
}

/// Returns the container in which commands run.
fn container(template: &SandboxTemplate) -> Option<&Container> {
    let containers = &spec(template)?.containers;
    let named = || containers.iter().find(|container| container.name == CONTAINER);
    containers.iter().find(|container| has_guest(container)).or_else(named).or(containers.first())
}

/// Returns the mount paths of writable volumes.
fn mounts(template: &SandboxTemplate) -> impl Iterator<Item = &str> {
    let mounts =
        container(template).into_iter().flat_map(|container| container.volume_mounts.iter().flatten());
    mounts.filter(|mount| mount.read_only != Some(true)).map(|mount| trimmed(&mount.mount_path))
}

/// Whether commands run as root with a writable root file system, and so can write everywhere.
fn is_root(template: &SandboxTemplate) -> bool {
    let container = container(template).and_then(|container| container.security_context.as_ref());
    let pod = spec(template).and_then(|spec| spec.security_context.as_ref());
    let user =
        container.and_then(|context| context.run_as_user).or(pod.and_then(|context| context.run_as_user));
    user == Some(0) && container.and_then(|context| context.read_only_root_filesystem) != Some(true)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Verdict, next};
    use super::*;

    fn template(container: &Value, more: &Value) -> SandboxTemplate {
        let mut spec = json!({ "podTemplate": {
            "metadata": { "labels": { "team": "search" } },
            "spec": { "containers": [container], "volumes": [
                { "name": "guest", "projected": { "sources": [{ "configMap": { "name": "sandpod-guest-1" } }] } },
            ] },
        } });
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        serde_json::from_value(json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
            "kind": "SandboxTemplate",
            "metadata": { "name": "python" },
            "spec": spec,
        }))
        .unwrap()
    }

    fn mounted(dirs: &[&str]) -> SandboxTemplate {
        let others = dirs.iter().map(|dir| json!({ "name": "data", "mountPath": dir }));
        let guest = json!({ "name": "guest", "mountPath": "/sandpod/", "readOnly": true });
        let mounts: Vec<_> = others.chain([guest]).collect();
        template(&json!({ "name": "main", "volumeMounts": mounts }), &json!({}))
    }

    fn stock() -> SandboxTemplate {
        template(&json!({ "name": "runtime" }), &json!({ "networkPolicyManagement": "Unmanaged" }))
    }

    #[test]
    fn templates_with_and_without_the_guest_are_distinguished() {
        assert!(guest(&mounted(&[]), "agents").found.contains("in the container main"));
        let finding = guest(&stock(), "agents");
        let fix = next(finding);
        assert!(fix.contains("sandpod manifests template --name python --namespace agents"), "{fix}");
    }

    #[test]
    fn directories_without_a_volume_are_named() {
        let all = ["/workspace", "/home", "/large_tool_results", "/conversation_history/", "/blobs"];
        assert_eq!(writable(&mounted(&all), "/workspace").verdict, Verdict::Good);
        let finding = writable(&mounted(&all[1..]), "/workspace");
        assert!(finding.found.starts_with("no volume is at /workspace: "), "{finding:?}");
        assert!(finding.fix.unwrap().contains("Mount an emptyDir"));
        assert!(writable(&mounted(&all), "/data").found.starts_with("no volume is at /data: "));
        let root = json!({ "name": "main", "securityContext": { "runAsUser": 0 } });
        assert_eq!(writable(&template(&root, &json!({})), "/workspace").verdict, Verdict::Good);
    }

    #[test]
    fn guest_of_another_version_is_reported() {
        let with = |name: &str| version(&mounted(&[]), &[name.to_owned()], "agents");
        assert_eq!(with("sandpod-guest-1").unwrap().verdict, Verdict::Good);
        let finding = with("sandpod-guest-2").unwrap();
        assert!(next(finding).starts_with("Print the template again: "));
        assert_eq!(version(&stock(), &[], "agents"), None);
    }

    #[test]
    fn pods_without_a_policy_are_reported() {
        let policy_for = |labels: Value| -> NetworkPolicy {
            serde_json::from_value(
                json!({ "metadata": { "name": "deny" }, "spec": { "podSelector": { "matchLabels": labels } } }),
            )
            .unwrap()
        };
        let of = |labels: Value| policy(&stock(), &[policy_for(labels)], "agents");
        assert_eq!(of(json!({})).found, "deny selects the template's Pods");
        assert_eq!(of(json!({ "team": "search" })).verdict, Verdict::Good);
        let finding = of(json!({ "team": "other" }));
        assert!(next(finding).contains("sandpod manifests networkpolicy --namespace agents"));
        assert!(policy(&mounted(&[]), &[], "agents").found.contains("the controller makes one"));
    }
}
