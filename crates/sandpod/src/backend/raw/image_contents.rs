//! Copies the files that an image has in writable directories, which their volumes would hide.
//!
//! An init container that copies costs each Pod about a second, and most images have nothing there. What an image
//! contains is therefore found out when it first runs in a namespace and cached in a `ConfigMap`, and only Pods with
//! something to copy get the container. An image name can come to refer to another image: the running Pod shows the
//! digest, and a Pod with an unknown one is started again with the container.

use std::sync::{Mutex, MutexGuard, PoisonError};

use data_encoding::HEXLOWER;
use sandpod_kube::k8s_openapi::api::core::v1::{ConfigMap, Container, ContainerStatus, Pod, PodSpec};
use sandpod_kube::kube::api::PostParams;
use sandpod_kube::kube::{Api, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::delivery::GUEST_CONTAINER;
use crate::backend::kubernetes::anchor::MANAGED_BY;
use crate::backend::kubernetes::api::{self, find, is, within};
use crate::backend::kubernetes::guest::BOOT;
use crate::backend::kubernetes::{object, unwritable};
use crate::config::{CONTAINER, GUEST_DIR, OWN_PREFIX, STATE_DIR};
use crate::{Error, ErrorKind, Result};

/// The init container that copies. Its name and command are those of the guest's subcommand `seed`.
const COPY_CONTAINER: &str = "sandpod-seed";
/// Where it mounts the volumes of the writable directories.
const COPY_DIR: &str = "/sandpod-seed";
/// The number of images that are cached for one name: nodes may hold different ones.
const MAX_IMAGES: usize = 4;
/// How often a `ConfigMap` that other processes change is read again.
const MAX_TURNS: usize = 4;
/// The key of the `ConfigMap` that holds the cache.
const IMAGES: &str = "images";

/// The cached contents of the image of one configuration.
pub(super) struct ImageContents {
    maps: Api<ConfigMap>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    images: Option<Vec<Image>>,
    /// A Pod ran an unknown image: the next one copies and so finds out.
    learn: bool,
}

/// The contents of the writable directories of one image.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Image {
    id: String,
    /// The directories that are not empty.
    filled: Vec<String>,
}

impl ImageContents {
    pub(super) fn new(maps: Api<ConfigMap>) -> Self {
        Self { maps, known: Mutex::default() }
    }

    /// Adds the container that copies, unless the image is known to have nothing to copy.
    pub(super) async fn plan(&self, spec: &mut PodSpec) -> Result<()> {
        let Some(container) = copy_container(spec) else { return Ok(()) };
        if !self.known().learn && nothing_in(&self.images(&map_name(spec)).await?) {
            return Ok(());
        }
        let before = spec.init_containers.get_or_insert_default();
        let first = before.iter().take_while(|other| other.name == GUEST_CONTAINER).count();
        before.insert(first, container);
        Ok(())
    }

    /// Reads the report of a running Pod. Returns false if its volumes hide files of the image, or may do so.
    pub(super) async fn confirm(&self, pod: &Pod) -> bool {
        let Some(spec) = pod.spec.as_ref().filter(|spec| copy_container(spec).is_some()) else {
            return true;
        };
        match learned(pod) {
            Some(image) => {
                self.known().learn = false;
                if let Err(error) = self.remember(spec, image).await {
                    tracing::warn!(%error, "the contents of the image could not be cached");
                }
                true
            }
            None => self.hides_nothing(pod, spec).await,
        }
    }

    async fn hides_nothing(&self, pod: &Pod, spec: &PodSpec) -> bool {
        let Some(id) = status(pod, CONTAINER).map(|status| &status.image_id) else { return true };
        let found = |images: &[Image]| images.iter().any(|image| image.id == *id && image.filled.is_empty());
        if self.known().images.as_deref().is_some_and(found) {
            return true;
        }
        // Another process may have cached it since.
        self.known().images = None;
        if self.images(&map_name(spec)).await.is_ok_and(|images| found(&images)) {
            return true;
        }
        self.known().learn = true;
        false
    }

    /// Returns the cache of the namespace. It is read once.
    async fn images(&self, map: &str) -> Result<Vec<Image>> {
        if let Some(images) = self.known().images.clone() {
            return Ok(images);
        }
        let images = match find(&self.maps, map).await {
            Ok(found) => read(found.as_ref()),
            // Without the right to read the cache, every Pod copies.
            Err(error) if error.kind() == ErrorKind::Denied => Vec::new(),
            Err(error) => return Err(error),
        };
        self.known().images = Some(images.clone());
        Ok(images)
    }

