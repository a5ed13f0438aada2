//! What somebody asks a provider for.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::OnLost;
use crate::guard::SandboxPolicy;

/// Which sandbox is wanted, and what a new one has.
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
    /// By which it is found; none: a new one.
    pub id: Option<String>,
    /// If there is none, a new one has `id` and not an id of its own.
    pub create: bool,
    /// Written on a new one, beside those of the configuration.
    pub labels: BTreeMap<String, String>,
    /// A new one ends so long after it was handed out; none: as the configuration says.
    pub ttl: Option<Duration>,
    /// A new one ends after so long without a call; none: as the configuration says.
    pub idle_ttl: Option<Duration>,
    /// For every command in a new one, beside that of the configuration. It is in no object of the cluster.
    pub env: BTreeMap<String, String>,
    /// What callers may do, in the place of the configuration's. A sandbox that is there already stays bound to its own,
    /// and this narrows what is done through the handle.
    pub policy: Option<SandboxPolicy>,
    /// What happens if it is there, but its place is lost.
    pub on_lost: OnLost,
}

impl SandboxRequest {
    /// The sandbox `id`, or a new one with an id of its own.
    #[must_use]
    pub fn of(id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..Self::default() }
    }

    /// The sandbox `id`, which is made if there is none.
    #[must_use]
    pub fn named(id: impl Into<String>) -> Self {
        Self { create: true, ..Self::of(id) }
    }
}
