//! Takes a Pod from a pool.
//!
//! The anchor names the Pod first, and then one conditional update takes the Pod for it. A caller that finds an anchor
//! in between can continue, and several that do so end at the same Pod.

use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::{Api, ResourceExt as _};
use serde_json::json;

use super::super::anchor::{Anchor, Source};
use super::super::network::NETWORK_LABEL;
use super::super::{Raw, is_owned_by, pod};
use super::Pool;
use super::cluster::change;
use super::plan::{State, candidate};
use super::pods::{self, ACTIVE, POOL_LABEL};
use super::store::Store as _;
use crate::Result;
use crate::backend::kubernetes::MAX_TURNS;
use crate::backend::kubernetes::api::find;

/// How often other sandboxes may take the chosen Pod first before a sandbox gets a new Pod.
pub(in super::super) const MAX_LOSSES: usize = 4;

impl Raw {
    /// Returns where the next Pod comes from, after other sandboxes were faster `losses` times.
    pub(in super::super) async fn source(&self, losses: usize) -> Source {
        let pool = match self.pool().await {
            Ok(Some(pool)) => pool,
            Ok(None) => return Source::New(None),
            Err(error) => return cold(format!("The pool can't be used: {error}")),
        };
        pool.keep_full();
        if losses >= MAX_LOSSES {
            return cold(format!("Other sandboxes took the chosen Pod of the pool first, {losses} times."));
        }
        match pool.store.pods().await {
            Ok(pods) => match candidate(&pods, &mut fastrand::Rng::new()) {
                Some(pod) => Source::Pool(pod.name.clone()),
                None => cold(pool.emptiness()),
            },
            Err(error) => cold(format!("The pool can't be read: {error}")),
        }
    }

    /// Takes the Pod that the anchor names, and returns whether this call did. None if another sandbox has it, or it is
    /// gone.
    pub(in super::super) async fn take_named_pod(&self, anchor: &Anchor) -> Result<Option<(Pod, bool)>> {
        let name = anchor.pod_name();
        for _ in 0..MAX_TURNS {
            let Some(pod) = find(&self.0.pods, &name).await? else { return Ok(None) };
            if is_owned_by(&pod, anchor) {
                return Ok(Some((pod, false)));
            }
            let Some(warm) = pods::read(&pod).filter(|pod| pod.state == State::Warm { ready: true }) else {
                return Ok(None);
            };
            if !self.is_from_pool(&pod).await? {
                return Ok(None);
            }
            // The policy may have been deleted since the Pod was created.
            self.ensure_network().await?;
            let mut labels = anchor.pod_labels();
            labels.extend(pods::status(self.config().naming, ACTIVE));
            let owner = pod::owner(anchor.id.as_str(), &anchor.uid);
            let taking = json!({ "labels": labels, "ownerReferences": [owner] });
            if let Some(taken) = change(&self.0.pods, &warm, taking).await? {
                return Ok(Some((taken, true)));
            }
        }
        Ok(None)
    }
}

impl Raw {
    /// Whether the Pod was made for the pool that its label names, and the deny-all policy still selects it.
    async fn is_from_pool(&self, pod: &Pod) -> Result<bool> {
        let (label, value) = NETWORK_LABEL;
        let is_cut_off = pod.labels().get(label).is_some_and(|found| found == value);
        let Some(pool) = pod.labels().get(POOL_LABEL) else { return Ok(false) };
        // The anchor may come from a process with another pool, or without one.
        let is_made = self.pool().await?.is_none_or(|own| own.store.name != *pool || own.store.has_made(pod));
        if !is_made || self.config().block_network && !is_cut_off {
            return Ok(false);
        }
        let leases: Api<Lease> = Api::namespaced(self.0.client.clone(), &self.config().namespace);
        let lease = find(&leases, pool).await?.filter(|lease| lease.metadata.deletion_timestamp.is_none());
        let uid = lease.and_then(|lease| lease.uid());
        Ok(uid.is_some_and(|uid| pods::is_from_lease(pod, pool, Some(&uid))))
    }
}

impl Pool {
    /// Returns why there is no Pod to take, as a sentence.
    fn emptiness(&self) -> String {
        let why = self.refiller.last_error().map(|error| format!(" {}", error.message()));
        format!("The pool '{}' had no Pod ready.{}", self.store.name, why.unwrap_or_default())
    }
}

fn cold(why: String) -> Source {
    Source::New(Some(why))
}
