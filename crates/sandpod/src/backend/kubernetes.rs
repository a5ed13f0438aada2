//! What the two modes on Kubernetes share.
//!
//! A sandbox's state is in annotations of its [`anchor`], which is a Lease in raw mode and a `SandboxClaim` in agent-sandbox
//! mode. [`api`] reads, changes and watches objects, [`outage`] retries while the API server does not answer, [`startup`] and
//! [`loss`] interpret the state of a Pod, and the guest gets into a Pod by one of the deliveries in [`delivery`]: from
//! `ConfigMaps` ([`guest`]) or through exec ([`push`]), for example.

pub(super) mod anchor;
pub(super) mod api;
pub(super) mod delivery;
pub(super) mod guest;
pub(super) mod loss;
pub(super) mod outage;
pub(super) mod push;
pub(super) mod startup;

#[cfg(test)]
mod lost_answers;

use serde::de::DeserializeOwned;

use crate::{Error, ErrorKind, Result, SandboxId};

/// How often an anchor that other processes change is read again before the call fails.
pub(super) const MAX_TURNS: usize = 16;

pub(super) fn contended(id: &SandboxId) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("Sandbox '{id}' is changed by others again and again."),
        "See who else uses this id, and try again.",
    )
}

/// An object, written as the JSON that the API has.
pub(super) fn object<T: DeserializeOwned>(json: serde_json::Value) -> Result<T> {
    serde_json::from_value(json).map_err(unwritable)
}

/// A task of ours panicked, or its runtime was shut down.
#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
pub(super) fn interrupted(cause: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, format!("Making a sandbox was interrupted: {cause}."), "Report this.")
}

#[expect(clippy::needless_pass_by_value, reason = "it is made for map_err")]
pub(super) fn unwritable(cause: serde_json::Error) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("Can't write an object for the cluster: {cause}."),
        "Report this.",
    )
}
