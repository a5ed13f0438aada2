//! A namespace with a quota for each sandbox. The namespace is created first and holds everything else, so deleting it
//! leaves nothing, also if the process is killed during a creation.

use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use sandpod_kube::k8s_openapi::api::core::v1::{
    Namespace, ResourceQuota, ResourceRequirements, ServiceAccount,
};
use sandpod_kube::kube::api::PostParams;
use sandpod_kube::kube::{Api, Client, ResourceExt};
use sandpod_kube::watch::SharedWatch;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::created_objects::report;
use super::delivery::GuestSource;
use super::{Raw, pod};
use crate::backend::kubernetes::anchor::{self, ID_LABEL, PARENT_LABEL};
use crate::backend::kubernetes::api::{self, Object, Watch, find, is, within};
use crate::backend::kubernetes::outage::{UNDO_LIMIT, outlast};
use crate::backend::kubernetes::{MAX_TURNS, contended, interrupted, object};
use crate::backend::{
    Backend, CreateSpec, Facts, OnLost, Page, Place, PlaceState, Provisioned, Query, Record, Rollback, Setup,
    slot,
};
use crate::config::{CONTAINER, RawConfig, refused};
use crate::{Error, ErrorCase, Naming, Result, SandboxId};

/// Identifies the call that created the namespace, so that a call without a response recognises it.
const HOLDER: &str = "sandpod.dev/holder";
const ENFORCE: (&str, &str) = ("pod-security.kubernetes.io/enforce", "restricted");
/// How many namespaces are read concurrently.
const LOOKS: usize = 16;

/// Creates, finds and deletes sandboxes that have a namespace each. Clones share their state.
#[derive(Clone)]
pub(crate) struct NamespacePerSandbox {
    /// The backend of the configuration's namespace, which holds no sandbox.
    parent: Raw,
    namespaces: Api<Namespace>,
    watch: SharedWatch<Namespace>,
}

/// The namespace of one sandbox.
#[derive(Clone, Debug)]
struct SandboxNamespace {
    name: String,
    uid: String,
}

