//! Delivers the guest to Pods: the best delivery first, and the next one when the cluster refuses it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{Raw, pod};
use crate::backend::GuestDelivery;
use crate::backend::kubernetes::api::find;
use crate::backend::kubernetes::delivery::{DELIVERY, REASON};
use crate::backend::kubernetes::guest::BOOT;
use crate::config::{GUEST_DIR, OWN_PREFIX, RawConfig};
use crate::{Error, ErrorKind, Result};

/// The init container that copies the guest out of its image.
pub(super) const GUEST_CONTAINER: &str = "sandpod-guest";
/// The deliveries of raw mode, the best first.
const FALLBACK_ORDER: [GuestDelivery; 3] =
    [GuestDelivery::Image, GuestDelivery::ConfigMap, GuestDelivery::Push];
/// The longest recorded reason against better deliveries.
const MAX_REASON: usize = 1024;

/// The guest's part of a Pod's specification.
#[derive(Debug, PartialEq)]
pub(super) enum GuestSource {
    Image(String),
    /// The names of the `ConfigMaps`.
    Maps(Vec<String>),
    /// Nothing: the guest is pushed later.
    Pushed,
}

impl Default for GuestSource {
    /// The source for checks in which the guest does not matter.
    fn default() -> Self {
        Self::Maps(Vec::new())
    }
}

impl GuestSource {
    pub(super) fn volume(&self) -> Option<Value> {
        let name = volume_name();
        match self {
            Self::Image(_) => Some(json!({ "name": name, "emptyDir": {} })),
            Self::Maps(maps) => {
                let maps: Vec<_> = maps.iter().map(|name| json!({ "configMap": { "name": name } })).collect();
                Some(json!({ "name": name, "projected": { "defaultMode": 0o555, "sources": maps } }))
            }
            Self::Pushed => None,
        }
    }

    pub(super) fn mount(&self) -> Option<Value> {
        let mount = json!({ "name": volume_name(), "mountPath": GUEST_DIR, "readOnly": true });
        (*self != Self::Pushed).then_some(mount)
    }

    /// Returns the init container that delivers the guest, if there is one.
    pub(super) fn init_container(&self, config: &RawConfig) -> Vec<Value> {
        let Self::Image(image) = self else { return Vec::new() };
        vec![json!({
            "name": GUEST_CONTAINER,
            "image": image,
            "imagePullPolicy": config.image_pull_policy,
            "command": [format!("/{BOOT}"), "copy", GUEST_DIR],
            "resources": pod::resources(config),
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "readOnlyRootFilesystem": true,
            },
            "volumeMounts": [{ "name": volume_name(), "mountPath": GUEST_DIR }],
        })]
    }
}

fn volume_name() -> String {
    format!("{OWN_PREFIX}guest")
}

/// The delivery that a provider uses. A failed delivery is not tried again, because every sandbox would lose the same
/// time.
pub(super) struct Deliveries(Mutex<ChosenDelivery>);

/// A delivery, and why the better ones failed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChosenDelivery {
    pub(super) delivery: GuestDelivery,
    failed: Vec<String>,
}

impl Deliveries {
    pub(super) fn new(config: &RawConfig) -> Self {
        let delivery =
            if config.guest_image.is_some() { GuestDelivery::Image } else { GuestDelivery::ConfigMap };
        Self(Mutex::new(ChosenDelivery { delivery, failed: Vec::new() }))
    }

    pub(super) fn current(&self) -> ChosenDelivery {
        self.lock().clone()
    }

