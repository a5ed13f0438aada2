//! Naming schemes for a sandbox's objects, labels and annotations.

use std::collections::{BTreeMap, BTreeSet};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{OWN_DOMAIN, OWN_PREFIX};
use crate::provider::not_found;
use crate::{Result, SandboxId};

/// Label with the manager of an object.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label by which users of langchain-kubernetes select the objects of a sandbox.
const THEIR_ID: &str = "deepagents.langchain.com/sandbox-id";
/// Annotation of a Pod with `pod_ttl_seconds`, as `@bitkaio/langchain-kubernetes` writes it.
const THEIR_POD_TTL: &str = "deepagents.langchain.com/ttl-seconds";
/// Start of the names of Pods and namespaces of `@bitkaio/langchain-kubernetes`.
const JS_PREFIX: &str = "deepagents-sandbox-";

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
    /// The scheme of the npm package `@bitkaio/langchain-kubernetes`. A sandbox's id is the name of its first Pod.
    LangchainKubernetesJs,
}

impl Naming {
    pub(crate) const ALL: [Self; 3] = [Self::Sandpod, Self::LangchainKubernetes, Self::LangchainKubernetesJs];

    /// The value that the anchor stores. sandpod's own scheme is the default and is not stored.
    pub(crate) fn note(self) -> Option<&'static str> {
        match self {
            Self::Sandpod => None,
            Self::LangchainKubernetes => Some("langchain-kubernetes"),
            Self::LangchainKubernetesJs => Some("langchain-kubernetes-js"),
        }
    }

    /// Returns the scheme for a stored value. An unknown value means sandpod's own scheme.
    pub(crate) fn of_note(note: Option<&str>) -> Self {
        let stored = Self::ALL.into_iter().find(|naming| note.is_some() && naming.note() == note);
        stored.unwrap_or_default()
    }

    /// Generates an id. Ids of eight digits may collide, so the caller checks that the id is unused.
    pub(crate) fn random_id(self) -> Result<SandboxId> {
        let digits = || SandboxId::random_bytes::<4>().map(|bytes| HEXLOWER.encode(&bytes));
        match self {
            Self::Sandpod => SandboxId::random(),
            Self::LangchainKubernetes => digits()?.parse(),
            Self::LangchainKubernetesJs => format!("{JS_PREFIX}{}", digits()?).parse(),
        }
    }

    /// Whether generated ids are short enough to collide.
    pub(crate) fn is_short(self) -> bool {
        self != Self::Sandpod
    }

    /// Name of the Pod of a sandbox.
    pub(crate) fn pod(self, id: &SandboxId, generation: u32) -> String {
        match (self, generation) {
            (Self::Sandpod, _) => format!("{id}-{generation}"),
            (Self::LangchainKubernetes, 1) => format!("deepagents-{id}"),
            (Self::LangchainKubernetes, _) => format!("deepagents-{id}-{generation}"),
            (Self::LangchainKubernetesJs, 1) => in_js(id),
            (Self::LangchainKubernetesJs, _) => format!("{}-{generation}", in_js(id)),
        }
    }

    /// Name of the namespace of a sandbox with `namespace_per_sandbox`.
    pub(crate) fn namespace(self, id: &SandboxId) -> String {
        match self {
            Self::Sandpod => format!("{OWN_PREFIX}{id}"),
            Self::LangchainKubernetes => format!("deepagents-{id}"),
            Self::LangchainKubernetesJs => in_js(id),
        }
    }

    /// Returns the scheme's own key for a sandpod label or annotation, if it has one.
    pub(crate) fn alias(self, own: &str) -> Option<String> {
        let (domain, known): (_, &[_]) = match self {
            Self::Sandpod => return None,
            Self::LangchainKubernetes | Self::LangchainKubernetesJs => (
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
            Self::LangchainKubernetes | Self::LangchainKubernetesJs => "deepagents",
        }
    }

    /// Label selector for the namespaces and Pods of every scheme.
    pub(crate) fn any_manager() -> String {
        let managers = BTreeSet::from(Self::ALL.map(Self::manager));
        format!("{MANAGED_BY} in ({})", managers.into_iter().collect::<Vec<_>>().join(","))
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
            Self::LangchainKubernetes | Self::LangchainKubernetesJs => {
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
            Self::LangchainKubernetesJs => Some((format!("deepagents-sandbox-deny-all-{id}"), THEIR_ID)),
        }
    }

    /// Annotations of every Pod.
    pub(crate) fn pod_annotations(self, pod_ttl_seconds: Option<u64>) -> BTreeMap<&'static str, String> {
        let ttl = pod_ttl_seconds.filter(|_| self == Self::LangchainKubernetesJs);
        ttl.map(|seconds| (THEIR_POD_TTL, seconds.to_string())).into_iter().collect()
    }

    /// Message of the error for a namespace that another program created.
    pub(crate) fn namespace_conflict(self, namespace: &str) -> String {
        match self {
            Self::LangchainKubernetesJs => {
                format!("Namespace \"{namespace}\" already exists but is not managed by DeepAgents.")
            }
            _ => format!("The namespace '{namespace}' exists, but it does not belong to this sandbox."),
        }
    }

    /// Whether users write the ids of sandboxes with a namespace each as `NAMESPACE/ID`.
    fn qualifies_ids(self) -> bool {
        self == Self::LangchainKubernetesJs
    }

    /// Name of the `ResourceQuota` in a sandbox's own namespace.
    pub(crate) fn quota(self) -> &'static str {
        match self {
            Self::Sandpod => "sandpod",
            Self::LangchainKubernetes => "deepagents-quota",
            Self::LangchainKubernetesJs => "deepagents-sandbox-quota",
        }
    }
}

