//! A namespace of its own for each sandbox, with a quota. It is made first and holds everything else, so deleting it
//! leaves nothing, also if we die in the middle.

use std::time::Duration;

use sandpod_kube::k8s_openapi::api::core::v1::{Namespace, ResourceQuota, ServiceAccount};
use sandpod_kube::kube::api::PostParams;
use sandpod_kube::kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::anchor::{ID_LABEL, MANAGED_BY};
use super::api::{self, Object, Watch, find, is, within};
use super::{MAX_TURNS, contended, pod};
use crate::config::{CONTAINER, OWN_PREFIX, RawConfig, refused};
use crate::{Error, ErrorKind, Result, SandboxId};

/// Names the namespace of the configuration that a sandbox's own one belongs to: by it all of them are found.
pub(super) const PARENT_LABEL: &str = "sandpod.dev/parent";
/// By this name a create that was answered too late knows its own work.
const HOLDER: &str = "sandpod.dev/holder";
const ENFORCE: (&str, &str) = ("pod-security.kubernetes.io/enforce", "restricted");
const QUOTA: &str = "sandpod";

/// The namespaces of the sandboxes of one configuration.
#[derive(Clone)]
pub(super) struct Homes {
    client: Client,
    namespaces: Api<Namespace>,
}

/// The namespace of one sandbox.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) name: String,
    uid: String,
}

impl Homes {
    pub(super) fn new(client: &Client) -> Self {
        Self { client: client.clone(), namespaces: Api::all(client.clone()) }
    }

    /// The namespace of the sandbox, and whether this call made it. It is empty yet, or anything may be in it.
    pub(super) async fn create(&self, config: &RawConfig, id: &SandboxId) -> Result<(Home, bool)> {
        let (name, holder) = (name_of(id)?, SandboxId::random()?.to_string());
        let namespace: Namespace = super::object(manifest(config, id, &name, &holder))?;
        for _ in 0..MAX_TURNS {
            match within(self.namespaces.create(&PostParams::default(), &namespace)).await {
                Ok(created) => return Ok((Home::read(&created, config, id)?, true)),
                Err(cause) if is(&cause, 409) => {}
                Err(cause) => return Err(Error::api(&format!("create Namespace '{name}'"), &cause)),
            }
            match find(&self.namespaces, &name).await? {
                Some(there) if there.metadata.deletion_timestamp.is_some() => {
                    let uid = there.uid().unwrap_or_default();
                    api::wait_gone(&self.namespaces, &name, &uid).await?;
                }
                Some(there) => {
                    let ours = there.annotations().get(HOLDER) == Some(&holder);
                    return Ok((Home::read(&there, config, id)?, ours));
                }
                None => {}
            }
        }
        Err(contended(id))
    }

    /// The namespace of the sandbox, unless there is none or it is being deleted.
    pub(super) async fn find(&self, config: &RawConfig, id: &SandboxId) -> Result<Option<Home>> {
        let there = find(&self.namespaces, &name_of(id)?).await?;
        let alive = there.filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
        alive.map(|namespace| Home::read(&namespace, config, id)).transpose()
    }

    /// Makes the namespace ready for a Pod: its quota counts, and its `ServiceAccount` is there.
    pub(super) async fn furnish(&self, config: &RawConfig, home: &Home) -> Result<()> {
        let quotas: Api<ResourceQuota> = Api::namespaced(self.client.clone(), &home.name);
        let quota: ResourceQuota = super::object(quota(config)?)?;
        match within(quotas.create(&PostParams::default(), &quota)).await {
            Err(cause) if !is(&cause, 409) => {
                return Err(Error::api(&format!("create ResourceQuota '{QUOTA}'"), &cause));
            }
            _ => {}
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &home.name);
        let account = config.service_account.as_deref().unwrap_or("default");
        let limit = Duration::from_secs(config.startup_timeout_seconds);
        let counts =
            |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.hard.is_some());
        appears(&quotas, QUOTA, limit, counts).await?;
        appears(&accounts, account, limit, |_| true).await
    }

    pub(super) async fn delete(&self, home: &Home) -> Result<()> {
        api::delete(&self.namespaces, &home.name, &home.uid).await
    }

    pub(super) async fn wait_gone(&self, home: &Home) -> Result<()> {
        api::wait_gone(&self.namespaces, &home.name, &home.uid).await
    }
}

impl Home {
    fn read(namespace: &Namespace, config: &RawConfig, id: &SandboxId) -> Result<Self> {
        let expected =
            [(MANAGED_BY.0, MANAGED_BY.1), (ID_LABEL, id.as_str()), (PARENT_LABEL, &config.namespace)];
        let labels = namespace.labels();
        let ours = expected.iter().all(|(key, value)| labels.get(*key).is_some_and(|found| found == value));
        let uid = namespace.uid().filter(|_| ours).ok_or_else(|| {
            Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "The namespace '{}' is there, but it is not one of this sandbox.",
                    namespace.name_any()
                ),
                "Use another sandbox id, or delete the namespace if nobody needs it.",
            )
        })?;
        Ok(Self { name: namespace.name_any(), uid })
    }
}

