//! Requests for sandboxes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::OnLost;
use crate::guard::SandboxPolicy;

/// A request for a sandbox: its id, and the properties of a new one.
///
/// ```
/// use std::time::Duration;
/// use sandpod::SandboxRequest;
///
/// let request = SandboxRequest {
///     labels: [("team".to_owned(), "search".to_owned())].into(),
///     ttl: Some(Duration::from_secs(3600)),
///     ..SandboxRequest::named("thread-1")
/// };
/// assert_eq!(request.id.as_deref(), Some("thread-1"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct SandboxRequest {
    /// Id of the sandbox. None: a new sandbox with a new id.
    pub id: Option<String>,
    /// Whether a missing sandbox is created under `id` instead of a new id.
    pub create: bool,
    /// Labels of a new sandbox, beside those of the configuration.
    pub labels: BTreeMap<String, String>,
    /// Time after creation at which a new sandbox is deleted. None: as configured.
    pub ttl: Option<Duration>,
    /// Time without a call after which a new sandbox is deleted. None: as configured.
    pub idle_ttl: Option<Duration>,
    /// Environment variables of every command in a new sandbox, beside those of the configuration. No object of the
    /// cluster stores them.
    pub env: BTreeMap<String, String>,
    /// Policy that replaces the configuration's. An existing sandbox stays bound to its own policy, and this one
    /// narrows the calls of the handle.
    pub policy: Option<SandboxPolicy>,
    /// Action if the sandbox exists and its place is lost.
    pub on_lost: OnLost,
}

impl SandboxRequest {
    /// Requests the sandbox `id`, or a new one with an id of its own.
    #[must_use]
    pub fn of(id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..Self::default() }
    }

    /// Requests the sandbox `id`, which is created if it does not exist.
    #[must_use]
    pub fn named(id: impl Into<String>) -> Self {
        Self { create: true, ..Self::of(id) }
    }
}
