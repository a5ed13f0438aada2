//! Asks a sandbox's guest whether it was idle.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{Connection, Options, Sandbox};

use super::making::unusable;
use super::not_found;
use super::sweep::Guests;
use crate::Result;
use crate::backend::{Backend, OnLost, Record};

/// The time limit for connecting to one guest.
const REACH_LIMIT: Duration = Duration::from_secs(5);

/// The guests of a backend.
pub(super) struct Asked<'a>(pub(super) &'a dyn Backend);

impl Guests for Asked<'_> {
    fn end_if_idle<'a>(&'a self, record: &'a Record, least: Duration) -> BoxFuture<'a, Result<bool>> {
        async move {
            let made = self.0.attach(&record.id, OnLost::Error).await?;
            let made = made.ok_or_else(|| not_found(&record.id))?;
            let place = made.place;
            if place.uid != record.uid || place.generation != record.generation {
                return Ok(false);
            }
            // These calls have no observer: a probe is not a use of the sandbox.
            let options = Options { reconnect_timeout: REACH_LIMIT, ..Options::default() };
            let sandbox = Sandbox::new(Connection::new(made.dialer, options));
            let asked = sandbox.end_if_idle(&place.uid, least).await;
            asked.map_err(|cause| unusable(&place, &cause))
        }
        .boxed()
    }
}