    /// Falls back to the next delivery after `from`, unless another call has done so.
    pub(super) fn fall_back(&self, from: GuestDelivery, why: &str) {
        let mut chosen = self.lock();
        let below = FALLBACK_ORDER.into_iter().skip_while(|delivery| *delivery != from).nth(1);
        if let Some(below) = below.filter(|_| chosen.delivery == from) {
            tracing::warn!(
                from = from.as_str(),
                to = below.as_str(),
                why,
                "falling back to another guest delivery"
            );
            chosen.failed.push(format!("{}: {why}", from.as_str()));
            chosen.delivery = below;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChosenDelivery> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChosenDelivery {
    /// Records on the Pod how its guest is delivered.
    pub(super) fn note_on(&self, pod: &mut Pod) {
        let annotations = pod.annotations_mut();
        annotations.insert(DELIVERY.to_owned(), self.delivery.as_str().to_owned());
        if !self.failed.is_empty() {
            let why: String = self.failed.join(" ").chars().take(MAX_REASON).collect();
            annotations.insert(REASON.to_owned(), why);
        }
    }
}

impl Raw {
    /// Returns the best delivery that is possible, after creating what it needs in the namespace.
    pub(super) async fn prepare_delivery(&self) -> Result<ChosenDelivery> {
        loop {
            let chosen = self.0.deliveries.current();
            if chosen.delivery != GuestDelivery::ConfigMap {
                return Ok(chosen);
            }
            let maps = Api::namespaced(self.0.client.clone(), &self.config().namespace);
            match self.guest().await?.ensure(&maps).await {
                Ok(()) => return Ok(chosen),
                Err(error) if is_closed(&error) => {
                    self.0.deliveries.fall_back(chosen.delivery, error.message());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the guest's part of a Pod's specification for this delivery.
    pub(super) async fn guest_source(&self, delivery: GuestDelivery) -> Result<GuestSource> {
        match (delivery, &self.config().guest_image) {
            (GuestDelivery::Image, Some(image)) => Ok(GuestSource::Image(image.clone())),
            (GuestDelivery::Push, _) => Ok(GuestSource::Pushed),
            _ => Ok(GuestSource::Maps(self.guest().await?.names().map(str::to_owned).collect())),
        }
    }

    /// Whether a Pod did not start because the guest's image could not deliver the guest. The delivery then falls back.
    pub(super) async fn guest_image_failed(&self, pod: &str, error: &Error) -> Result<bool> {
        if error.kind() != ErrorKind::StartFailed || self.config().guest_image.is_none() {
            return Ok(false);
        }
        let failed = find(&self.0.pods, pod).await?.is_some_and(|pod| lacks_guest(&pod));
        if failed {
            self.0.deliveries.fall_back(GuestDelivery::Image, error.message());
        }
        Ok(failed)
    }
}

/// Whether the namespace refuses our `ConfigMaps`.
fn is_closed(error: &Error) -> bool {
    [ErrorKind::Denied, ErrorKind::QuotaExceeded].contains(&error.kind())
}

/// Whether the init container that copies the guest has not succeeded.
fn lacks_guest(pod: &Pod) -> bool {
    let status = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    let copying = status.into_iter().flatten().find(|status| status.name == GUEST_CONTAINER);
    copying.is_some_and(|copying| {
        let end = copying.state.as_ref().and_then(|state| state.terminated.as_ref());
        end.is_none_or(|end| end.exit_code != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(guest_image: Option<&str>) -> RawConfig {
        RawConfig { guest_image: guest_image.map(str::to_owned), ..RawConfig::default() }
    }

    #[test]
    fn deliveries_fall_back_in_order_and_a_pod_records_why() {
        let deliveries = Deliveries::new(&config(Some("guest:1")));
        let mut pod = Pod::default();
        deliveries.current().note_on(&mut pod);
        assert_eq!(GuestDelivery::of(&pod), Some((GuestDelivery::Image, None)));

        deliveries.fall_back(GuestDelivery::Image, "it can't be pulled.");
        deliveries.fall_back(GuestDelivery::Image, "another saw it too.");
        deliveries.fall_back(GuestDelivery::ConfigMap, "forbidden.");
        deliveries.fall_back(GuestDelivery::Push, "there is no delivery below.");
        deliveries.current().note_on(&mut pod);

        let why = "image: it can't be pulled. config-map: forbidden.".to_owned();
        assert_eq!(GuestDelivery::of(&pod), Some((GuestDelivery::Push, Some(why))));
    }

    #[test]
    fn without_an_image_config_maps_are_the_first_delivery() {
        assert_eq!(Deliveries::new(&config(None)).current().delivery, GuestDelivery::ConfigMap);
        assert_eq!(GuestDelivery::of(&Pod::default()), None);
    }

    #[test]
    fn a_pod_with_a_pushed_guest_runs_the_users_command_or_waits() {
        let mut config = config(None);
        let spec = pod::spec(&config, &GuestSource::Pushed).unwrap();
        assert_eq!(spec.containers[0].command.as_ref().unwrap()[..], super::super::push::WAIT);
        config.command = vec!["server".to_owned()];
        let spec = pod::spec(&config, &GuestSource::Pushed).unwrap();
        assert_eq!(spec.containers[0].command.as_ref().unwrap()[..], ["server"]);
        let volumes: Vec<_> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
        assert!(!volumes.contains(&"sandpod-guest"), "{volumes:?}");
    }

    #[test]
    fn the_guests_init_container_runs_before_those_of_the_user() {
        let mut config = config(Some("guest:1"));
        config.init_containers = vec![json!({ "name": "mine", "image": "i" })];
        let spec = pod::spec(&config, &GuestSource::Image("guest:1".to_owned())).unwrap();
        let names: Vec<_> =
            spec.init_containers.iter().flatten().map(|container| container.name.as_str()).collect();
        assert_eq!(names, [GUEST_CONTAINER, "mine"]);
        assert_eq!(spec.containers[0].command.as_ref().unwrap()[..], ["/sandpod/boot", "serve"]);
    }
}