fn name_of(id: &SandboxId) -> Result<String> {
    let name = format!("{OWN_PREFIX}{id}");
    if name.len() <= 63 {
        return Ok(name);
    }
    let field =
        format!("with namespace_per_sandbox the sandbox id '{id}' is too long for a namespace's name");
    Err(refused(&field, "Use an id of at most 55 letters."))
}

fn manifest(config: &RawConfig, id: &SandboxId, name: &str, holder: &str) -> Value {
    let mut labels = config.namespace_labels.clone();
    labels.entry(ENFORCE.0.to_owned()).or_insert_with(|| ENFORCE.1.to_owned());
    labels.extend(pod::labels(config, id));
    labels.insert(PARENT_LABEL.to_owned(), config.namespace.clone());
    json!({ "metadata": { "name": name, "labels": labels, "annotations": { HOLDER: holder } } })
}

/// One Pod, and no more for it than the configuration grants. What containers beside the sandbox's own take is not known
/// here, so with them only the Pod is counted.
fn quota(config: &RawConfig) -> Result<Value> {
    let alone = pod::spec(config, &[])?.containers.iter().all(|container| container.name == CONTAINER);
    let mut hard = json!({ "pods": "1" });
    if alone {
        hard["limits.cpu"] = json!(config.cpu_limit);
        hard["limits.memory"] = json!(config.memory_limit);
        hard["limits.ephemeral-storage"] = json!(config.ephemeral_storage_limit);
    }
    Ok(json!({
        "metadata": { "name": QUOTA, "labels": { MANAGED_BY.0: MANAGED_BY.1 } },
        "spec": { "hard": hard },
    }))
}

/// Waits until the object is there and as it should be.
async fn appears<K: Object>(
    objects: &Api<K>,
    name: &str,
    limit: Duration,
    done: impl Fn(&K) -> bool,
) -> Result<()> {
    let mut watch = Watch::new(objects, name);
    let appearing = async {
        while !watch.next().await?.as_ref().is_some_and(&done) {}
        Ok(())
    };
    timeout(limit, appearing).await.unwrap_or_else(|_| {
        let (kind, seconds) = (K::kind(&()), limit.as_secs());
        Err(Error::new(
            ErrorKind::Timeout,
            format!("{kind} '{name}' of the sandbox's namespace was not ready within {seconds}s."),
            "See whether the cluster's controller manager runs.",
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(fields: Value) -> RawConfig {
        serde_json::from_value(fields).unwrap()
    }

    fn labels(fields: Value) -> Value {
        let id = "thread-1".parse().unwrap();
        manifest(&config(fields), &id, "sandpod-thread-1", "me")["metadata"]["labels"].take()
    }

    #[test]
    fn a_namespace_enforces_restricted_unless_a_label_says_otherwise() {
        assert_eq!(labels(json!({}))[ENFORCE.0], "restricted");
        assert_eq!(labels(json!({ "namespace_labels": { ENFORCE.0: "baseline" } }))[ENFORCE.0], "baseline");
    }

    #[test]
    fn a_namespace_of_another_sandbox_or_of_nobody_is_not_taken() {
        let id: SandboxId = "thread-1".parse().unwrap();
        let config = config(json!({ "namespace": "agents" }));
        let read = |labels: Value| {
            let namespace = json!({ "metadata": { "name": "n", "uid": "1", "labels": labels } });
            Home::read(&serde_json::from_value(namespace).unwrap(), &config, &id)
        };
        let own = labels(json!({ "namespace": "agents" }));
        assert_eq!(read(own.clone()).unwrap().name, "n");
        for (key, value) in [(MANAGED_BY.0, "x"), (ID_LABEL, "thread-2"), (PARENT_LABEL, "others")] {
            let mut other = own.clone();
            other[key] = json!(value);
            assert_eq!(read(other).unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        assert_eq!(read(json!({})).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn the_quota_is_one_pod_with_the_limits_of_the_configuration() {
        let alone = quota(&config(json!({}))).unwrap();
        assert_eq!(
            alone["spec"]["hard"],
            json!({
                "pods": "1", "limits.cpu": "1000m", "limits.memory": "1Gi", "limits.ephemeral-storage": "5Gi",
            })
        );
        let sidecar = json!({ "pod_template_overrides": { "containers": [{ "name": "s", "image": "i" }] } });
        assert_eq!(quota(&config(sidecar)).unwrap()["spec"]["hard"], json!({ "pods": "1" }));
    }

    #[test]
    fn an_id_that_is_too_long_for_a_namespace_is_refused() {
        assert_eq!(name_of(&"a".repeat(55).parse().unwrap()).unwrap().len(), 63);
        let error = name_of(&"a".repeat(56).parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("namespace_per_sandbox"), "{error}");
    }
}