/// The namespaces of a provider's sandboxes.
#[derive(Clone, Debug, Default)]
pub(crate) enum Namespaces {
    /// They have none: they are on this machine.
    #[default]
    None,
    /// The namespace of all.
    Shared(String),
    /// Each sandbox has a namespace of its own.
    PerSandbox,
}

/// The ids of a provider's sandboxes as its users write them: the id alone, or `NAMESPACE/ID`.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdFormat {
    pub(crate) naming: Naming,
    pub(crate) namespaces: Namespaces,
}

impl IdFormat {
    /// Parses an id. No sandbox has an id with the name of another namespace than its own.
    pub(crate) fn parse(&self, text: &str) -> Result<SandboxId> {
        let Some((namespace, name)) = text.split_once('/') else { return text.parse() };
        let id = match self.namespaces {
            Namespaces::None => text.parse()?,
            _ => name.parse()?,
        };
        let names_own = match &self.namespaces {
            Namespaces::None => true,
            Namespaces::Shared(shared) => shared == namespace,
            Namespaces::PerSandbox => Naming::ALL.iter().any(|naming| naming.namespace(&id) == namespace),
        };
        if names_own { Ok(id) } else { Err(not_found(text)) }
    }

    /// Returns the id in the form of the naming.
    pub(crate) fn show(&self, id: &SandboxId) -> String {
        match self.namespaces {
            Namespaces::PerSandbox if self.naming.qualifies_ids() => {
                format!("{}/{id}", self.naming.namespace(id))
            }
            _ => id.to_string(),
        }
    }
}

/// Returns the name of the first Pod, and of the namespace, of a sandbox of [`Naming::LangchainKubernetesJs`]. The id of
/// a conversation thread's sandbox lacks the prefix.
fn in_js(id: &SandboxId) -> String {
    if id.as_str().starts_with(JS_PREFIX) { id.to_string() } else { format!("{JS_PREFIX}{id}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ErrorKind;

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
    fn d4_d7_d14_objects_have_the_names_of_the_npm_package() {
        let naming = Naming::LangchainKubernetesJs;
        let id = naming.random_id().unwrap();
        let digits = id.as_str().strip_prefix("deepagents-sandbox-").unwrap();
        assert!(digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        assert_eq!((naming.pod(&id, 1), naming.pod(&id, 2)), (id.to_string(), format!("{id}-2")));
        assert_eq!(naming.namespace(&id), id.as_str());
        assert_eq!(naming.own_policy(&id).unwrap().0, format!("deepagents-sandbox-deny-all-{id}"));
        let of_thread: SandboxId = "sp-1".parse().unwrap();
        assert_eq!(naming.pod(&of_thread, 1), "deepagents-sandbox-sp-1");
        assert_eq!(naming.labels(&id), Naming::LangchainKubernetes.labels(&id));
    }

    #[test]
    fn d7_an_id_may_be_written_with_the_namespace_of_its_sandbox_and_no_other() {
        let naming = Naming::LangchainKubernetesJs;
        let per_sandbox = IdFormat { naming, namespaces: Namespaces::PerSandbox };
        let id: SandboxId = "deepagents-sandbox-0a1b2c3d".parse().unwrap();
        let qualified = "deepagents-sandbox-0a1b2c3d/deepagents-sandbox-0a1b2c3d";
        assert_eq!(per_sandbox.show(&id), qualified);
        let kind = |format: &IdFormat, text: &str| format.parse(text).map_err(|error| error.kind());
        assert_eq!(kind(&per_sandbox, qualified), Ok(id.clone()));
        assert_eq!(kind(&per_sandbox, id.as_str()), Ok(id.clone()));
        assert_eq!(kind(&per_sandbox, &format!("agents/{id}")), Err(ErrorKind::NotFound));
        assert_eq!(kind(&per_sandbox, "agents/a/b"), Err(ErrorKind::InvalidInput));
        let shared = IdFormat { naming, namespaces: Namespaces::Shared("agents".to_owned()) };
        assert_eq!(shared.show(&id), id.as_str());
        assert_eq!(kind(&shared, &format!("agents/{id}")), Ok(id.clone()));
        assert_eq!(kind(&shared, qualified), Err(ErrorKind::NotFound));
        let python = IdFormat { naming: Naming::LangchainKubernetes, namespaces: Namespaces::PerSandbox };
        assert_eq!(python.show(&id), id.as_str());
        assert_eq!(kind(&IdFormat::default(), qualified), Err(ErrorKind::InvalidInput), "on this machine");
    }

    #[test]
    fn d13_only_the_npm_package_annotates_pods_with_an_explicit_time_to_live() {
        let annotated = |naming: Naming, ttl| naming.pod_annotations(ttl).into_iter().collect::<Vec<_>>();
        let expected = [("deepagents.langchain.com/ttl-seconds", "60".to_owned())];
        assert_eq!(annotated(Naming::LangchainKubernetesJs, Some(60)), expected);
        assert_eq!(annotated(Naming::LangchainKubernetesJs, None), []);
        assert_eq!(annotated(Naming::LangchainKubernetes, Some(60)), []);
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
