//! The Pod of a sandbox, as the `restricted` Pod Security Standard admits it.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use sandpod_kube::k8s_openapi::api::core::v1::{Pod, PodSpec};
use sandpod_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::delivery::GuestSource;
use super::network::NETWORK_LABEL;
use super::overrides::overridden;
use super::{pod_security, push};
use crate::backend::kubernetes::guest::BOOT;
use crate::backend::kubernetes::unwritable;
use crate::config::{
    ARCH_LABEL, CONTAINER, GUEST_DIR, OWN_PREFIX, PodParts, RawConfig, STATE_DIR, read, trimmed,
};
use crate::{Error, ErrorKind, Result};

/// Labels and annotations that keep service meshes from adding a sidecar. Each mesh defines which of the two it reads.
const NO_MESH_LABELS: [(&str, &str); 3] = [
    ("istio.io/dataplane-mode", "none"),
    ("kuma.io/sidecar-injection", "disabled"),
    ("sidecar.istio.io/inject", "false"),
];
const NO_MESH_ANNOTATIONS: [(&str, &str); 3] = [
    ("consul.hashicorp.com/connect-inject", "false"),
    ("linkerd.io/inject", "disabled"),
    ("sidecar.istio.io/inject", "false"),
];

/// Returns a Pod that `owner` owns.
pub(super) fn manifest(
    config: &RawConfig,
    name: String,
    labels: BTreeMap<String, String>,
    owner: OwnerReference,
    spec: PodSpec,
) -> Result<Pod> {
    let mut pod: Pod = super::object(template_metadata(config)?)?;
    pod.metadata.name = Some(name);
    let of_all = pod.metadata.labels.replace(labels);
    pod.metadata.labels.get_or_insert_default().extend(of_all.into_iter().flatten());
    pod.metadata.owner_references = Some(vec![owner]);
    pod.spec = Some(spec);
    Ok(pod)
}

/// Checks that the API server kept all volumes of the Pod: it silently drops volumes of a kind that it does not know.
pub(super) fn check_whole(wanted: &Pod, made: &Pod) -> Result<()> {
    fn volumes(pod: &Pod) -> impl Iterator<Item = &str> {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        volumes.map(|volume| volume.name.as_str())
    }
    match volumes(wanted).find(|name| !volumes(made).any(|made| made == *name)) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("No sandbox was made: the cluster leaves the volume '{name}' out of its Pod."),
            "Use a kind of volume that this cluster knows; image volumes need the feature gate ImageVolume.",
        )),
    }
}

/// Returns the labels and annotations of every Pod, as a template has them.
pub(super) fn template_metadata(config: &RawConfig) -> Result<Value> {
    Ok(json!({ "metadata": overridden(config, metadata(config))?["metadata"] }))
}

/// Returns the owner reference to the Lease of this name.
pub(super) fn owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "coordination.k8s.io/v1".to_owned(),
        kind: "Lease".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

/// Returns the specification that all Pods of this configuration share. It has no data of users: environment, files and
/// commands go through the guest.
pub(super) fn spec(config: &RawConfig, guest: &GuestSource) -> Result<PodSpec> {
    let mut own = metadata(config);
    own["spec"] = serde_json::to_value(own_spec(config, guest)?).map_err(unwritable)?;
    let mut pod = overridden(config, own.clone())?;
    if !config.allow_insecure_overrides {
        for list in ["initContainers", "containers"] {
            let containers = pod["spec"][list].as_array_mut().into_iter().flatten();
            containers.filter(|one| one["name"] != CONTAINER).for_each(pod_security::harden);
        }
    }
    if config.namespace_per_sandbox {
        limit_init_containers(&mut pod["spec"]);
    }
    pod_security::check(config, &pod, &own)?;
    read("pod_template_overrides", &pod["spec"])
}

/// Sets limits on init containers, because the quota demands limits of every container.
fn limit_init_containers(spec: &mut Value) {
    let resources = spec["containers"][0]["resources"].clone();
    for container in spec["initContainers"].as_array_mut().into_iter().flatten() {
        if container["resources"].is_null() {
            container["resources"] = resources.clone();
        }
    }
}

