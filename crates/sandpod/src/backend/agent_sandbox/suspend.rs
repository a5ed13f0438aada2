//! Suspending: the Sandbox keeps its name and its volumes, and has no Pod until it is resumed.
//!
//! The claim records it first, so that the end of the Pod does not count as a loss. A resumed sandbox has a new Pod and
//! so its next generation, and the record is removed only then.

use sandpod_kube::agent_sandbox::Version;
use sandpod_kube::kube::ResourceExt as _;
use serde_json::json;
use tokio::time::timeout;

use super::claims::Claim;
use super::provision::same;
use super::{AgentSandbox, readiness, refused, volumes, with_role_advice};
use crate::backend::kubernetes::api::{self, find};
use crate::backend::kubernetes::{MAX_TURNS, contended, interrupted};
use crate::backend::{OnLost, Provisioned, Rollback};
use crate::provider::not_found;
use crate::{Error, ErrorKind, Result, SandboxId};

/// The next step for a workspace that is on no durable volume.
const FORCE_OR_VOLUME: &str =
    "Set force if they may go, or put the workspace on a volume (volumeClaimTemplates of the template).";

impl AgentSandbox {
    pub(super) async fn suspend_claim(&self, id: &SandboxId, force: bool) -> Result<()> {
        if self.version().await? == Version::V1Alpha1 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "This cluster serves agent-sandbox v1alpha1 only, where sandboxes can't be suspended.",
                "Use a cluster with v1beta1, or delete the sandbox.",
            ));
        }
        if !force {
            self.check_workspace(id).await?;
        }
        let (backend, id) = (self.clone(), id.clone());
        // In a task: a caller that is cancelled between the two steps must not leave a wrong record on the claim.
        let ordering = tokio::spawn(async move { backend.order_suspension(&id).await });
        let claim = ordering.await.map_err(interrupted)??;
        self.await_claim(&claim, readiness::is_suspended).await?;
        self.await_pod_gone(&claim).await
    }

    /// Refuses to suspend a sandbox whose commands start in a directory that is lost with its Pod.
    async fn check_workspace(&self, id: &SandboxId) -> Result<()> {
        let claim = self.existing(id).await?;
        if claim.is_being_suspended() {
            return Ok(());
        }
        let Some(pod) = find(&self.0.pods, claim.pod_name()).await.map_err(with_role_advice)? else {
            return Ok(());
        };
        let lost = volumes::lost_dirs(&pod, self.0.config.workdir.as_deref());
        if lost.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Denied,
            format!("Suspending sandbox '{id}' would lose its files: {} end with its Pod.", lost.join(", ")),
            FORCE_OR_VOLUME,
        ))
    }

    async fn order_suspension(&self, id: &SandboxId) -> Result<Claim> {
        let claim = self.note_suspended(id).await?;
        if let Err(error) = self.set_mode(&claim, "Suspended").await {
            let now = self.read_again(&claim).await?;
            self.0.claims.record_awake(&now).await?;
            return Err(error);
        }
        Ok(claim)
    }

    /// Waits until the Pod that the claim had is gone.
    async fn await_pod_gone(&self, claim: &Claim) -> Result<()> {
        match &claim.pod_uid {
            Some(uid) => api::wait_gone(&self.0.pod_watch, claim.pod_name(), uid).await,
            None => Ok(()),
        }
    }

    pub(super) async fn resume_claim(&self, id: &SandboxId, has_policy: bool) -> Result<Provisioned> {
        for _ in 0..MAX_TURNS {
            let claim = self.existing(id).await?;
            if readiness::claim_state(&claim) != readiness::ClaimState::Suspended {
                return self.finish(claim, Rollback::none(), OnLost::Error).await;
            }
            if claim.has_own_policy() && !has_policy {
                return Err(Error::invalid(
                    format!("Sandbox '{id}' had a policy of its own, which ended with its Pod."),
                    "Pass that policy, or another, with the request from Rust or Python; the command has no option for it.",
                ));
            }
            if readiness::is_suspended(&claim) {
                // While its last Pod terminates, the controller takes that for the wanted one.
                self.await_pod_gone(&claim).await?;
            }
            self.set_mode(&claim, "Running").await?;
            let awake = self.await_claim(&claim, readiness::runs).await?;
            let pod = find(&self.0.pods, awake.pod_name()).await.map_err(with_role_advice)?;
            // The same Pod, if suspending did not come so far.
            if pod.is_some_and(|pod| pod.uid() == awake.pod_uid) {
                self.0.claims.record_awake(&awake).await?;
            } else {
                self.0.claims.advance(&awake).await?;
            }
        }
        Err(contended(id))
    }

    /// Records on the claim that it is suspended, and returns it.
    async fn note_suspended(&self, id: &SandboxId) -> Result<Claim> {
        for _ in 0..MAX_TURNS {
            let claim = self.existing(id).await?;
            if claim.created_at.is_none() {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("Sandbox '{id}' is still being created, and can't be suspended."),
                    "Try again once it runs.",
                ));
            }
            if claim.is_being_suspended() || self.0.claims.record_suspended(&claim).await? {
                return Ok(claim);
            }
        }
        Err(contended(id))
    }

    async fn existing(&self, id: &SandboxId) -> Result<Claim> {
        self.0.claims.find(id).await?.ok_or_else(|| not_found(id))
    }

    /// Sets the operating mode of the claim's Sandbox, which decides whether it has a Pod.
    async fn set_mode(&self, claim: &Claim, mode: &str) -> Result<()> {
        let (name, patch) = (claim.pod_name(), json!({ "spec": { "operatingMode": mode } }));
        let patched = api::patch(&self.0.sandboxes, name, &patch).await;
        let patched = patched.map_err(|cause| refused(&format!("update Sandbox '{name}'"), &cause))?;
        if patched { Ok(()) } else { Err(super::vanished(&claim.id)) }
    }

    /// Watches the claim until `is_so`.
    async fn await_claim(&self, claim: &Claim, is_so: fn(&Claim) -> bool) -> Result<Claim> {
        let mut states = self.0.claims.follow(claim);
        let waiting = async {
            loop {
                let now = same(claim, states.next().await?)?;
                if readiness::has_expired(&now) {
                    return Err(super::vanished(&now.id));
                }
                if is_so(&now) {
                    return Ok(now);
                }
            }
        };
        let slow = |_| self.slow("the controller did not change its Sandbox");
        timeout(self.startup_limit(), waiting).await.map_err(slow)?
    }
}

/// The error for using a suspended sandbox.
pub(super) fn suspended(id: &SandboxId) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("Sandbox '{id}' is suspended: it has no Pod, and only files on its volumes are kept."),
        "Resume it to use it again.",
    )
}
