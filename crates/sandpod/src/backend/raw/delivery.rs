//! How the guest gets into a Pod: by the first of three ways that the cluster lets us go.

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

/// The container that copies the guest out of its image.
pub(super) const GUEST_CONTAINER: &str = "sandpod-guest";
/// The deliveries of raw mode, the best first.
const FALLBACK_ORDER: [GuestDelivery; 3] =
    [GuestDelivery::Image, GuestDelivery::ConfigMap, GuestDelivery::Push];
/// The most that is told of why.
const MAX_REASON: usize = 1024;

/// What a Pod's specification has of the guest.
#[derive(Debug, PartialEq)]
pub(super) enum GuestSource {
    Image(String),
    /// The names of the `ConfigMaps`.
    Maps(Vec<String>),
    /// Nothing: it comes later.
    Pushed,
}

impl Default for GuestSource {
    /// For what is the same whatever the guest is.
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

    /// What brings the guest before the sandbox starts.
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

/// On which delivery a provider stands. It only goes down: what failed once would cost every sandbox the same time.
pub(super) struct Deliveries(Mutex<ChosenDelivery>);

/// A delivery, and why those above it failed.
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

    /// Goes one down, unless somebody has meanwhile.
    pub(super) fn fall_back(&self, from: GuestDelivery, why: &str) {
        let mut chosen = self.lock();
        let below = FALLBACK_ORDER.into_iter().skip_while(|delivery| *delivery != from).nth(1);
        if let Some(below) = below.filter(|_| chosen.delivery == from) {
            tracing::warn!(from = from.as_str(), to = below.as_str(), why, "the guest comes another way");
            chosen.failed.push(format!("{}: {why}", from.as_str()));
            chosen.delivery = below;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ChosenDelivery> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChosenDelivery {
    /// Notes on the Pod by which way its guest comes.
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
    /// The best way that is open, with all that it needs in the namespace.
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

    /// The guest as a Pod's specification has it on this delivery.
    pub(super) async fn guest_source(&self, delivery: GuestDelivery) -> Result<GuestSource> {
        match (delivery, &self.config().guest_image) {
            (GuestDelivery::Image, Some(image)) => Ok(GuestSource::Image(image.clone())),
            (GuestDelivery::Push, _) => Ok(GuestSource::Pushed),
            _ => Ok(GuestSource::Maps(self.guest().await?.names().map(str::to_owned).collect())),
        }
    }

    /// Whether a Pod did not start because its guest's image brings none; then the next one comes another way.
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

/// The namespace takes no `ConfigMaps` from us.
fn is_closed(error: &Error) -> bool {
    [ErrorKind::Denied, ErrorKind::QuotaExceeded].contains(&error.kind())
}

/// Whether the container that copies the guest has not come to its end.
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
    fn one_goes_down_rung_by_rung_and_a_pod_says_why() {
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
    fn without_an_image_one_begins_at_the_config_maps() {
        assert_eq!(Deliveries::new(&config(None)).current().delivery, GuestDelivery::ConfigMap);
        assert_eq!(GuestDelivery::of(&Pod::default()), None);
    }

    #[test]
    fn a_pod_whose_guest_comes_later_runs_the_users_command_itself_or_waits_for_the_guests_end() {
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
    fn an_image_brings_the_guest_before_all_that_the_user_runs_before() {
        let mut config = config(Some("guest:1"));
        config.init_containers = vec![json!({ "name": "mine", "image": "i" })];
        let spec = pod::spec(&config, &GuestSource::Image("guest:1".to_owned())).unwrap();
        let names: Vec<_> =
            spec.init_containers.iter().flatten().map(|container| container.name.as_str()).collect();
        assert_eq!(names, [GUEST_CONTAINER, "mine"]);
        assert_eq!(spec.containers[0].command.as_ref().unwrap()[..], ["/sandpod/boot", "serve"]);
    }
}
