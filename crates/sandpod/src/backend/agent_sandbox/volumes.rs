//! The directories of a sandbox that are lost with its Pod, and those on durable volumes.

use sandpod_kube::k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};

use super::connect::has_guest;
use crate::backend::kubernetes::volumes::is_durable;
use crate::config::{CONTAINER, GUEST_DIR, WORKING_DIR};

/// Names the directory of a guest's own state.
const STATE_DIR: &str = "SANDPOD_STATE_DIR";

/// Returns the directories that a sandbox loses when its Pod ends, or none if its workspace is durable. The
/// configuration may set the workspace by `workdir`.
pub(super) fn lost_dirs(pod: &Pod, workdir: Option<&str>) -> Vec<String> {
    let Some(container) = sandbox_container(pod) else { return Vec::new() };
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let lasts = |mount: &VolumeMount| is_mount_durable(pod, mount);
    let workspace = workdir.or_else(|| workspace(container));
    let survives = match workspace {
        Some(dir) => holder(mounts, dir).is_some_and(lasts),
        // Only the stock runtime knows where commands start.
        None => mounts.iter().any(lasts),
    };
    if survives {
        return Vec::new();
    }
    let volumes = mounts.iter().filter(|mount| mount.read_only != Some(true) && !lasts(mount));
    let volumes = volumes.map(|mount| mount.mount_path.as_str()).filter(|dir| !is_ours(container, dir));
    let mut dirs: Vec<_> = workspace.into_iter().chain(volumes).map(str::to_owned).collect();
    dirs.sort_unstable();
    dirs.dedup();
    if dirs.is_empty() { vec!["all files".to_owned()] } else { dirs }
}

/// Returns where the container mounts durable volumes.
pub(super) fn durable_dirs(pod: &Pod, container: &Container) -> Vec<String> {
    let mounts = container.volume_mounts.iter().flatten().filter(|mount| is_mount_durable(pod, mount));
    mounts.map(|mount| mount.mount_path.clone()).collect()
}

fn is_mount_durable(pod: &Pod, mount: &VolumeMount) -> bool {
    volume(pod, mount).is_some_and(is_durable)
}

/// Returns the container of the sandbox: the one with our guest, else the one of that name, else the first.
pub(super) fn sandbox_container(pod: &Pod) -> Option<&Container> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let with_guest = containers.iter().find(|container| has_guest(container));
    let named = || containers.iter().find(|container| container.name == CONTAINER);
    with_guest.or_else(named).or(containers.first())
}

/// Returns where commands start, if that is known.
fn workspace(container: &Container) -> Option<&str> {
    if has_guest(container) { Some(WORKING_DIR) } else { container.working_dir.as_deref() }
}

/// Returns the mount that a directory is on. None is the container's own file system.
fn holder<'a>(mounts: &'a [VolumeMount], dir: &str) -> Option<&'a VolumeMount> {
    let holds = |mount: &&VolumeMount| std::path::Path::new(dir).starts_with(&mount.mount_path);
    mounts.iter().filter(holds).max_by_key(|mount| mount.mount_path.len())
}

fn volume<'a>(pod: &'a Pod, mount: &VolumeMount) -> Option<&'a Volume> {
    pod.spec.as_ref()?.volumes.as_ref()?.iter().find(|volume| volume.name == mount.name)
}

/// Whether a directory holds only files of the guest.
fn is_ours(container: &Container, dir: &str) -> bool {
    let state = container.env.iter().flatten().find(|variable| variable.name == STATE_DIR);
    dir == GUEST_DIR || state.is_some_and(|state| state.value.as_deref() == Some(dir))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(container: &Value) -> Pod {
        let volumes = json!([
            { "name": "disk", "persistentVolumeClaim": { "claimName": "a" } },
            { "name": "scratch", "emptyDir": {} },
            { "name": "home", "emptyDir": {} },
            { "name": "state", "emptyDir": {} },
        ]);
        serde_json::from_value(json!({ "spec": { "containers": [container], "volumes": volumes } })).unwrap()
    }

    fn with_guest(workspace: &str) -> Value {
        json!({
            "name": "sandbox",
            "command": ["/sandpod/boot", "serve"],
            "env": [{ "name": "SANDPOD_STATE_DIR", "value": "/run/sandpod" }],
            "volumeMounts": [
                { "name": "state", "mountPath": "/run/sandpod" },
                { "name": workspace, "mountPath": "/workspace" },
                { "name": "home", "mountPath": "/home/sandbox" },
            ],
        })
    }

    #[test]
    fn a_workspace_on_a_claimed_volume_survives_and_one_in_an_empty_dir_is_named() {
        assert!(lost_dirs(&pod(&with_guest("disk")), None).is_empty());
        assert_eq!(lost_dirs(&pod(&with_guest("scratch")), None), ["/home/sandbox", "/workspace"]);
        assert!(lost_dirs(&pod(&with_guest("disk")), Some("/workspace/project")).is_empty());
        assert_eq!(lost_dirs(&pod(&with_guest("disk")), Some("/srv")), ["/home/sandbox", "/srv"]);
    }

    #[test]
    fn without_our_guest_the_containers_own_directory_counts() {
        let stock = |dir: Option<&str>, mounts: Value| {
            let container = json!({ "name": "python", "workingDir": dir, "volumeMounts": mounts });
            lost_dirs(&pod(&container), None)
        };
        let mounted = json!([{ "name": "disk", "mountPath": "/app" }]);
        assert!(stock(Some("/app/x"), mounted.clone()).is_empty());
        assert_eq!(stock(Some("/application"), mounted.clone()), ["/application"]);
        assert!(stock(None, mounted).is_empty(), "only the runtime knows");
        assert_eq!(stock(None, json!([])), ["all files"]);
    }
}
