//! Provisions: waits for the claim's Pod and connects to its guest.

use std::sync::Arc;
use std::time::Duration;

use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use super::claims::{CONNECTION, Claim};
use super::connect::{ConnectionMode, GuestLocation};
use super::dialer::PlaceDialer;
use super::readiness::{self, ClaimState, Readiness};
use super::suspend::suspended;
use super::{AgentSandbox, vanished};
use crate::backend::kubernetes::anchor_store::AnchorStore as _;
use crate::backend::kubernetes::api::Watch;
use crate::backend::kubernetes::outage::{goes_on, outlast};
use crate::backend::kubernetes::{MAX_TURNS, contended, interrupted};
use crate::backend::{AnnotationChange, OnLost, Place, Provisioned, Rollback, slot};
use crate::error::CREATE_AGAIN;
use crate::{Error, ErrorCase, ErrorKind, Result};

/// How long another process may take from reaching a guest to having bound it.
const BIND_PATIENCE: Duration = Duration::from_secs(5);

/// The result of waiting for a claim.
enum Awaited {
    Place(Claim, Arc<Pod>),
    /// Another Pod has replaced the one that it had.
    Replaced(Claim),
    /// Its Pod is lost for good, and why.
    Lost(Claim, String),
}

impl AgentSandbox {
    /// Provisions the claim, and rolls back if that fails.
    pub(super) async fn finish(
        &self,
        claim: Claim,
        rollback: Rollback,
        on_lost: OnLost,
    ) -> Result<Provisioned> {
        match self.provision_through_outages(claim, on_lost).await {
            Ok((place, dialer)) => Ok(Provisioned { place, dialer: Box::new(dialer), rollback }),
            Err(error) => {
                rollback.run().await;
                Err(error)
            }
        }
    }

    /// Provisions, and continues from the claim as it is then after each outage.
    async fn provision_through_outages(
        &self,
        mut claim: Claim,
        on_lost: OnLost,
    ) -> Result<(Place, PlaceDialer)> {
        let end = Instant::now() + self.startup_limit();
        loop {
            match Box::pin(self.provision(claim.clone(), on_lost)).await {
                Err(error) if goes_on(&error, end).await => {
                    claim = outlast(end, || self.read_again(&claim)).await?;
                }
                provisioned => return provisioned,
            }
        }
    }

    async fn provision(&self, mut claim: Claim, on_lost: OnLost) -> Result<(Place, PlaceDialer)> {
        for _ in 0..MAX_TURNS {
            match self.await_place(&claim, on_lost).await? {
                Awaited::Place(now, _) if now.is_half_set_up() => {
                    let why = "Its set-up was not finished.".to_owned();
                    claim = self.claim_again(now, &why, on_lost).await?;
                }
                Awaited::Place(now, pod) => {
                    let now = self.await_bind(now, &pod).await?;
                    let working = slot().await?;
                    if let Some(provisioned) = self.connect_claim(now.clone(), &pod).await? {
                        return Ok(provisioned);
                    }
                    drop(working);
                    claim = self.read_again(&now).await?;
                }
                Awaited::Replaced(now) => {
                    self.0.claims.advance(&now).await?;
                    claim = self.read_again(&now).await?;
                }
                Awaited::Lost(now, why) => claim = self.claim_again(now, &why, on_lost).await?,
            }
        }
        Err(contended(&claim.id))
    }

