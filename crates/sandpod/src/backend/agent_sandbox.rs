//! Sandboxes of kubernetes-sigs/agent-sandbox.
//!
//! A sandbox is a `SandboxClaim` ([`claims`]). It comes to a caller in these steps:
//!
//! 1. *choose* a warm pool for the template ([`pools`]) and create the claim;
//! 2. *provision* ([`provision`]): watch the claim and its Pod until both are ready ([`readiness`]), and claim again if the Pod is
//!    lost;
//! 3. *connect* ([`connect`]): try the connection modes in order, through exec or over the network ([`router`], opened by
//!    [`tokens`]), and *probe* each for our guest or a stock runtime ([`stock`]); a guest that the template lacks is pushed
//!    ([`push`]);
//! 4. *dial* ([`dialer`]): open streams by the mode that was found.
//!
//! While a process claims from a pool, it *preconnects* to the Pods that the pool hands out next ([`preconnect`]).
//! [`suspend`] gives a sandbox's Pod up and keeps its durable [`volumes`]; [`adopt`] attaches to claims that sandpod
//! did not make; [`probe`] checks for the doctor what a connection mode leads through.

mod adopt;
mod claims;
mod connect;
mod dialer;
mod lifecycle;
mod pools;
mod preconnect;
mod probe;
mod provision;
mod push;
mod readiness;
mod router;
mod stock;
mod suspend;
mod tokens;
mod volumes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _, TryStreamExt as _, stream};
use sandpod_kube::agent_sandbox::{Sandbox, Served, Version};
use sandpod_kube::gateway::Gateway;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::ListParams;
use sandpod_kube::kube::{self, Api, Client, ResourceExt};
use sandpod_kube::watch::SharedWatch;
use tokio::time::Instant;

pub(crate) use self::claims::{CONNECTION, CONNECTION_REASON, durable_dirs};
use self::claims::{Claim, Claims};
pub(crate) use self::connect::{ConnectionMode, has_guest};
use self::pools::Pools;
use self::preconnect::Preconnected;
use self::push::Guests;
use super::kubernetes::anchor::vanished;
use super::kubernetes::api::{self, find, within};
use super::kubernetes::outage::{Contact, UNDO_LIMIT, outlast};
use super::kubernetes::{MAX_TURNS, anchor_store, contended, interrupted};
use super::{Backend, CreateSpec, OnLost, Page, Place, Provisioned, Query, Record, Rollback, Setup, slot};
use crate::provider::PoolStatus;
use crate::{AgentSandboxConfig, Error, ErrorKind, Result, SandboxId};

/// The role that grants the rights of this mode.
const ROLE: &str = "deploy/rbac/agent-sandbox.yaml";
/// A label of every Pod of agent-sandbox.
const PODS: &str = "agents.x-k8s.io/sandbox-name-hash";
/// A label of the Pod of a claim: the claim's UID.
const CLAIM_UID: &str = "agents.x-k8s.io/claim-uid";

/// How many Pods are read concurrently.
const READS: usize = 16;

/// Claims, finds and deletes sandboxes in one namespace. Clones share their state.
#[derive(Clone)]
pub(crate) struct AgentSandbox(Arc<Inner>);

struct Inner {
    client: Client,
    config: AgentSandboxConfig,
    claims: Claims,
    pools: Pools,
    sandboxes: Api<Sandbox>,
    served: Served,
    pods: Api<Pod>,
    pod_watch: SharedWatch<Pod>,
    gateway_watch: SharedWatch<Gateway>,
    guests: Guests,
    preconnected: Preconnected,
    contact: Contact,
}

