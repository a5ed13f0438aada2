//! Operations on anchors that are the same in both modes: [`assign_setup`], [`record_bound`] and [`record_reported`].
//!
//! Each reads the anchor before it changes it, and every change is conditional on the anchor as it was read. A change
//! whose response was lost is therefore found by the next read, and of two callers that change the same anchor one
//! succeeds.

use std::ops::Deref;
use std::time::Duration;

use sandpod_kube::k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, timeout};

use super::anchor::{Recorded, vanished};
use super::api::until_done;
use super::outage::{goes_on, outlast};
use crate::backend::{Place, Setup};
use crate::{Result, SandboxId};

/// The anchors of one mode. Every `record_…` returns false if the anchor has changed since it was read.
pub(in crate::backend) trait AnchorStore: Sync {
    /// An anchor, as it was read.
    type Anchor: Deref<Target = Recorded> + Send + Sync;

    /// Reads the anchor of `id`; none if it does not exist or is being deleted.
    fn read(&self, id: &SandboxId) -> impl Future<Output = Result<Option<Self::Anchor>>> + Send;

    /// Waits until the anchor differs from what was read.
    fn changed(&self, anchor: &Self::Anchor) -> impl Future<Output = Result<()>> + Send;

    /// Records that the set-up of this generation was begun and ends by `until`.
    fn record_setup(
        &self,
        anchor: &Self::Anchor,
        until: Timestamp,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Records that the guest in `place` is bound, and to which policy.
    fn record_bound(&self, anchor: &Self::Anchor, place: &Place)
    -> impl Future<Output = Result<bool>> + Send;

    /// Records that a caller was told of the loss.
    fn record_reported(&self, anchor: &Self::Anchor) -> impl Future<Output = Result<bool>> + Send;
}

/// Decides whether this caller sets `place` up, which takes at most `limit`. While another caller does, this waits.
///
/// A place whose set-up was begun and not finished in time is unusable: how far the script came is unknown.
pub(in crate::backend) async fn assign_setup<S: AnchorStore>(
    store: &S,
    place: &Place,
    limit: Duration,
    outage_limit: Duration,
) -> Result<Setup> {
    let end = Instant::now() + outage_limit;
    let mut unanswered = None;
    loop {
        let anchor = outlast(end, || store.read(&place.id)).await?.filter(|anchor| anchor.is_at(place));
        let anchor = anchor.ok_or_else(|| vanished(&place.id))?;
        match anchor.setup_until {
            _ if anchor.created_at.is_some() => return Ok(Setup::Done),
            None => {
                let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
                let until = Timestamp::now().saturating_add(limit).unwrap_or(Timestamp::MAX);
                match store.record_setup(&anchor, until).await {
                    Ok(true) => return Ok(Setup::Ours),
                    Ok(false) => {}
                    Err(error) if goes_on(&error, end).await => unanswered = Some(until),
                    Err(error) => return Err(error),
                }
            }
            // The patch of this caller was applied, and its response was lost.
            Some(until) if unanswered == Some(until) => return Ok(Setup::Ours),
            Some(until) => {
                let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
                if timeout(left, store.changed(&anchor)).await.is_err() {
                    return Err(vanished(&place.id));
                }
            }
        }
    }
}

/// Records that the guest in `place` is bound, unless the anchor already says so.
pub(in crate::backend) async fn record_bound<S: AnchorStore>(store: &S, place: &Place) -> Result<()> {
    if place.bound {
        return Ok(());
    }
    until_done(&place.id, || async {
        let anchor = store.read(&place.id).await?.filter(|anchor| anchor.is_at(place));
        let anchor = anchor.ok_or_else(|| vanished(&place.id))?;
        Ok(anchor.created_at.is_some() || store.record_bound(&anchor, place).await?)
    })
    .await
}

/// Records that a caller was told of the loss before `place`. Does nothing if there is a later generation by now.
pub(in crate::backend) async fn record_reported<S: AnchorStore>(store: &S, place: &Place) -> Result<()> {
    until_done(&place.id, || async {
        let anchor = store.read(&place.id).await?;
        match anchor.filter(|anchor| anchor.is_at(place) && anchor.has_unreported_loss()) {
            Some(anchor) => store.record_reported(&anchor).await,
            None => Ok(true),
        }
    })
    .await
}