    /// Connects to the guest in the claim's Pod and records how, now or when the guest is bound. None if the claim has
    /// changed.
    async fn connect_claim(&self, claim: Claim, pod: &Pod) -> Result<Option<(Place, PlaceDialer)>> {
        let location = GuestLocation::new(&self.0.config.namespace, &claim.id, pod);
        let connected = match self.connect(&location).await {
            Ok(connected) => connected,
            // Without the API server no guest can be reached by exec: report that, and not the guest.
            Err(error) => return self.read_again(&claim).await.and(Err(error)),
        };
        if connected.is_by_exec() {
            self.start_preconnecting();
        }
        let notes = connected.notes(&location);
        // Over the network, and during a set-up, other processes have to see which one was first.
        let may_wait = connected.is_by_exec() && !claim.is_bound() && self.0.config.setup_script.is_none();
        let (claim, notes) =
            if may_wait { (Some(claim), notes) } else { (self.note(claim, &notes).await?, Vec::new()) };
        let Some(claim) = claim else { return Ok(None) };
        let pod = &location.pod;
        let place = Place {
            id: claim.id.clone(),
            uid: claim.uid.clone(),
            generation: claim.generation,
            name: pod.to_string(),
            hint: format!("See what its guest says: kubectl logs -n {} {}", pod.namespace, pod.name),
            ttl: claim.ttl,
            idle_ttl: claim.idle_ttl,
            // Nothing may be recorded on a claim that isn't ours.
            bound: claim.created_at.is_some() || claim.adopted,
            used_at: (!claim.adopted).then(|| claim.used_at()),
            policy_sha256: claim.policy_sha256,
            token_sha256: connected.key.as_ref().map(|key| key.token_sha256(&claim)),
            annotations: notes,
            dirs: connected.dirs(),
            lost: claim.unreported_loss(),
        };
        let tokens = connected.key.as_ref().map(|key| key.tokens(&claim));
        let dialer = PlaceDialer::new(self.clone(), location, connected, tokens);
        Ok(Some((place, dialer)))
    }

    /// Records on the claim how its guest was reached. The controller may be changing the claim too. None if the claim
    /// has another place by now.
    async fn note(&self, mut claim: Claim, notes: &[AnnotationChange]) -> Result<Option<Claim>> {
        for _ in 0..MAX_TURNS {
            if claim.adopted || claim.says(notes) || self.0.claims.record_pod(&claim, notes).await? {
                return Ok(Some(claim));
            }
            let now = self.read_again(&claim).await?;
            if !now.has_place_of(&claim) {
                return Ok(None);
            }
            claim = now;
        }
        Err(contended(&claim.id))
    }

    /// Waits until the process that was first at the Pod has bound the guest, which changes the guest's token. It does
    /// not wait long, because that process may be dead.
    async fn await_bind(&self, claim: Claim, pod: &Pod) -> Result<Claim> {
        let over_network =
            claim.annotations.get(CONNECTION).is_some_and(|mode| mode != ConnectionMode::Exec.name());
        if !over_network || claim.pod_uid != pod.uid() {
            return Ok(claim);
        }
        let mut now = claim.clone();
        let binding = async {
            while !now.is_bound() && now.generation == claim.generation {
                self.0.claims.changed(&now).await?;
                now = self.read_again(&now).await?;
            }
            Ok(())
        };
        match timeout(BIND_PATIENCE, binding).await {
            Ok(Err(error)) => Err(error),
            _ => Ok(now),
        }
    }

    pub(super) async fn read_again(&self, claim: &Claim) -> Result<Claim> {
        let now = self.0.claims.find_any(&claim.id).await?;
        now.filter(|now| now.adopted == claim.adopted).ok_or_else(|| vanished(&claim.id))
    }

    /// Replaces the claim of a lost sandbox. A claim gets no second sandbox, so it is created again under the same
    /// name, and of several callers one succeeds.
    async fn claim_again(&self, lost: Claim, why: &str, on_lost: OnLost) -> Result<Claim> {
        if on_lost == OnLost::Error {
            let message = format!("{why} Sandbox '{}' may have been deleted.", lost.id);
            let next =
                if lost.adopted { "Ask the owner of its claim for another one." } else { CREATE_AGAIN };
            return Err(Error::new(ErrorKind::NotFound, message, next));
        }
        let origin = self.0.pools.choose().await?;
        let backend = self.clone();
        // In a task: a caller that is cancelled between the two steps must not leave its sandbox without an anchor.
        let renewing = tokio::spawn(async move {
            let (claims, end) = (&backend.0.claims, Instant::now() + backend.startup_limit());
            if outlast(end, || claims.delete_read(&lost)).await? {
                claims.wait_gone(&lost.id, &lost.uid).await?;
                return outlast(end, || claims.create_again(&lost, &origin)).await;
            }
            claims.find(&lost.id).await?.ok_or_else(|| vanished(&lost.id))
        });
        renewing.await.map_err(interrupted)?
    }