/// Returns the labels and annotations that all Pods of this configuration share.
fn metadata(config: &RawConfig) -> Value {
    let (mut labels, mut annotations) = (BTreeMap::new(), BTreeMap::new());
    if config.mesh_opt_out {
        labels.extend(NO_MESH_LABELS);
        annotations.extend(NO_MESH_ANNOTATIONS);
    }
    if config.block_network {
        labels.insert(NETWORK_LABEL.0, NETWORK_LABEL.1);
    }
    let of_naming = config.naming.pod_annotations(config.pod_ttl_seconds);
    annotations.extend(of_naming.iter().map(|(key, value)| (*key, value.as_str())));
    annotations.extend(config.extra_annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    json!({ "metadata": { "labels": labels, "annotations": annotations } })
}

fn own_spec(config: &RawConfig, guest: &GuestSource) -> Result<PodSpec> {
    let parts = config.parts()?;
    let dirs = own_dirs(config, &parts);
    let seccomp =
        json!({ "type": config.seccomp_profile, "localhostProfile": config.seccomp_localhost_profile });
    let mut node_selector = config.node_selector.clone();
    node_selector.insert(ARCH_LABEL.to_owned(), config.arch.clone());
    let secrets: Vec<_> = config.image_pull_secrets.iter().map(|name| json!({ "name": name })).collect();
    let mut spec: PodSpec = super::object(json!({
        "restartPolicy": config.restart_policy,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "serviceAccountName": config.service_account,
        "runtimeClassName": config.runtime_class,
        "priorityClassName": config.priority_class,
        "nodeSelector": node_selector,
        "imagePullSecrets": secrets,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": config.run_as_user,
            "runAsGroup": config.run_as_group,
            "seccompProfile": seccomp,
        },
        "initContainers": guest.init_container(config),
        "containers": [container(config, &dirs, guest)],
        "volumes": volumes(&dirs, guest),
    }))?;
    spec.affinity = parts.affinity;
    spec.tolerations = Some(parts.tolerations).filter(|all| !all.is_empty());
    spec.init_containers.get_or_insert_default().extend(parts.init_containers);
    spec.init_containers = spec.init_containers.filter(|all| !all.is_empty());
    spec.volumes.get_or_insert_default().extend(parts.volumes);
    let container = &mut spec.containers[0];
    container.volume_mounts.get_or_insert_default().extend(parts.volume_mounts);
    container.env.get_or_insert_default().extend(parts.env_refs);
    container.env_from = Some(parts.env_from).filter(|all| !all.is_empty());
    Ok(spec)
}

/// Returns the hash of a specification.
pub(super) fn spec_hash(spec: &PodSpec) -> Result<String> {
    let json = serde_json::to_vec(spec).map_err(unwritable)?;
    Ok(HEXLOWER.encode(&Sha256::digest(json)))
}

/// Returns the hash of what can't be changed in a Pod any more, and of the naming. Pods with the same hash are
/// interchangeable.
pub(super) fn pool_hash(config: &RawConfig, guest: &GuestSource) -> Result<String> {
    let metadata = overridden(config, metadata(config))?["metadata"].take();
    let parts = json!([metadata, spec(config, guest)?, config.naming]);
    Ok(HEXLOWER.encode(&Sha256::digest(parts.to_string()))[..16].to_owned())
}

