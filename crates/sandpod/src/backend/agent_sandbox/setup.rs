//! Who sets a new place up: one caller, once, as in raw mode.

use std::time::Duration;

use sandpod_kube::k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, timeout};

use super::{AgentSandbox, vanished};
use crate::Result;
use crate::backend::kubernetes::outage::{goes_on, outlast};
use crate::backend::{Place, Setup};

impl AgentSandbox {
    /// Whose turn it is to set `place` up, which takes at most `limit`. While it is another's, this waits.
    pub(super) async fn setup_turn(&self, place: &Place, limit: Duration) -> Result<Setup> {
        let (claims, end) = (&self.0.claims, Instant::now() + self.startup_limit());
        let mut unanswered = None;
        loop {
            let claim = outlast(end, || claims.find(&place.id)).await?.filter(|claim| claim.is_at(place));
            let claim = claim.ok_or_else(|| vanished(&place.id))?;
            match claim.setup_until {
                _ if claim.created_at.is_some() => return Ok(Setup::Done),
                None => {
                    let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
                    let until = Timestamp::now().saturating_add(limit).unwrap_or(Timestamp::MAX);
                    match claims.record_setup(&claim, until).await {
                        Ok(true) => return Ok(Setup::Ours),
                        Ok(false) => {}
                        Err(error) if goes_on(&error, end).await => unanswered = Some(until),
                        Err(error) => return Err(error),
                    }
                }
                Some(until) if unanswered == Some(until) => return Ok(Setup::Ours),
                Some(until) => {
                    let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
                    if timeout(left, claims.changed(&claim)).await.is_err() {
                        return Err(vanished(&place.id));
                    }
                }
            }
        }
    }
}