impl Backend for NamespacePerSandbox {
    fn create<'a>(&'a self, id: &'a SandboxId, wanted: &'a CreateSpec) -> BoxFuture<'a, Result<Provisioned>> {
        self.create_within(id, wanted).boxed()
    }

    fn attach<'a>(
        &'a self,
        id: &'a SandboxId,
        on_lost: OnLost,
    ) -> BoxFuture<'a, Result<Option<Provisioned>>> {
        async move {
            let end = self.parent.0.contact.end(Instant::now() + self.outage_limit());
            match outlast(end, || self.find_namespace(id)).await? {
                Some(namespace) => self.raw(namespace.name).attach(id, on_lost).await,
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn outage_limit(&self) -> Duration {
        self.parent.outage_limit()
    }

    fn record_bound<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        let end = Instant::now() + self.outage_limit();
        async move { outlast(end, || self.raw_of(&place.id)).await?.record_bound(place).await }.boxed()
    }

    fn record_reported<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        async move { self.raw_of(&place.id).await?.record_reported(place).await }.boxed()
    }

    fn begin_setup<'a>(&'a self, place: &'a Place, limit: Duration) -> BoxFuture<'a, Result<Setup>> {
        async move { self.raw_of(&place.id).await?.begin_setup(place, limit).await }.boxed()
    }

    fn record_activity<'a>(&'a self, id: &'a SandboxId, uid: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            match self.find_namespace(id).await? {
                Some(namespace) => self.raw(namespace.name).record_activity(id, uid).await,
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn find<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Record>>> {
        async move {
            match self.find_namespace(id).await? {
                Some(namespace) => self.raw(namespace.name).find(id).await,
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page>> {
        self.page(query).boxed()
    }

    fn delete<'a>(&'a self, id: &'a SandboxId, wait: bool) -> BoxFuture<'a, Result<()>> {
        async move {
            let Some(namespace) = self.find_namespace(id).await? else { return Ok(()) };
            self.delete_namespace(&namespace).await?;
            if wait { api::wait_gone(&self.watch, &namespace.name, &namespace.uid).await } else { Ok(()) }
        }
        .boxed()
    }

    fn delete_unchanged<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<bool>> {
        async move {
            let Some(namespace) = self.find_namespace(&record.id).await? else { return Ok(false) };
            let raw = self.raw(namespace.name.clone());
            let is_empty = namespace.uid == record.uid;
            let unchanged = match raw.0.anchors.find(&record.id).await? {
                None => is_empty,
                Some(_) => !is_empty && raw.delete_unchanged(record).await?,
            };
            if unchanged {
                self.delete_namespace(&namespace).await?;
            }
            Ok(unchanged)
        }
        .boxed()
    }

    fn set_ttl<'a>(&'a self, record: &'a Record, ttl: Duration) -> BoxFuture<'a, Result<bool>> {
        async move { self.raw_of(&record.id).await?.set_ttl(record, ttl).await }.boxed()
    }

    fn delete_shared_objects(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        self.parent.delete_shared_objects()
    }
}

impl NamespacePerSandbox {
    pub(crate) fn new(client: Client, config: RawConfig) -> Self {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        // All namespaces: a foreign one may have the name that a new sandbox needs.
        let watch = SharedWatch::new(namespaces.clone(), "");
        Self { namespaces, watch, parent: Raw::new(client, config) }
    }

    fn config(&self) -> &RawConfig {
        self.parent.config()
    }

    /// Returns the backend for one of the namespaces.
    fn raw(&self, namespace: String) -> Raw {
        self.parent.at(namespace)
    }

    /// Returns the backend for the namespace of this sandbox.
    async fn raw_of(&self, id: &SandboxId) -> Result<Raw> {
        let namespace = self.find_namespace(id).await?.ok_or_else(|| anchor::vanished(id))?;
        Ok(self.raw(namespace.name))
    }

    async fn create_within(&self, id: &SandboxId, wanted: &CreateSpec) -> Result<Provisioned> {
        let working = slot().await?;
        let end = Instant::now() + self.outage_limit();
        let (backend, owned_id, owned_wanted) = (self.clone(), id.clone(), wanted.clone());
        let first = self.parent.0.contact.end(end);
        // In a task: if the caller is cancelled during the request, the result is dropped and so rolled back.
        let creating = tokio::spawn(async move {
            let holder = SandboxId::random()?.to_string();
            let made = outlast(first, || backend.create_namespace(&owned_id, &owned_wanted, &holder)).await;
            if made.as_ref().is_err_and(Error::is_outage) {
                drop(backend.unanswered(&owned_id, &holder));
            }
            made
        });
        let (namespace, ours, rollback) = creating.await.map_err(interrupted)??;
        self.parent.0.contact.note();
        let furnished = outlast(end, || self.furnish(id, &namespace)).await;
        drop(working);
        let made = match furnished {
            Ok(()) => self.raw(namespace.name).create(id, wanted).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(made) => Ok(Provisioned { rollback: made.rollback.then(rollback), ..made }),
            Err(error) => {
                rollback.run().await;
                // The creator of the namespace may have rolled it back, with what we put there.
                let given_up = !ours && self.find_namespace(id).await?.is_none();
                Err(if given_up { anchor::vanished(id) } else { error })
            }
        }
    }

    /// Creates the namespace of the sandbox. Returns whether this call created it, and the rollback.
    async fn create_namespace(
        &self,
        id: &SandboxId,
        wanted: &CreateSpec,
        holder: &str,
    ) -> Result<(SandboxNamespace, bool, Rollback)> {
        let name = name_of(self.config().naming, id)?;
        let namespace: Namespace = object(manifest(self.config(), id, wanted, &name, holder))?;
        for _ in 0..MAX_TURNS {
            let there = match within(self.namespaces.create(&PostParams::default(), &namespace)).await {
                Ok(created) => Some(created),
                Err(cause) if is(&cause, 409) => find(&self.namespaces, &name).await?,
                Err(cause) => return Err(Error::api(&format!("create Namespace '{name}'"), &cause)),
            };
            let Some(there) = there else { continue };
            if there.metadata.deletion_timestamp.is_some() {
                let uid = there.uid().unwrap_or_default();
                api::wait_gone(&self.watch, &name, &uid).await?;
                continue;
            }
            let ours = is_held_by(&there, holder);
            let namespace = SandboxNamespace::read(&there, self.config(), id)?;
            let rollback = if ours { self.undo(id, &namespace) } else { Rollback::none() };
            return Ok((namespace, ours, rollback));
        }
        Err(contended(id))
    }

    fn undo(&self, id: &SandboxId, namespace: &SandboxNamespace) -> Rollback {
        let (backend, id, namespace) = (self.clone(), id.clone(), namespace.clone());
        Rollback::new(async move {
            let undone = outlast(Instant::now() + UNDO_LIMIT, || backend.take_back(&id, &namespace)).await;
            report(&id, undone);
        })
    }

    async fn take_back(&self, id: &SandboxId, namespace: &SandboxNamespace) -> Result<()> {
        // An anchor that is left belongs to another caller, and so does the namespace then.
        match self.raw(namespace.name.clone()).0.anchors.find(id).await? {
            None => self.delete_namespace(namespace).await,
            Some(_) => Ok(()),
        }
    }

    /// Deletes the namespace that the call of `holder` may have created without a response.
    fn unanswered(&self, id: &SandboxId, holder: &str) -> Rollback {
        let (backend, id, holder) = (self.clone(), id.clone(), holder.to_owned());
        Rollback::new(async move {
            let find = || async {
                let there = backend.alive(&name_of(backend.config().naming, &id)?).await?;
                match there.filter(|there| is_held_by(there, &holder)) {
                    Some(there) => {
                        backend.take_back(&id, &SandboxNamespace::read(&there, backend.config(), &id)?).await
                    }
                    None => Ok(()),
                }
            };
            report(&id, outlast(Instant::now() + UNDO_LIMIT, find).await);
        })
    }

    /// Returns the namespace of the sandbox, unless it does not exist or is being deleted.
    async fn find_namespace(&self, id: &SandboxId) -> Result<Option<SandboxNamespace>> {
        let naming = self.config().naming;
        if let Some(namespace) = self.alive(&name_of(naming, id)?).await? {
            return SandboxNamespace::read(&namespace, self.config(), id).map(Some);
        }
        // Its creator may have used another naming.
        let others = Naming::ALL.into_iter().filter(|other| *other != naming);
        for name in others.filter_map(|other| name_of(other, id).ok()) {
            let namespace = self
                .alive(&name)
                .await?
                .map(|namespace| SandboxNamespace::read(&namespace, self.config(), id));
            if let Some(Ok(namespace)) = namespace {
                return Ok(Some(namespace));
            }
        }
        Ok(None)
    }

    async fn alive(&self, name: &str) -> Result<Option<Namespace>> {
        let there = find(&self.namespaces, name).await?;
        Ok(there.filter(|namespace| namespace.metadata.deletion_timestamp.is_none()))
    }

    async fn delete_namespace(&self, namespace: &SandboxNamespace) -> Result<()> {
        api::delete(&self.namespaces, &namespace.name, &namespace.uid).await
    }

    /// Prepares the namespace for a Pod: waits for its quota and its `ServiceAccount`.
    async fn furnish(&self, id: &SandboxId, namespace: &SandboxNamespace) -> Result<()> {
        let (client, config) = (&self.parent.0.client, self.config());
        let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace.name);
        let (quota, name) = (object::<ResourceQuota>(quota(config, id)?)?, config.naming.quota());
        match within(quotas.create(&PostParams::default(), &quota)).await {
            Err(cause) if !is(&cause, 409) => {
                return Err(Error::api(&format!("create ResourceQuota '{name}'"), &cause));
            }
            _ => {}
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace.name);
        let account = config.service_account.as_deref().unwrap_or("default");
        let limit = Duration::from_secs(config.startup_timeout_seconds);
        let counts =
            |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.hard.is_some());
        appears(&quotas, name, limit, counts).await?;
        appears(&accounts, account, limit, |_| true).await
    }

    async fn page(&self, query: &Query) -> Result<Page> {
        let ours = format!("{},{ID_LABEL},{PARENT_LABEL}={}", Naming::any_manager(), self.config().namespace);
        let (namespaces, cursor) =
            anchor::page(&self.namespaces, &self.config().label_prefix, query, &ours).await?;
        let alive =
            namespaces.into_iter().filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
        let records = stream::iter(alive).map(|namespace| self.record(namespace)).buffered(LOOKS);
        let records: Vec<_> = records.try_collect().await?;
        Ok(Page { records: records.into_iter().flatten().collect(), cursor })
    }

    /// Returns what is recorded of the sandbox in this namespace. Without a Lease it is pending since the namespace was
    /// created.
    async fn record(&self, namespace: Namespace) -> Result<Option<Record>> {
        let Some(Ok(id)) = namespace.labels().get(ID_LABEL).map(|id| id.parse::<SandboxId>()) else {
            return Ok(None);
        };
        if let Some(record) = self.raw(namespace.name_any()).find(&id).await? {
            return Ok(Some(record));
        }
        let made_at = namespace.creation_timestamp().map(|created| SystemTime::from(created.0));
        Ok(namespace.uid().map(|uid| Record {
            id,
            uid,
            namespace: namespace.name_any(),
            labels: anchor::users_labels(
                &self.config().label_prefix,
                namespace.labels(),
                namespace.annotations(),
            ),
            annotations: namespace.annotations().clone(),
            generation: 1,
            made_at,
            created_at: None,
            last_activity: None,
            ttl: None,
            idle_ttl: None,
            place_state: PlaceState::Alive,
            guest: None,
            facts: Facts::default(),
            version: namespace.resource_version().unwrap_or_default(),
        }))
    }
}

