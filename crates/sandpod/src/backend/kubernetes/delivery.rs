//! How the guest was delivered to a sandbox, as an annotation of its Pod or claim records it.

use std::collections::BTreeMap;

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;

/// On a Pod or a claim: the delivery of its guest.
pub(in crate::backend) const DELIVERY: &str = "sandpod.dev/guest-delivery";
/// Why no better delivery was possible.
pub(in crate::backend) const REASON: &str = "sandpod.dev/guest-delivery-reason";
/// How the guest was delivered to a sandbox, the best way first.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum GuestDelivery {
    /// Copied from the image `guest_image` by an init container.
    Image,
    /// Mounted from `ConfigMaps` of the namespace.
    ConfigMap,
    /// Part of the template that the Pod was made from.
    Template,
    /// Pushed through exec into a container that runs another program.
    Push,
    /// Not delivered: the sandbox is served by agent-sandbox's runtime sandboxd.
    Sandboxd,
    /// Not delivered: the sandbox is served by agent-sandbox's first runtime.
    Legacy,
}

impl GuestDelivery {
    const ALL: [Self; 6] =
        [Self::Image, Self::ConfigMap, Self::Template, Self::Push, Self::Sandboxd, Self::Legacy];

    /// Returns its name: `image`, `config-map`, `template`, `push`, `sandboxd` or `legacy`.
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

    /// Returns the delivery that `pod` records, and why no better one was possible.
    pub(in crate::backend) fn of(pod: &Pod) -> Option<(Self, Option<String>)> {
        Self::noted(pod.annotations())
    }

    /// Returns the delivery that these annotations record, and why no better one was possible.
    pub(in crate::backend) fn noted(
        annotations: &BTreeMap<String, String>,
    ) -> Option<(Self, Option<String>)> {
        let name = annotations.get(DELIVERY)?;
        let delivery = Self::ALL.into_iter().find(|delivery| delivery.as_str() == name)?;
        Some((delivery, annotations.get(REASON).cloned()))
    }
}
