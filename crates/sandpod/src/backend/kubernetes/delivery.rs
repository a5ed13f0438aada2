//! How the guest came into a sandbox, as annotations of its Pod or claim record it.

use std::collections::BTreeMap;

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;

/// On a Pod or a claim: the way that its guest came, and why it came by no better one.
pub(in crate::backend) const DELIVERY: &str = "sandpod.dev/guest-delivery";
pub(in crate::backend) const REASON: &str = "sandpod.dev/guest-delivery-reason";
/// How the guest came into a sandbox, the best way first.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum GuestDelivery {
    /// Copied out of the configuration's `guest_image`.
    Image,
    /// From `ConfigMaps` of the namespace.
    ConfigMap,
    /// In the Pod before it was claimed: the matter of its template.
    Template,
    /// Pushed through exec into a container that runs something else.
    Push,
    /// It didn't: agent-sandbox's runtime sandboxd is spoken to in its own words.
    Sandboxd,
    /// It didn't: agent-sandbox's first runtime is spoken to in its own words.
    Legacy,
}

impl GuestDelivery {
    const ALL: [Self; 6] =
        [Self::Image, Self::ConfigMap, Self::Template, Self::Push, Self::Sandboxd, Self::Legacy];

    /// Its name: `image`, `config-map`, `template`, `push`, `sandboxd` or `legacy`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::ConfigMap => "config-map",
            Self::Template => "template",
            Self::Push => "push",
            Self::Sandboxd => "sandboxd",
            Self::Legacy => "legacy",
        }
    }

    /// The way that the guest in `pod` came, and why by no better one.
    pub(in crate::backend) fn of(pod: &Pod) -> Option<(Self, Option<String>)> {
        Self::noted(pod.annotations())
    }

    /// The way that these annotations name, and why it was no better one.
    pub(in crate::backend) fn noted(
        annotations: &BTreeMap<String, String>,
    ) -> Option<(Self, Option<String>)> {
        let name = annotations.get(DELIVERY)?;
        let delivery = Self::ALL.into_iter().find(|delivery| delivery.as_str() == name)?;
        Some((delivery, annotations.get(REASON).cloned()))
    }
}
