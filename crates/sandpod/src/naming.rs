//! Naming schemes for a sandbox's objects, labels and annotations.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{OWN_DOMAIN, OWN_PREFIX};
use crate::{Result, SandboxId};

/// The label that says who manages an object.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The label by which users of langchain-kubernetes find the objects of a sandbox.
const THEIR_ID: &str = "deepagents.langchain.com/sandbox-id";

/// Naming scheme for Pods, namespaces, labels and annotations.
///
/// A sandbox's anchor notes its scheme, so that every process finds its Pod.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Naming {
    /// sandpod's own scheme.
    #[default]
    Sandpod,
    /// The scheme of langchain-kubernetes, for its users' scripts and dashboards.
    LangchainKubernetes,
}

impl Naming {
    pub(crate) const ALL: [Self; 2] = [Self::Sandpod, Self::LangchainKubernetes];

    /// As a sandbox notes it; sandpod's own needs no note.
    pub(crate) fn note(self) -> Option<&'static str> {
        match self {
            Self::Sandpod => None,
            Self::LangchainKubernetes => Some("langchain-kubernetes"),
        }
    }

    /// What a sandbox has noted.
    pub(crate) fn of_note(note: Option<&str>) -> Self {
        if note == Self::LangchainKubernetes.note() { Self::LangchainKubernetes } else { Self::Sandpod }
    }

    /// A new name. Eight digits may collide: the caller checks whether the name is free.
    pub(crate) fn random_id(self) -> Result<SandboxId> {
        match self {
            Self::Sandpod => SandboxId::random(),
            Self::LangchainKubernetes => HEXLOWER.encode(&SandboxId::random_bytes::<4>()?).parse(),
        }
    }

    /// Whether its new names may be another's.
    pub(crate) fn is_short(self) -> bool {
        self == Self::LangchainKubernetes
    }

    /// The Pod that a sandbox makes for itself.
    pub(crate) fn pod(self, id: &SandboxId, generation: u32) -> String {
        match (self, generation) {
            (Self::Sandpod, _) => format!("{id}-{generation}"),
            (Self::LangchainKubernetes, 1) => format!("deepagents-{id}"),
            (Self::LangchainKubernetes, _) => format!("deepagents-{id}-{generation}"),
        }
    }

    /// The namespace of a sandbox that has one of its own.
    pub(crate) fn namespace(self, id: &SandboxId) -> String {
        match self {
            Self::Sandpod => format!("{OWN_PREFIX}{id}"),
            Self::LangchainKubernetes => format!("deepagents-{id}"),
        }
    }

    /// What a label or an annotation of ours is called for its users as well, if they know it.
    pub(crate) fn alias(self, own: &str) -> Option<String> {
        let (domain, known): (_, &[_]) = match self {
            Self::Sandpod => return None,
            Self::LangchainKubernetes => (
                "langchain-kubernetes.bitkaio.com/",
                &["created-at", "last-activity", "pool-status", "ttl-idle-seconds", "ttl-seconds"],
            ),
        };
        let name = own.strip_prefix(OWN_DOMAIN).filter(|name| known.contains(name))?;
        Some(format!("{domain}{name}"))
    }

    /// Writes the annotations of an object, or of a change of one, also under the names that its users know.
    pub(crate) fn annotate(self, object: &mut Value) {
        let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        let Some(annotations) = annotations else { return };
        let known = annotations.iter().filter_map(|(key, value)| Some((self.alias(key)?, value.clone())));
        let known: Vec<_> = known.collect();
        annotations.extend(known);
    }

    /// The value of [`MANAGED_BY`] on the Pod, the namespace, the policy and the quota of a sandbox.
    pub(crate) fn manager(self) -> &'static str {
        match self {
            Self::Sandpod => "sandpod",
            Self::LangchainKubernetes => "deepagents",
        }
    }

    /// Selects the namespaces and Pods of every naming.
    pub(crate) fn any_manager() -> String {
        format!("{MANAGED_BY} in ({})", Self::ALL.map(Self::manager).join(","))
    }

    /// Whether the labels of a namespace or a Pod are those of a naming.
    pub(crate) fn is_manager(labels: &BTreeMap<String, String>) -> bool {
        let manager = labels.get(MANAGED_BY);
        Self::ALL.iter().any(|naming| manager.is_some_and(|manager| manager == naming.manager()))
    }

    /// The labels by which users find the Pod, the namespace, the policy and the quota of a sandbox. They take the place
    /// of those that all objects of the sandbox have; its Lease keeps those.
    pub(crate) fn labels(self, id: &SandboxId) -> BTreeMap<String, String> {
        let others: &[(&str, &str)] = match self {
            Self::Sandpod => &[],
            Self::LangchainKubernetes => {
                &[("app.kubernetes.io/component", "sandbox"), (THEIR_ID, id.as_str())]
            }
        };
        let all = others.iter().copied().chain([(MANAGED_BY, self.manager())]);
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// The policy that isolates this one sandbox, and the label of its Pod that it selects, for users who look for one by the
    /// sandbox's name. The policy that all sandboxes share is the effective one.
    pub(crate) fn own_policy(self, id: &SandboxId) -> Option<(String, &'static str)> {
        match self {
            Self::Sandpod => None,
            Self::LangchainKubernetes => Some((format!("deepagents-deny-all-{id}"), THEIR_ID)),
        }
    }

    /// The quota of a sandbox's own namespace.
    pub(crate) fn quota(self) -> &'static str {
        match self {
            Self::Sandpod => "sandpod",
            Self::LangchainKubernetes => "deepagents-quota",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_naming_is_known_again_by_its_note() {
        for naming in Naming::ALL {
            assert_eq!(Naming::of_note(naming.note()), naming);
        }
        assert_eq!(Naming::of_note(Some("of a later version")), Naming::Sandpod);
    }

    #[test]
    fn d7_d14_pods_and_their_namespaces_are_called_as_langchain_kubernetes_calls_them() {
        let naming = Naming::LangchainKubernetes;
        let id = naming.random_id().unwrap();
        assert_eq!(id.as_str().len(), 8);
        assert!(id.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(naming.pod(&id, 1), format!("deepagents-{id}"));
        assert_eq!(naming.pod(&id, 2), format!("deepagents-{id}-2"), "the first may be on its way out");
        assert_eq!(naming.namespace(&id), format!("deepagents-{id}"));
    }

    #[test]
    fn d7_d14_every_object_has_the_labels_that_users_of_langchain_kubernetes_select() {
        let id: SandboxId = "a".parse().unwrap();
        let labels = Naming::LangchainKubernetes.labels(&id);
        let expected = [
            ("app.kubernetes.io/component", "sandbox"),
            ("app.kubernetes.io/managed-by", "deepagents"),
            ("deepagents.langchain.com/sandbox-id", "a"),
        ];
        assert!(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(expected), "{labels:?}");
        let (policy, selected) = Naming::LangchainKubernetes.own_policy(&id).unwrap();
        assert_eq!((policy.as_str(), &labels[selected]), ("deepagents-deny-all-a", &id.to_string()));
        for naming in Naming::ALL {
            assert!(
                Naming::is_manager(&naming.labels(&id)) && Naming::any_manager().contains(naming.manager())
            );
        }
        assert!(!Naming::is_manager(&[(MANAGED_BY.to_owned(), "somebody".to_owned())].into()));
    }

    #[test]
    fn j3_annotations_have_the_names_of_langchain_kubernetes_beside_ours() {
        let own = json!({ "sandpod.dev/ttl-seconds": "60", "sandpod.dev/pod-uid": "1", "else.where/ttl-seconds": "2" });
        let annotated = |naming: Naming| {
            let mut object = json!({ "metadata": { "annotations": own } });
            naming.annotate(&mut object);
            object["metadata"]["annotations"].take()
        };
        assert_eq!(annotated(Naming::Sandpod), own);
        let mut both = own.clone();
        both["langchain-kubernetes.bitkaio.com/ttl-seconds"] = json!("60");
        assert_eq!(annotated(Naming::LangchainKubernetes), both, "only those that its users know");
    }

    #[test]
    fn a_change_without_annotations_stays_one() {
        let mut change = json!({ "metadata": { "uid": "1" } });
        Naming::LangchainKubernetes.annotate(&mut change);
        assert_eq!(change, json!({ "metadata": { "uid": "1" } }), "null would take all of them away");
    }
}