impl SandboxNamespace {
    fn read(namespace: &Namespace, config: &RawConfig, id: &SandboxId) -> Result<Self> {
        let labels = namespace.labels();
        let says = |key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
        let ours = Naming::is_manager(labels)
            && says(ID_LABEL, id.as_str())
            && says(PARENT_LABEL, &config.namespace);
        let uid = namespace.uid().filter(|_| ours).ok_or_else(|| {
            Error::of_case(
                ErrorCase::NamespaceConflict,
                config.naming.namespace_conflict(&namespace.name_any()),
                "Use another sandbox id, or delete the namespace if it is not needed.",
            )
        })?;
        Ok(Self { name: namespace.name_any(), uid })
    }
}

fn is_held_by(namespace: &Namespace, holder: &str) -> bool {
    namespace.annotations().get(HOLDER).map(String::as_str) == Some(holder)
}

fn name_of(naming: Naming, id: &SandboxId) -> Result<String> {
    let name = naming.namespace(id);
    if name.len() <= 63 {
        return Ok(name);
    }
    let field =
        format!("with namespace_per_sandbox the sandbox id '{id}' is too long for a namespace's name");
    let most = 63 + id.as_str().len() - name.len();
    Err(refused(&field, &format!("Use an id of at most {most} letters.")))
}