impl Backend for AgentSandbox {
    fn create<'a>(&'a self, id: &'a SandboxId, wanted: &'a CreateSpec) -> BoxFuture<'a, Result<Provisioned>> {
        async move {
            let (claim, rollback) = self.create_claim(id, wanted).await?;
            self.0.preconnected.note_claim(&claim.pool);
            self.finish(claim, rollback, wanted.on_lost).await
        }
        .map_err(with_role_advice)
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        id: &'a SandboxId,
        on_lost: OnLost,
    ) -> BoxFuture<'a, Result<Option<Provisioned>>> {
        async move {
            let end = self.0.contact.end(Instant::now() + self.startup_limit());
            let found = outlast(end, || self.0.claims.find(id)).await?;
            self.0.contact.note();
            match found {
                Some(claim) => self.finish(claim, Rollback::none(), on_lost).await.map(Some),
                None => Ok(None),
            }
        }
        .map_err(with_role_advice)
        .boxed()
    }

    fn adopt<'a>(&'a self, name: &'a SandboxId) -> BoxFuture<'a, Result<Provisioned>> {
        self.adopt_claim(name).map_err(with_role_advice).boxed()
    }

    fn suspend<'a>(&'a self, id: &'a SandboxId, force: bool) -> BoxFuture<'a, Result<()>> {
        self.suspend_claim(id, force).map_err(with_role_advice).boxed()
    }

    fn resume<'a>(&'a self, id: &'a SandboxId, has_policy: bool) -> BoxFuture<'a, Result<Provisioned>> {
        self.resume_claim(id, has_policy).map_err(with_role_advice).boxed()
    }

    fn outage_limit(&self) -> Duration {
        self.startup_limit()
    }

    fn record_bound<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        anchor_store::record_bound(&self.0.claims, place).boxed()
    }

    fn record_reported<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        anchor_store::record_reported(&self.0.claims, place).boxed()
    }

    fn begin_setup<'a>(&'a self, place: &'a Place, limit: Duration) -> BoxFuture<'a, Result<Setup>> {
        anchor_store::assign_setup(&self.0.claims, place, limit, self.startup_limit()).boxed()
    }

    fn record_activity<'a>(&'a self, id: &'a SandboxId, uid: &'a str) -> BoxFuture<'a, Result<()>> {
        self.0.claims.touch(id, uid).boxed()
    }

    fn find<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Record>>> {
        async move {
            let Some(claim) = self.0.claims.find(id).await? else { return Ok(None) };
            let pod = find(&self.0.pods, claim.pod_name()).await.map_err(with_role_advice)?;
            Ok(Some(claim.record(&self.0.config, pod.as_ref())))
        }
        .boxed()
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page>> {
        self.page(query).boxed()
    }

    fn delete<'a>(&'a self, id: &'a SandboxId, wait: bool) -> BoxFuture<'a, Result<()>> {
        self.delete_all(id, wait).map_err(with_role_advice).boxed()
    }

    fn delete_unchanged<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<bool>> {
        self.0.claims.delete_unchanged(&record.id, &record.uid, &record.version).boxed()
    }

    fn set_ttl<'a>(&'a self, record: &'a Record, ttl: Duration) -> BoxFuture<'a, Result<bool>> {
        self.0.claims.set_ttl(record, ttl).boxed()
    }

    fn pool_status(&self) -> BoxFuture<'_, Result<PoolStatus>> {
        self.0.pools.status().boxed()
    }

    fn remove_abandoned_pools(&self, _max_idle: Option<Duration>) -> BoxFuture<'_, Result<Vec<SandboxId>>> {
        // Pools that we make hold no sandboxes.
        async { self.0.pools.remove_unused().await.map(|()| Vec::new()) }.boxed()
    }
}