    async fn remember(&self, spec: &PodSpec, image: Image) -> Result<()> {
        if self.known().images.as_ref().is_some_and(|images| images.contains(&image)) {
            return Ok(());
        }
        let name = map_name(spec);
        for _ in 0..MAX_TURNS {
            let old = find(&self.maps, &name).await?;
            let mut images = read(old.as_ref());
            if !images.contains(&image) {
                images.retain(|other| other.id != image.id);
                images.insert(0, image.clone());
                images.truncate(MAX_IMAGES);
                if !self.replace(&name, old.as_ref(), spec, &images).await? {
                    continue;
                }
            }
            self.known().images = Some(images);
            return Ok(());
        }
        Ok(()) // Others learn of the same image at the same time.
    }

    /// Writes the cache. Returns false if another process was faster.
    async fn replace(
        &self,
        name: &str,
        old: Option<&ConfigMap>,
        spec: &PodSpec,
        images: &[Image],
    ) -> Result<bool> {
        if let Some(uid) = old.and_then(ResourceExt::uid) {
            api::delete(&self.maps, name, &uid).await?;
        }
        let map: ConfigMap = object(json!({
            "metadata": { "name": name, "labels": { MANAGED_BY.0: MANAGED_BY.1 } },
            "data": {
                "image": sandbox(spec).and_then(|sandbox| sandbox.image.as_ref()),
                IMAGES: serde_json::to_string(images).map_err(unwritable)?,
            },
            "immutable": true,
        }))?;
        match within(self.maps.create(&PostParams::default(), &map)).await {
            Ok(_) => Ok(true),
            Err(cause) if is(&cause, 409) => Ok(false),
            Err(cause) => Err(Error::api(&format!("create ConfigMap '{name}'"), &cause)),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nothing_in(images: &[Image]) -> bool {
    !images.is_empty() && images.iter().all(|image| image.filled.is_empty())
}

/// Parses the cache. A damaged one is empty.
fn read(map: Option<&ConfigMap>) -> Vec<Image> {
    let text = map.and_then(|map| map.data.as_ref()?.get(IMAGES));
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Returns the name of the cache for this image and these directories.
fn map_name(spec: &PodSpec) -> String {
    let mut hasher = Sha256::new();
    let image = sandbox(spec).and_then(|sandbox| sandbox.image.as_deref()).unwrap_or_default();
    for text in std::iter::once(image).chain(places(spec)) {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    format!("{OWN_PREFIX}image-{}", &HEXLOWER.encode(&hasher.finalize())[..16])
}

/// Returns the report of the container that copies.
fn learned(pod: &Pod) -> Option<Image> {
    let status = status(pod, COPY_CONTAINER)?;
    let said = status.state.as_ref()?.terminated.as_ref()?.message.as_deref().unwrap_or_default();
    let mut lines = said.lines();
    let numbers = lines.next()?.strip_prefix("filled")?;
    let places: Vec<_> = places(pod.spec.as_ref()?).collect();
    let filled = numbers.split_whitespace().filter_map(|number| places.get(number.parse::<usize>().ok()?));
    let filled = filled.map(|place| (*place).to_owned()).collect();
    for line in lines {
        tracing::warn!(pod = pod.name_any(), "while copying from the image: {line}");
    }
    Some(Image { id: status.image_id.clone(), filled })
}

fn status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.into_iter().find(|status| status.name == container)
}

fn sandbox(spec: &PodSpec) -> Option<&Container> {
    spec.containers.iter().find(|container| container.name == CONTAINER)
}

/// Returns the writable directories that are volumes of ours, in the Pod's order.
fn places(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let mounts = sandbox(spec).and_then(|sandbox| sandbox.volume_mounts.as_ref()).into_iter().flatten();
    let ours = mounts.filter(|mount| mount.name.starts_with(OWN_PREFIX));
    ours.map(|mount| mount.mount_path.as_str()).filter(|path| ![GUEST_DIR, STATE_DIR].contains(path))
}

/// Returns the container that copies, with the image and the rights of the sandbox. None without such directories or
/// without a guest that could copy.
fn copy_container(spec: &PodSpec) -> Option<Container> {
    let sandbox = sandbox(spec)?;
    let places: Vec<_> = places(spec).map(str::to_owned).collect();
    let mut mounts = sandbox.volume_mounts.clone().unwrap_or_default();
    // A guest that is pushed later can't copy before the start.
    let has_guest = mounts.iter().any(|mount| mount.mount_path == GUEST_DIR);
    if places.is_empty() || !has_guest {
        return None;
    }
    mounts.retain(|mount| mount.name.starts_with(OWN_PREFIX));
    for mount in mounts.iter_mut().filter(|mount| places.contains(&mount.mount_path)) {
        mount.mount_path.insert_str(0, COPY_DIR);
    }
    let command = [format!("{GUEST_DIR}/{BOOT}"), "copy-image".to_owned(), COPY_DIR.to_owned()];
    Some(Container {
        name: COPY_CONTAINER.to_owned(),
        image: sandbox.image.clone(),
        image_pull_policy: sandbox.image_pull_policy.clone(),
        command: Some(command.into_iter().chain(places).collect()),
        env: sandbox.env.clone(),
        resources: sandbox.resources.clone(),
        security_context: sandbox.security_context.clone(),
        volume_mounts: Some(mounts),
        ..Container::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// A Pod with two directories of ours and one of the user's.
    fn pod(status: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": { "containers": [{
                "name": CONTAINER,
                "image": "image:1",
                "securityContext": { "allowPrivilegeEscalation": false },
                "volumeMounts": [
                    { "name": "sandpod-guest", "mountPath": GUEST_DIR, "readOnly": true },
                    { "name": "sandpod-0", "mountPath": "/app" },
                    { "name": "sandpod-1", "mountPath": STATE_DIR },
                    { "name": "sandpod-2", "mountPath": "/workspace" },
                    { "name": "data", "mountPath": "/data" },
                ],
            }]},
            "status": status,
        }))
        .unwrap()
    }