fn manifest(config: &RawConfig, id: &SandboxId, wanted: &CreateSpec, name: &str, holder: &str) -> Value {
    let mut labels = config.namespace_labels.clone();
    labels.entry(ENFORCE.0.to_owned()).or_insert_with(|| ENFORCE.1.to_owned());
    labels.extend(anchor::labels(&config.label_prefix, id, wanted));
    labels.extend(config.naming.labels(id));
    labels.insert(PARENT_LABEL.to_owned(), config.namespace.clone());
    json!({ "metadata": { "name": name, "labels": labels, "annotations": { HOLDER: holder } } })
}

/// Returns a quota for one Pod with the resources of the configuration. The needs of containers besides the sandbox's
/// own are unknown, so with them only the Pod is counted. Requests are counted only if every container has the
/// configuration's: an init container, or an override, may request more than the sandbox and stay below its limits.
fn quota(config: &RawConfig, id: &SandboxId) -> Result<Value> {
    let spec = pod::spec(config, &GuestSource::default())?;
    let granted: ResourceRequirements = object(pod::resources(config))?;
    let mut hard = json!({ "pods": "1" });
    if spec.containers.iter().all(|container| container.name == CONTAINER) {
        hard["limits.cpu"] = json!(config.cpu_limit);
        hard["limits.memory"] = json!(config.memory_limit);
        hard["limits.ephemeral-storage"] = json!(config.ephemeral_storage_limit);
        let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        if all.all(|container| container.resources.as_ref() == Some(&granted)) {
            hard["requests.cpu"] = json!(config.cpu_request);
            hard["requests.memory"] = json!(config.memory_request);
            hard["requests.ephemeral-storage"] = json!(config.ephemeral_storage_request);
        }
    }
    Ok(json!({
        "metadata": { "name": config.naming.quota(), "labels": anchor::own_labels(config.naming, id) },
        "spec": { "hard": hard },
    }))
}

