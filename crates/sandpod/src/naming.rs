//! Naming schemes for a sandbox's objects, labels and annotations.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{OWN_DOMAIN, OWN_PREFIX};
use crate::{Result, SandboxId};

/// Label with the manager of an object.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label by which users of langchain-kubernetes select the objects of a sandbox.
const THEIR_ID: &str = "deepagents.langchain.com/sandbox-id";

/// Naming scheme for Pods, namespaces, labels and annotations.
///
/// The anchor of a sandbox stores its scheme, so that every process finds its Pod.
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

    /// The value that the anchor stores. sandpod's own scheme is the default and is not stored.
    pub(crate) fn note(self) -> Option<&'static str> {
        match self {
            Self::Sandpod => None,
            Self::LangchainKubernetes => Some("langchain-kubernetes"),
        }
    }

    /// Returns the scheme for a stored value. An unknown value means sandpod's own scheme.
    pub(crate) fn of_note(note: Option<&str>) -> Self {
        if note == Self::LangchainKubernetes.note() { Self::LangchainKubernetes } else { Self::Sandpod }
    }

    /// Generates an id. Ids of eight digits may collide, so the caller checks that the id is unused.
    pub(crate) fn random_id(self) -> Result<SandboxId> {
        match self {
            Self::Sandpod => SandboxId::random(),
            Self::LangchainKubernetes => HEXLOWER.encode(&SandboxId::random_bytes::<4>()?).parse(),
        }
    }

    /// Whether generated ids are short enough to collide.
    pub(crate) fn is_short(self) -> bool {
        self == Self::LangchainKubernetes
    }

    /// Name of the Pod of a sandbox.
    pub(crate) fn pod(self, id: &SandboxId, generation: u32) -> String {
        match (self, generation) {
            (Self::Sandpod, _) => format!("{id}-{generation}"),
            (Self::LangchainKubernetes, 1) => format!("deepagents-{id}"),
            (Self::LangchainKubernetes, _) => format!("deepagents-{id}-{generation}"),
        }
    }

    /// Name of the namespace of a sandbox with `namespace_per_sandbox`.
    pub(crate) fn namespace(self, id: &SandboxId) -> String {
        match self {
            Self::Sandpod => format!("{OWN_PREFIX}{id}"),
            Self::LangchainKubernetes => format!("deepagents-{id}"),
        }
    }

    /// Returns the scheme's own key for a sandpod label or annotation, if it has one.
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

    /// Copies the annotations of an object or a patch to their aliases.
    pub(crate) fn annotate(self, object: &mut Value) {
        let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        let Some(annotations) = annotations else { return };
        let known = annotations.iter().filter_map(|(key, value)| Some((self.alias(key)?, value.clone())));
        let known: Vec<_> = known.collect();
        annotations.extend(known);
    }

    /// Value of [`MANAGED_BY`] on the Pod, namespace, policy and quota of a sandbox.
    pub(crate) fn manager(self) -> &'static str {
        match self {
            Self::Sandpod => "sandpod",
            Self::LangchainKubernetes => "deepagents",
        }
    }

    /// Label selector for the namespaces and Pods of every scheme.
    pub(crate) fn any_manager() -> String {
        format!("{MANAGED_BY} in ({})", Self::ALL.map(Self::manager).join(","))
    }

    /// Whether these labels mark a namespace or Pod of any scheme.
    pub(crate) fn is_manager(labels: &BTreeMap<String, String>) -> bool {
        let manager = labels.get(MANAGED_BY);
        Self::ALL.iter().any(|naming| manager.is_some_and(|manager| manager == naming.manager()))
    }

    /// Labels by which users select the Pod, namespace, policy and quota of a sandbox. They override the common labels
    /// of the sandbox's objects. The Lease keeps the common labels.
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

    /// Name of the sandbox's own `NetworkPolicy`, and the Pod label that it selects. It exists for users who look it up
    /// by the sandbox's name. The policy that all sandboxes share already isolates the Pod.
    pub(crate) fn own_policy(self, id: &SandboxId) -> Option<(String, &'static str)> {
        match self {
            Self::Sandpod => None,
            Self::LangchainKubernetes => Some((format!("deepagents-deny-all-{id}"), THEIR_ID)),
        }
    }

    /// Name of the `ResourceQuota` in a sandbox's own namespace.
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
    fn scheme_is_restored_from_its_stored_value() {
        for naming in Naming::ALL {
            assert_eq!(Naming::of_note(naming.note()), naming);
        }
        assert_eq!(Naming::of_note(Some("of a later version")), Naming::Sandpod);
    }

    #[test]
    fn d7_d14_pods_and_namespaces_have_langchain_kubernetes_names() {
        let naming = Naming::LangchainKubernetes;
        let id = naming.random_id().unwrap();
        assert_eq!(id.as_str().len(), 8);
        assert!(id.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(naming.pod(&id, 1), format!("deepagents-{id}"));
        assert_eq!(
            naming.pod(&id, 2),
            format!("deepagents-{id}-2"),
            "the first Pod may still be terminating"
        );
        assert_eq!(naming.namespace(&id), format!("deepagents-{id}"));
    }

    #[test]
    fn d7_d14_objects_have_the_labels_that_langchain_kubernetes_users_select() {
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
        assert!(!Naming::is_manager(&[(MANAGED_BY.to_owned(), "another".to_owned())].into()));
    }

    #[test]
    fn j3_annotations_are_also_written_under_langchain_kubernetes_keys() {
        let own = json!({ "sandpod.dev/ttl-seconds": "60", "sandpod.dev/pod-uid": "1", "else.where/ttl-seconds": "2" });
        let annotated = |naming: Naming| {
            let mut object = json!({ "metadata": { "annotations": own } });
            naming.annotate(&mut object);
            object["metadata"]["annotations"].take()
        };
        assert_eq!(annotated(Naming::Sandpod), own);
        let mut both = own.clone();
        both["langchain-kubernetes.bitkaio.com/ttl-seconds"] = json!("60");
        assert_eq!(annotated(Naming::LangchainKubernetes), both, "only keys with an alias are copied");
    }

    #[test]
    fn patch_without_annotations_is_unchanged() {
        let mut change = json!({ "metadata": { "uid": "1" } });
        Naming::LangchainKubernetes.annotate(&mut change);
        assert_eq!(change, json!({ "metadata": { "uid": "1" } }), "null would remove all annotations");
    }
}