/// Returns the directories that we mount, each with its volume.
fn own_dirs(config: &RawConfig, parts: &PodParts) -> Vec<(String, String)> {
    let users = |dir: &str| parts.volume_mounts.iter().any(|mount| trimmed(&mount.mount_path) == dir);
    // Every image with a /tmp makes it world-writable.
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

fn container(config: &RawConfig, dirs: &[(String, String)], guest: &GuestSource) -> Value {
    let mut command = match guest {
        GuestSource::Pushed if config.has_command() => config.command.clone(),
        GuestSource::Pushed => push::WAIT.map(str::to_owned).into(),
        _ => vec![format!("{GUEST_DIR}/{BOOT}"), "serve".to_owned()],
    };
    if *guest != GuestSource::Pushed && config.has_command() {
        command.push("--".to_owned());
        command.extend(config.command.iter().cloned());
    }
    let dirs = dirs.iter().map(|(volume, dir)| json!({ "name": volume, "mountPath": dir }));
    json!({
        "name": CONTAINER,
        "image": config.image,
        "imagePullPolicy": config.image_pull_policy,
        "command": command,
        // Empty variables are set, too: these take precedence over the image's and those of `envFrom`.
        "env": [{ "name": "SANDPOD_STATE_DIR", "value": STATE_DIR }, { "name": "SANDPOD_DISABLED_KERNEL_FEATURES", "value": "" }],
        // Without a command it is not needed, and exec fails in a directory that was removed.
        "workingDir": if config.has_command() { Some(&config.workdir) } else { None },
        "resources": resources(config),
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": config.read_only_root,
        },
        "volumeMounts": guest.mount().into_iter().chain(dirs).collect::<Vec<_>>(),
    })
}

/// Returns the requests and limits of the sandbox's container and of init containers.
pub(super) fn resources(config: &RawConfig) -> Value {
    json!({
        "requests": {
            "cpu": config.cpu_request,
            "memory": config.memory_request,
            "ephemeral-storage": config.ephemeral_storage_request,
        },
        "limits": {
            "cpu": config.cpu_limit,
            "memory": config.memory_limit,
            "ephemeral-storage": config.ephemeral_storage_limit,
        },
    })
}

