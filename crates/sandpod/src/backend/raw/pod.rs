//! The Pod that a sandbox runs in, as the `restricted` Pod Security Standard admits it.

use data_encoding::HEXLOWER;
use sandpod_kube::k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::anchor::Anchor;
use super::guest::BOOT;
use super::network::NETWORK_LABEL;
use crate::Result;
use crate::config::{ARCH_LABEL, CONTAINER, GUEST_DIR, OWN_PREFIX, PodParts, RawConfig, trimmed};

/// Where the guest keeps what it is bound to: it outlives the guest, not the Pod.
pub(super) const STATE_DIR: &str = "/run/sandpod";

/// The Pod of the anchor's generation; the anchor owns it from birth.
pub(super) fn manifest(config: &RawConfig, anchor: &Anchor, spec: PodSpec) -> Result<Pod> {
    let mut labels = anchor.labels.clone();
    if config.block_network {
        labels.insert(NETWORK_LABEL.0.to_owned(), NETWORK_LABEL.1.to_owned());
    }
    let mut pod: Pod = super::object(json!({
        "metadata": {
            "name": anchor.pod_name(),
            "labels": labels,
            "annotations": config.extra_annotations,
            "ownerReferences": [{
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "name": anchor.id.as_str(),
                "uid": anchor.uid,
            }],
        },
    }))?;
    pod.spec = Some(spec);
    Ok(pod)
}

/// What all Pods of this configuration have in common. Nothing of it is the user's data: environment, files and
/// commands go through the guest.
pub(super) fn spec(config: &RawConfig, guest: &[String]) -> Result<PodSpec> {
    let parts = config.parts()?;
    let dirs = own_dirs(config, &parts);
    let seccomp =
        json!({ "type": config.seccomp_profile, "localhostProfile": config.seccomp_localhost_profile });
    let mut node_selector = config.node_selector.clone();
    node_selector.insert(ARCH_LABEL.to_owned(), config.arch.clone());
    let secrets: Vec<_> = config.image_pull_secrets.iter().map(|name| json!({ "name": name })).collect();
    let mut spec: PodSpec = super::object(json!({
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "serviceAccountName": config.service_account,
        "runtimeClassName": config.runtime_class,
        "nodeSelector": node_selector,
        "imagePullSecrets": secrets,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": config.run_as_user,
            "runAsGroup": config.run_as_group,
            "seccompProfile": seccomp,
        },
        "containers": [container(config, &dirs)],
        "volumes": volumes(&dirs, guest),
    }))?;
    spec.tolerations = Some(parts.tolerations).filter(|all| !all.is_empty());
    spec.init_containers = Some(parts.init_containers).filter(|all| !all.is_empty());
    spec.volumes.get_or_insert_default().extend(parts.volumes);
    spec.containers[0].volume_mounts.get_or_insert_default().extend(parts.volume_mounts);
    Ok(spec)
}

/// Names a specification: the same for the same.
pub(super) fn spec_hash(spec: &PodSpec) -> Result<String> {
    let json = serde_json::to_vec(spec).map_err(super::unwritable)?;
    Ok(HEXLOWER.encode(&Sha256::digest(json)))
}

/// The directories that we mount, each with its volume.
fn own_dirs(config: &RawConfig, parts: &PodParts) -> Vec<(String, String)> {
    let users = |dir: &str| parts.volume_mounts.iter().any(|mount| trimmed(&mount.mount_path) == dir);
    // Every image that has a /tmp lets everybody write to it.
    let images = |dir: &str| dir == "/tmp" && !config.read_only_root;
    let mut dirs: Vec<_> = config.writable_dirs.iter().map(|dir| trimmed(dir)).collect();
    dirs.push(STATE_DIR);
    dirs.sort_unstable();
    dirs.dedup();
    dirs.retain(|dir| !users(dir) && !images(dir));
    dirs.iter()
        .enumerate()
        .map(|(number, dir)| (format!("{OWN_PREFIX}{number}"), (*dir).to_owned()))
        .collect()
}

