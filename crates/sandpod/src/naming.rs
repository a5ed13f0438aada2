//! How the objects of a raw sandbox are called in the cluster.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use crate::{Result, SandboxId};

/// Who knows the names of Pods and their labels.
///
/// A sandbox notes the naming that it was made with, so that whoever finds it knows its Pod.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Naming {
    /// sandpod's own.
    #[default]
    Sandpod,
    /// langchain-kubernetes's, whose users have scripts and dashboards that look for them.
    LangchainKubernetes,
}

impl Naming {
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

    /// A new name. Eight digits are few: whoever takes one looks first whether it is free.
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

    /// What a Pod is found by, over the labels that all objects of its sandbox have.
    pub(crate) fn pod_labels(self, id: &SandboxId) -> BTreeMap<String, String> {
        let labels: &[(&str, &str)] = match self {
            Self::Sandpod => &[],
            Self::LangchainKubernetes => &[
                ("app.kubernetes.io/managed-by", "deepagents"),
                ("app.kubernetes.io/component", "sandbox"),
                ("deepagents.langchain.com/sandbox-id", id.as_str()),
            ],
        };
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// The policy that cuts this one sandbox off the network, and the label of its Pod that it selects; for who looks
    /// for one by the sandbox's name. What counts is the policy that all sandboxes share.
    pub(crate) fn own_policy(self, id: &SandboxId) -> Option<(String, &'static str)> {
        match self {
            Self::Sandpod => None,
            Self::LangchainKubernetes => {
                Some((format!("deepagents-deny-all-{id}"), "deepagents.langchain.com/sandbox-id"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_naming_is_known_again_by_its_note() {
        for naming in [Naming::Sandpod, Naming::LangchainKubernetes] {
            assert_eq!(Naming::of_note(naming.note()), naming);
        }
        assert_eq!(Naming::of_note(Some("of a later version")), Naming::Sandpod);
    }

    #[test]
    fn d14_pods_are_called_as_langchain_kubernetes_calls_them() {
        let naming = Naming::LangchainKubernetes;
        let id = naming.random_id().unwrap();
        assert_eq!(id.as_str().len(), 8);
        assert!(id.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(naming.pod(&id, 1), format!("deepagents-{id}"));
        assert_eq!(naming.pod(&id, 2), format!("deepagents-{id}-2"), "the first may be on its way out");
        assert_eq!(naming.pod_labels(&id)["deepagents.langchain.com/sandbox-id"], id.as_str());
    }
}