fn volumes(dirs: &[(String, String)], guest: &GuestSource) -> Vec<Value> {
    let dirs = dirs.iter().map(|(volume, _)| json!({ "name": volume, "emptyDir": {} }));
    guest.volume().into_iter().chain(dirs).collect()
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
        let maps = GuestSource::Maps(vec!["map-0".to_owned(), "map-1".to_owned()]);
        let spec = spec(&config(fields), &maps).unwrap();
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
    fn a_limit_of_disk_space_is_no_request_of_as_much() {
        let resources =
            json_of(json!({ "ephemeral_storage_limit": "20Gi" }))["containers"][0]["resources"].take();
        assert_eq!(resources["requests"]["ephemeral-storage"], "50Mi");
        assert_eq!(resources["limits"]["ephemeral-storage"], "20Gi");
    }

    #[test]
    fn the_environment_is_nowhere_in_the_pod() {
        let config = config(json!({ "env": { "TOKEN": "s3cret" } }));
        let text = serde_json::to_string(&spec(&config, &GuestSource::default()).unwrap()).unwrap();
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
    fn every_option_is_where_kubernetes_looks_for_it() {
        let spec = json_of(json!({
            "image": "i", "image_pull_policy": "Always", "image_pull_secrets": ["s"],
            "cpu_request": "1m", "cpu_limit": "2", "memory_request": "3Mi", "memory_limit": "4Mi",
            "ephemeral_storage_request": "4Mi", "ephemeral_storage_limit": "5Mi", "service_account": "a", "priority_class": "p", "runtime_class": "r",
            "node_selector": { "n": "s" }, "tolerations": [{ "key": "t" }], "restart_policy": "Never",
            "affinity": { "podAntiAffinity": {} }, "run_as_user": 1_000_690_000, "run_as_group": 0,
            "volumes": [{ "name": "v", "emptyDir": {} }], "volume_mounts": [{ "name": "v", "mountPath": "/v" }],
            "env_refs": [{ "name": "E", "valueFrom": { "secretKeyRef": { "name": "x", "key": "k" } } }],
            "env_from": [{ "secretRef": { "name": "f" } }],
        }));
        let container = &spec["containers"][0];
        for (found, expected) in [
            (&container["image"], json!("i")),
            (&container["imagePullPolicy"], json!("Always")),
            (&spec["imagePullSecrets"], json!([{ "name": "s" }])),
            (
                &container["resources"]["requests"],
                json!({ "cpu": "1m", "memory": "3Mi", "ephemeral-storage": "4Mi" }),
            ),
            (
                &container["resources"]["limits"],
                json!({ "cpu": "2", "memory": "4Mi", "ephemeral-storage": "5Mi" }),
            ),
            (&spec["serviceAccountName"], json!("a")),
            (&spec["priorityClassName"], json!("p")),
            (&spec["runtimeClassName"], json!("r")),
            (&spec["nodeSelector"], json!({ "n": "s", ARCH_LABEL: "amd64" })),
            (&spec["tolerations"], json!([{ "key": "t" }])),
            (&spec["restartPolicy"], json!("Never")),
            (&spec["affinity"], json!({ "podAntiAffinity": {} })),
            (&spec["securityContext"]["runAsUser"], json!(1_000_690_000)),
            (&spec["securityContext"]["runAsGroup"], json!(0)),
            (&container["env"][2]["valueFrom"]["secretKeyRef"]["key"], json!("k")),
            (&container["envFrom"], json!([{ "secretRef": { "name": "f" } }])),
        ] {
            assert_eq!(*found, expected);
        }
        assert!(mounts(&spec).contains(&"/v"));
    }

    #[test]
    fn a_container_without_a_security_context_is_as_strict_as_the_sandbox() {
        let spec = json_of(json!({
            "init_containers": [{ "name": "i" }],
            "pod_template_overrides": { "containers": [{ "name": "sidecar", "image": "s" }] },
        }));
        for container in [&spec["initContainers"][0], &spec["containers"][1]] {
            assert_eq!(
                container["securityContext"],
                json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } })
            );
        }
    }

    #[test]
    fn image_env_and_env_from_cannot_weaken_the_guest() {
        let references = json!([{ "configMapRef": { "name": "of-the-user" } }]);
        for fields in [json!({}), json!({ "env_from": references }), json!({ "command": ["sh"] })] {
            let env = json_of(fields)["containers"][0]["env"].take();
            assert!(
                env.as_array()
                    .unwrap()
                    .contains(&json!({ "name": "SANDPOD_DISABLED_KERNEL_FEATURES", "value": "" })),
                "{env}"
            );
        }
    }

    #[test]
    fn service_meshes_are_opted_out_of_unless_they_are_wanted() {
        let out = metadata(&config(json!({})));
        assert_eq!(out["metadata"]["annotations"]["linkerd.io/inject"], "disabled");
        assert_eq!(out["metadata"]["labels"]["sidecar.istio.io/inject"], "false");
        let annotations = json!({ "linkerd.io/inject": "enabled" });
        let own = metadata(&config(json!({ "extra_annotations": annotations })));
        assert_eq!(own["metadata"]["annotations"]["linkerd.io/inject"], "enabled");
        let wanted = metadata(&config(json!({ "mesh_opt_out": false })));
        assert_eq!(wanted["metadata"]["annotations"], json!({}));
    }

    #[test]
    fn late_bound_options_do_not_change_the_hash_and_all_others_do() {
        let hash = |fields| spec_hash(&spec(&config(fields), &GuestSource::default()).unwrap()).unwrap();
        let plain = hash(json!({}));
        assert_eq!(plain, hash(json!({ "env": { "A": "b" }, "workdir": "/app", "ttl_seconds": 9 })));
        assert_ne!(plain, hash(json!({ "image": "other" })));
        assert_ne!(plain, hash(json!({ "memory_limit": "2Gi" })));
    }

    #[test]
    fn pods_of_one_pool_differ_in_nothing_that_can_not_be_bound_late() {
        let hash = |fields| pool_hash(&config(fields), &GuestSource::default()).unwrap();
        let plain = hash(json!({}));
        let late = json!({
            "env": { "A": "b" }, "workdir": "/app", "ttl_seconds": 9, "ttl_idle_seconds": 9, "warm_pool_size": 3,
            "default_labels": { "team": "search" }, "setup_script": "true", "default_exec_timeout": 5,
        });
        assert_eq!(plain, hash(late));
        assert_ne!(plain, hash(json!({ "image": "other" })));
        assert_ne!(plain, hash(json!({ "extra_annotations": { "a": "b" } })));
        assert_ne!(plain, hash(json!({ "block_network": false })));
    }
}