fn container(config: &RawConfig, dirs: &[(String, String)]) -> Value {
    let mut command = vec![format!("{GUEST_DIR}/{BOOT}"), "serve".to_owned()];
    if config.has_command() {
        command.push("--".to_owned());
        command.extend(config.command.iter().cloned());
    }
    let guest = json!({ "name": format!("{OWN_PREFIX}guest"), "mountPath": GUEST_DIR, "readOnly": true });
    let dirs = dirs.iter().map(|(volume, dir)| json!({ "name": volume, "mountPath": dir }));
    json!({
        "name": CONTAINER,
        "image": config.image,
        "imagePullPolicy": config.image_pull_policy,
        "command": command,
        "env": [{ "name": "SANDPOD_STATE_DIR", "value": STATE_DIR }],
        // Without a command nothing needs it, and exec fails in a directory that somebody has removed.
        "workingDir": if config.has_command() { Some(&config.workdir) } else { None },
        "resources": {
            "requests": { "cpu": config.cpu_request, "memory": config.memory_request },
            "limits": {
                "cpu": config.cpu_limit,
                "memory": config.memory_limit,
                "ephemeral-storage": config.ephemeral_storage_limit,
            },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": config.read_only_root,
        },
        "volumeMounts": std::iter::once(guest).chain(dirs).collect::<Vec<_>>(),
    })
}

fn volumes(dirs: &[(String, String)], guest: &[String]) -> Vec<Value> {
    let maps: Vec<_> = guest.iter().map(|name| json!({ "configMap": { "name": name } })).collect();
    let guest = json!({
        "name": format!("{OWN_PREFIX}guest"),
        "projected": { "defaultMode": 0o555, "sources": maps },
    });
    let dirs = dirs.iter().map(|(volume, _)| json!({ "name": volume, "emptyDir": {} }));
    std::iter::once(guest).chain(dirs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(fields: Value) -> RawConfig {
        let config: RawConfig = serde_json::from_value(fields).unwrap();
        config.check().unwrap();
        config
    }

    fn json_of(fields: Value) -> Value {
        let spec = spec(&config(fields), &["map-0".to_owned(), "map-1".to_owned()]).unwrap();
        serde_json::to_value(spec).unwrap()
    }

    fn mounts(spec: &Value) -> Vec<&str> {
        let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
        mounts.iter().map(|mount| mount["mountPath"].as_str().unwrap()).collect()
    }

    #[test]
    fn the_default_pod_is_what_the_restricted_standard_wants() {
        let spec = json_of(json!({}));
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let context = &spec["containers"][0]["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(spec["nodeSelector"][ARCH_LABEL], "amd64");
    }

    #[test]
    fn the_environment_is_nowhere_in_the_pod() {
        let config = config(json!({ "env": { "TOKEN": "s3cret" } }));
        let text = serde_json::to_string(&spec(&config, &[]).unwrap()).unwrap();
        assert!(!text.contains("s3cret") && !text.contains("TOKEN"), "{text}");
    }

    #[test]
    fn the_default_command_means_the_guest_alone() {
        assert_eq!(json_of(json!({}))["containers"][0]["command"], json!(["/sandpod/boot", "serve"]));
        let spec = json_of(json!({ "command": ["python", "-m", "http.server"], "workdir": "/app" }));
        assert_eq!(
            spec["containers"][0]["command"],
            json!(["/sandpod/boot", "serve", "--", "python", "-m", "http.server"])
        );
        assert_eq!(spec["containers"][0]["workingDir"], "/app");
    }

    #[test]
    fn tmp_is_the_images_own_unless_the_root_is_read_only() {
        assert!(!mounts(&json_of(json!({}))).contains(&"/tmp"));
        assert!(mounts(&json_of(json!({ "read_only_root": true }))).contains(&"/tmp"));
    }

    #[test]
    fn the_users_own_mount_takes_the_place_of_ours() {
        let spec = json_of(json!({
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "volume_mounts": [{ "name": "data", "mountPath": "/workspace/" }],
        }));
        let mounts = mounts(&spec);
        assert_eq!(mounts.iter().filter(|path| path.starts_with("/workspace")).count(), 1, "{mounts:?}");
    }

    #[test]
    fn without_a_user_the_cluster_decides() {
        let spec = json_of(json!({ "run_as_user": null, "run_as_group": null }));
        assert_eq!(spec["securityContext"].get("runAsUser"), None);
        assert_eq!(spec["securityContext"].get("runAsGroup"), None);
    }

    #[test]
    fn what_is_bound_late_does_not_change_the_hash_and_all_else_does() {
        let hash = |fields| spec_hash(&spec(&config(fields), &[]).unwrap()).unwrap();
        let plain = hash(json!({}));
        assert_eq!(plain, hash(json!({ "env": { "A": "b" }, "workdir": "/app", "ttl_seconds": 9 })));
        assert_ne!(plain, hash(json!({ "image": "other" })));
        assert_ne!(plain, hash(json!({ "memory_limit": "2Gi" })));
    }
}
