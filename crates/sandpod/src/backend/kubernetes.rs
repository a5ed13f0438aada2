//! What the two modes on Kubernetes share.
//!
//! The state of a sandbox is in annotations of its [`anchor`]: a Lease in raw mode, a `SandboxClaim` in agent-sandbox
//! mode. [`anchor_store`] has the operations on anchors that are the same in both. [`api`] reads, changes and watches
//! objects, [`outage`] retries while the API server does not answer, [`startup`] and [`loss`] interpret the state of a
//! Pod, and [`volumes`] has the rule for durable volumes. The guest comes to a Pod by one of the ways in [`delivery`],
//! two of which both modes use: `ConfigMaps` ([`guest`]) and exec ([`push`]).

pub(super) mod anchor;
pub(super) mod anchor_store;
pub(super) mod api;
pub(super) mod delivery;
pub(super) mod guest;
pub(super) mod loss;
pub(super) mod outage;
pub(super) mod push;
pub(super) mod startup;
pub(super) mod volumes;

#[cfg(test)]
mod lost_answers;

use std::collections::BTreeMap;

use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use serde::de::DeserializeOwned;

use crate::config::CONTAINER;
use crate::{Error, ErrorKind, Result, SandboxId};

/// How often an anchor that other processes change is read again before the call fails.
pub(super) const MAX_TURNS: usize = 16;

/// The error after [`MAX_TURNS`].
pub(super) fn contended(id: &SandboxId) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("Sandbox '{id}' keeps being changed by other processes."),
        "Find out what else uses this id, and try again.",
    )
}

/// Returns the limits of the resources of a Pod's sandbox.
pub(super) fn limits(pod: &Pod) -> BTreeMap<String, String> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let sandbox = containers.iter().find(|container| container.name == CONTAINER).or(containers.first());
    let limits = sandbox.and_then(|container| container.resources.as_ref()?.limits.clone());
    limits.into_iter().flatten().map(|(resource, limit)| (resource, limit.0)).collect()
}

/// Parses an object from the JSON of its manifest.
pub(super) fn object<T: DeserializeOwned>(json: serde_json::Value) -> Result<T> {
    serde_json::from_value(json).map_err(unwritable)
}

/// The error for a task that panicked, or whose runtime was shut down.
#[expect(clippy::needless_pass_by_value, reason = "the signature that map_err needs")]
pub(super) fn interrupted(cause: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, format!("Creating a sandbox was interrupted: {cause}."), "Report this.")
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that map_err needs")]
pub(super) fn unwritable(cause: serde_json::Error) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("Can't write an object for the cluster: {cause}."),
        "Report this.",
    )
}
