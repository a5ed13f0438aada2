//! Who sets a new place up: one caller, once. A place whose setup was begun and never ended is lost, for nobody knows
//! how far it came.

use std::time::Duration;

use sandpod_kube::k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::timeout;

use super::{Place, Raw, anchor};
use crate::Result;

/// What a caller has to do for a place that is new to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setup {
    /// Set it up within the time that was asked for, and then [`Raw::keep`] it.
    Ours,
    /// Nothing: another has done it.
    Done,
}

impl Raw {
    /// Whose turn it is to set `place` up, which takes at most `limit`. While it is another's, this waits.
    pub(crate) async fn begin_setup(&self, place: &Place, limit: Duration) -> Result<Setup> {
        let anchors = &self.at(&place.pod.namespace).0.anchors;
        loop {
            let anchor = anchors.find(&place.id).await?.filter(|anchor| place.is_of(anchor));
            let anchor = anchor.ok_or_else(|| anchor::vanished(&place.id))?;
            match anchor.setup_until {
                _ if anchor.bound => return Ok(Setup::Done),
                None => {
                    let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
                    let until = Timestamp::now().saturating_add(limit).unwrap_or(Timestamp::MAX);
                    if anchors.record_setup(&anchor, until).await? {
                        return Ok(Setup::Ours);
                    }
                }
                Some(until) => {
                    let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
                    if timeout(left, anchors.changed(&anchor)).await.is_err() {
                        return Err(anchor::vanished(&place.id));
                    }
                }
            }
        }
    }
}
