//! Who sets a new place up: one caller, once. A place whose setup was begun and never ended is lost, for nobody knows
//! how far it came.

use std::time::Duration;

use sandpod_kube::k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, timeout};

use super::Raw;
use crate::Result;
use crate::backend::kubernetes::anchor::vanished;
use crate::backend::kubernetes::outage::{goes_on, outlast};
use crate::backend::{Place, Setup};

impl Raw {
    /// Whose turn it is to set `place` up, which takes at most `limit`. While it is another's, this waits.
    pub(super) async fn setup_turn(&self, place: &Place, limit: Duration) -> Result<Setup> {
        let (anchors, end) = (&self.0.anchors, Instant::now() + self.startup_limit());
        let mut unanswered = None;
        loop {
            let anchor = outlast(end, || anchors.find(&place.id)).await?.filter(|anchor| anchor.is_at(place));
            let anchor = anchor.ok_or_else(|| vanished(&place.id))?;
            match anchor.setup_until {
                _ if anchor.created_at.is_some() => return Ok(Setup::Done),
                None => {
                    let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
                    let until = Timestamp::now().saturating_add(limit).unwrap_or(Timestamp::MAX);
                    match anchors.record_setup(&anchor, until).await {
                        Ok(true) => return Ok(Setup::Ours),
                        Ok(false) => {}
                        Err(error) if goes_on(&error, end).await => unanswered = Some(until),
                        Err(error) => return Err(error),
                    }
                }
                Some(until) if unanswered == Some(until) => return Ok(Setup::Ours),
                Some(until) => {
                    let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
                    if timeout(left, anchors.changed(&anchor)).await.is_err() {
                        return Err(vanished(&place.id));
                    }
                }
            }
        }
    }
}