impl AgentSandbox {
    pub(crate) fn new(client: Client, config: AgentSandboxConfig) -> Self {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &config.namespace);
        let served = Served::new(client.clone());
        let theirs = served.client();
        Self(Arc::new(Inner {
            claims: Claims::new(&theirs, &config),
            pools: Pools::new(&theirs, served.clone(), &config),
            pod_watch: SharedWatch::new(pods.clone(), PODS),
            gateway_watch: SharedWatch::new(Api::namespaced(client.clone(), &config.gateway_namespace), ""),
            sandboxes: Api::namespaced(theirs, &config.namespace),
            served,
            guests: Guests::default(),
            preconnected: Preconnected::default(),
            contact: Contact::default(),
            pods,
            client,
            config,
        }))
    }

    fn startup_limit(&self) -> Duration {
        Duration::from_secs(self.0.config.startup_timeout_seconds)
    }

    /// Returns the claim of the sandbox `id`, created if it does not exist, and what deletes a created one.
    async fn create_claim(&self, id: &SandboxId, wanted: &CreateSpec) -> Result<(Claim, Rollback)> {
        let _slot = slot().await?;
        let end = Instant::now() + self.startup_limit();
        let origin = outlast(self.0.contact.end(end), || self.0.pools.choose()).await?;
        self.0.contact.note();
        let (backend, id, wanted) = (self.clone(), id.clone(), wanted.clone());
        // In a task: if the caller is cancelled during the request, the result is dropped and so rolled back.
        let creating = tokio::spawn(async move {
            let holder = SandboxId::random()?.to_string();
            let rollback = backend.taking_back(&id, &holder);
            match outlast(end, || backend.0.claims.create(&id, &wanted, &origin, &holder)).await {
                Ok((claim, true)) => Ok((claim, rollback)),
                // It may have been created without a response.
                Err(error) if error.is_outage() => Err(error),
                other => {
                    rollback.disarm();
                    other.map(|(claim, _)| (claim, Rollback::none()))
                }
            }
        });
        creating.await.map_err(interrupted)?
    }

    /// Deletes the claim that the call of `holder` made, unless its guest has been bound since.
    fn taking_back(&self, id: &SandboxId, holder: &str) -> Rollback {
        let (backend, id, holder) = (self.clone(), id.clone(), holder.to_owned());
        Rollback::new(async move {
            let end = Instant::now() + UNDO_LIMIT;
            if let Err(error) = outlast(end, || backend.take_back(&id, &holder)).await {
                tracing::warn!(%id, %error, "a sandbox that did not start could not be deleted");
            }
        })
    }

    async fn take_back(&self, id: &SandboxId, holder: &str) -> Result<()> {
        for _ in 0..MAX_TURNS {
            match self.0.claims.find(id).await?.filter(|claim| claim.is_held_by(holder)) {
                Some(claim) if claim.created_at.is_none() => {
                    if self.0.claims.delete_read(&claim).await? {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
        }
        Err(contended(id))
    }

    async fn page(&self, query: &Query) -> Result<Page> {
        let (claims, cursor) = self.0.claims.list(query).await?;
        let uids: Vec<_> = claims.iter().map(|claim| claim.uid.as_str()).collect();
        let pods = match &uids[..] {
            [] => Vec::new(),
            uids => self.pods(&format!("{CLAIM_UID} in ({})", uids.join(","))).await?,
        };
        let mut pods: HashMap<_, _> = pods.into_iter().map(|pod| (pod.name_any(), pod)).collect();
        // A Pod gets the claim's label a moment after the claim gets the Pod.
        let unlabelled = claims.iter().map(Claim::pod_name).filter(|name| !pods.contains_key(*name));
        let unlabelled: Vec<_> = unlabelled.map(str::to_owned).collect();
        let read = |name: String| async move { find(&self.0.pods, &name).await };
        let reading = stream::iter(unlabelled).map(read).buffer_unordered(READS);
        let found: Vec<_> = reading.try_collect().await.map_err(with_role_advice)?;
        pods.extend(found.into_iter().flatten().map(|pod| (pod.name_any(), pod)));
        let records = claims.iter().map(|claim| claim.record(&self.0.config, pods.get(claim.pod_name())));
        Ok(Page { records: records.collect(), cursor })
    }

    async fn pods(&self, selector: &str) -> Result<Vec<Pod>> {
        let pods = within(self.0.pods.list(&ListParams::default().labels(selector))).await;
        pods.map(|pods| pods.items).map_err(|cause| refused("list Pods", &cause))
    }

    /// Returns the version of agent-sandbox that the cluster serves.
    async fn version(&self) -> Result<Version> {
        self.0.served.version().await.map_err(|cause| refused("read the versions of agent-sandbox", &cause))
    }

    /// Deletes the claim. It owns the Sandbox, which owns the Pod.
    async fn delete_all(&self, id: &SandboxId, wait: bool) -> Result<()> {
        let Some(claim) = self.0.claims.find(id).await? else { return Ok(()) };
        let pod = find(&self.0.pods, claim.pod_name()).await.map_err(with_role_advice)?;
        let pod_uid = pod.as_ref().and_then(ResourceExt::uid);
        self.0.claims.delete(&claim).await?;
        if !wait {
            return Ok(());
        }
        self.0.claims.wait_gone(id, &claim.uid).await?;
        match pod_uid {
            Some(uid) => api::wait_gone(&self.0.pod_watch, claim.pod_name(), &uid).await,
            None => Ok(()),
        }
    }
}

/// Converts an error of the API server, with the next step in this mode.
fn refused(what: &str, cause: &kube::Error) -> Error {
    if matches!(cause, kube::Error::Api(status) if status.code == 404 && status.message.contains("page not found"))
    {
        return Error::new(
            ErrorKind::Unsupported,
            format!("Can't {what}: this cluster does not have agent-sandbox."),
            "Install its controller with extensions, or use mode='raw', which needs only Pods.",
        );
    }
    with_role_advice(Error::api(what, cause))
}

/// Sets the next step of an error for a missing right: the role that grants it in this mode.
fn with_role_advice(error: Error) -> Error {
    error.or_grant(|| format!("Apply {ROLE} in that namespace and use its ServiceAccount."))
}