    /// Watches the claim and its Pod until both are ready, or can't become so.
    async fn await_place(&self, claim: &Claim, on_lost: OnLost) -> Result<Awaited> {
        let deadline = Instant::now() + self.startup_limit();
        let mut states = States::new(self, claim);
        let mut last = String::new();
        loop {
            let (now, pod) = timeout_at(deadline, states.next()).await.map_err(|_| self.slow(&last))??;
            if readiness::lacks_pool(&now) && !now.adopted {
                self.0.pools.restore(&now.pool).await?;
            }
            match (readiness::readiness(&now, pod.as_deref(), &self.0.config.namespace), pod) {
                (Readiness::Ready, Some(pod)) => return Ok(Awaited::Place(now, pod)),
                (Readiness::Ready, None) => {}
                (Readiness::Replaced(why) | Readiness::Terminating(why), _) if on_lost == OnLost::Error => {
                    return Ok(Awaited::Lost(now, why));
                }
                (Readiness::Replaced(_), _) => return Ok(Awaited::Replaced(now)),
                (Readiness::Lost(why), _) => return Ok(Awaited::Lost(now, why)),
                (Readiness::Suspended, _) => {
                    // The watch may lag behind what we have just written.
                    let fresh = self.read_again(&now).await?;
                    if readiness::claim_state(&fresh) == ClaimState::Suspended {
                        return Err(suspended(&now.id));
                    }
                }
                (Readiness::Failed(why), _) => return Err(self.failed(&now, &why)),
                (Readiness::Waiting(why) | Readiness::Terminating(why), _) => last = why,
            }
        }
    }

    fn failed(&self, claim: &Claim, why: &str) -> Error {
        let (namespace, id) = (&self.0.config.namespace, &claim.id);
        let message = format!("Sandbox '{id}' can't start: {}.", why.trim_end_matches('.'));
        let next = format!("See more with kubectl describe sandboxclaim,sandbox,pod -n {namespace} {id}.");
        Error::new(ErrorKind::StartFailed, message, next)
    }

    pub(super) fn slow(&self, last: &str) -> Error {
        let seconds = self.0.config.startup_timeout_seconds;
        Error::of_case(
            ErrorCase::StartupTimeout,
            format!("Sandbox did not become ready within {seconds}s."),
            format!(
                "Check controller logs: kubectl logs -n agent-sandbox-system -l app=agent-sandbox-controller (last \
                 seen: {last})"
            ),
        )
    }
}

/// The states of a claim and of the Pod that it names.
struct States<'a> {
    backend: &'a AgentSandbox,
    claim: Claim,
    claims: Watch<SandboxClaim>,
    pods: Watch<Pod>,
    pod: Option<Arc<Pod>>,
    /// The Pod was read, so its absence is known.
    looked: bool,
}

impl<'a> States<'a> {
    fn new(backend: &'a AgentSandbox, claim: &Claim) -> Self {
        let claims = backend.0.claims.follow(claim);
        let pods = Watch::new(&backend.0.pod_watch, claim.pod_name());
        Self { backend, claim: claim.clone(), claims, pods, pod: None, looked: false }
    }

    /// Returns both once the Pod was read, and whenever one of them has changed. Cancel-safe.
    async fn next(&mut self) -> Result<(Claim, Option<Arc<Pod>>)> {
        loop {
            tokio::select! {
                seen = self.claims.next() => {
                    let now = same(&self.claim, seen?)?;
                    if now.pod_name() != self.claim.pod_name() {
                        self.pods = Watch::new(&self.backend.0.pod_watch, now.pod_name());
                        self.looked = false;
                    }
                    self.claim = now;
                }
                seen = self.pods.next() => (self.pod, self.looked) = (seen?, true),
            }
            if self.looked {
                return Ok((self.claim.clone(), self.pod.clone()));
            }
        }
    }
}

/// Returns the claim as it is now, if it is still the one that was read.
pub(super) fn same(claim: &Claim, seen: Option<Arc<SandboxClaim>>) -> Result<Claim> {
    let alive = seen.filter(|seen| seen.metadata.deletion_timestamp.is_none());
    let now = alive.map(|seen| Claim::read_any(SandboxClaim::clone(&seen))).transpose()?;
    let same = now.filter(|now| now.uid == claim.uid && now.adopted == claim.adopted);
    same.ok_or_else(|| vanished(&claim.id))
}