/// Waits until the object exists and `done` holds.
async fn appears<K: Object>(
    objects: &Api<K>,
    name: &str,
    limit: Duration,
    done: impl Fn(&K) -> bool,
) -> Result<()> {
    let mut watch = Watch::new(&SharedWatch::new(objects.clone(), ""), name);
    let appearing = async {
        while !watch.next().await?.as_deref().is_some_and(&done) {}
        Ok(())
    };
    timeout(limit, appearing).await.unwrap_or_else(|_| {
        let (kind, seconds) = (K::kind(&()), limit.as_secs());
        Err(Error::of_case(
            ErrorCase::StartupTimeout,
            format!("{kind} '{name}' of the sandbox's namespace was not ready within {seconds}s."),
            "Check that the cluster's controller manager runs.",
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn config(fields: Value) -> RawConfig {
        serde_json::from_value(fields).unwrap()
    }

    fn labels(fields: Value) -> Value {
        let id = "thread-1".parse().unwrap();
        manifest(&config(fields), &id, &CreateSpec::default(), "sandpod-thread-1", "me")["metadata"]["labels"]
            .take()
    }

    #[test]
    fn a_namespace_enforces_restricted_unless_a_label_says_otherwise() {
        assert_eq!(labels(json!({}))[ENFORCE.0], "restricted");
        assert_eq!(labels(json!({ "namespace_labels": { ENFORCE.0: "baseline" } }))[ENFORCE.0], "baseline");
    }

    #[test]
    fn a_namespace_of_another_sandbox_or_a_foreign_one_is_refused() {
        let id: SandboxId = "thread-1".parse().unwrap();
        let config = config(json!({ "namespace": "agents" }));
        let read = |labels: Value| {
            let namespace = json!({ "metadata": { "name": "n", "uid": "1", "labels": labels } });
            SandboxNamespace::read(&serde_json::from_value(namespace).unwrap(), &config, &id)
        };
        let theirs = labels(json!({ "namespace": "agents", "naming": "langchain-kubernetes" }));
        assert_eq!(read(theirs).unwrap().name, "n", "of another naming");
        let own = labels(json!({ "namespace": "agents" }));
        assert_eq!(read(own.clone()).unwrap().name, "n");
        for (key, value) in
            [("app.kubernetes.io/managed-by", "x"), (ID_LABEL, "thread-2"), (PARENT_LABEL, "others")]
        {
            let mut other = own.clone();
            other[key] = json!(value);
            assert_eq!(read(other).unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        assert_eq!(read(json!({})).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let of_npm = RawConfig { naming: Naming::LangchainKubernetesJs, ..config.clone() };
        let foreign = serde_json::from_value(json!({ "metadata": { "name": "n", "uid": "1" } })).unwrap();
        let error = SandboxNamespace::read(&foreign, &of_npm, &id).unwrap_err();
        assert_eq!(error.message(), "Namespace \"n\" already exists but is not managed by DeepAgents.");
    }

    #[test]
    fn the_quota_is_one_pod_with_the_resources_of_the_configuration() {
        let id: SandboxId = "a".parse().unwrap();
        let hard = |fields| quota(&config(fields), &id).unwrap()["spec"]["hard"].take();
        let limits = json!({
            "pods": "1", "limits.cpu": "1000m", "limits.memory": "1Gi", "limits.ephemeral-storage": "5Gi",
        });
        let mut all = limits.clone();
        for (resource, amount) in [("cpu", "100m"), ("memory", "256Mi"), ("ephemeral-storage", "50Mi")] {
            all[format!("requests.{resource}")] = json!(amount);
        }
        assert_eq!(hard(json!({ "namespace_per_sandbox": true })), all);
        let init = |resources: Value| {
            let container = json!({ "name": "i", "image": "i", "resources": resources });
            json!({ "namespace_per_sandbox": true, "init_containers": [container] })
        };
        assert_eq!(hard(init(Value::Null)), all, "it gets those of the sandbox");
        assert_eq!(hard(init(json!({ "limits": { "cpu": "1", "memory": "1Gi" } }))), limits);
        let more = json!({ "name": "sandbox", "resources": { "requests": { "cpu": "1" } } });
        assert_eq!(hard(json!({ "pod_template_overrides": { "containers": [more] } })), limits);
        let sidecar = json!({ "pod_template_overrides": { "containers": [{ "name": "s", "image": "i" }] } });
        assert_eq!(hard(sidecar), json!({ "pods": "1" }));
    }

    #[test]
    fn d7_the_quota_is_called_and_labelled_as_its_users_know_it() {
        let id: SandboxId = "a".parse().unwrap();
        let metadata = |naming: &str| {
            let config = config(json!({ "naming": naming }));
            quota(&config, &id).unwrap()["metadata"].take()
        };
        let ours = json!({ "app.kubernetes.io/managed-by": "sandpod", "sandpod.dev/id": "a" });
        assert_eq!(metadata("sandpod"), json!({ "name": "sandpod", "labels": ours }));
        let theirs = metadata("langchain-kubernetes");
        assert_eq!(theirs["name"], "deepagents-quota");
        assert_eq!(metadata("langchain-kubernetes-js")["name"], "deepagents-sandbox-quota");
        assert_eq!(theirs["labels"]["app.kubernetes.io/managed-by"], "deepagents");
        assert_eq!(theirs["labels"]["app.kubernetes.io/component"], "sandbox");
    }

    #[test]
    fn an_id_that_is_too_long_for_a_namespace_is_refused() {
        let most =
            [(Naming::Sandpod, 55), (Naming::LangchainKubernetes, 52), (Naming::LangchainKubernetesJs, 44)];
        for (naming, most) in most {
            assert_eq!(name_of(naming, &"a".repeat(most).parse().unwrap()).unwrap().len(), 63);
            let error = name_of(naming, &"a".repeat(most + 1).parse().unwrap()).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("namespace_per_sandbox") && text.contains(&format!("most {most}")),
                "{text}"
            );
        }
    }
}