    fn said(message: &str) -> Option<Image> {
        let state = json!({ "terminated": { "exitCode": 0, "message": message } });
        let status = json!({
            "name": COPY_CONTAINER, "image": "", "imageID": "sha256:1", "ready": true, "restartCount": 0, "state": state,
        });
        learned(&pod(&json!({ "initContainerStatuses": [status] })))
    }

    #[test]
    fn the_copy_container_has_the_sandboxs_image_and_only_our_volumes() {
        let container = copy_container(pod(&json!({})).spec.as_ref().unwrap()).unwrap();
        assert_eq!(container.image.as_deref(), Some("image:1"));
        assert_eq!(container.security_context.unwrap().allow_privilege_escalation, Some(false));
        let command =
            ["/sandpod/boot", "copy-image", "/sandpod-seed", "/app", "/workspace"].map(str::to_owned);
        assert_eq!(container.command.unwrap(), command);
        let mounts: Vec<_> =
            container.volume_mounts.unwrap().into_iter().map(|mount| mount.mount_path).collect();
        assert_eq!(mounts, [GUEST_DIR, "/sandpod-seed/app", STATE_DIR, "/sandpod-seed/workspace"]);
    }

    #[test]
    fn a_report_names_directories_by_number_and_other_output_is_ignored() {
        let filled = |message| said(message).map(|image| image.filled);
        assert_eq!(filled("filled 1\nnot copied: x"), Some(vec!["/workspace".to_owned()]));
        assert_eq!(filled("filled"), Some(vec![]));
        assert_eq!(filled("filled 7 x -1"), Some(vec![]));
        assert_eq!(filled("exec format error"), None);
        assert_eq!(filled(""), None);
    }

    #[test]
    fn copying_is_skipped_only_if_all_images_are_known_to_be_empty() {
        let image = |filled: &[&str]| Image {
            id: "sha256:1".to_owned(),
            filled: filled.iter().map(|place| (*place).to_owned()).collect(),
        };
        assert!(!nothing_in(&[]));
        assert!(nothing_in(&[image(&[])]));
        assert!(!nothing_in(&[image(&[]), image(&["/app"])]));
    }

    #[test]
    fn another_image_or_directory_has_another_cache() {
        let spec = pod(&json!({})).spec.unwrap();
        let mut image = spec.clone();
        image.containers[0].image = Some("image:2".to_owned());
        let mut places = spec.clone();
        places.containers[0].volume_mounts.as_mut().unwrap().remove(1);
        assert_eq!(map_name(&spec), map_name(&spec.clone()));
        assert_ne!(map_name(&spec), map_name(&image));
        assert_ne!(map_name(&spec), map_name(&places));
    }
}
