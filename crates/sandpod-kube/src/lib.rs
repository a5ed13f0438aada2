//! The Kubernetes client of sandpod, and the only owner of `kube` and `k8s-openapi` in the workspace.
//!
//! It connects to a cluster ([`client`]) and to other HTTP servers ([`dial`]), runs commands through `pods/exec`
//! ([`exec`]), opens connections to ports through `pods/portforward` ([`forward`]), shares watches ([`watch`]) and limits
//! the time of calls ([`call`]). It has the resources of agent-sandbox ([`agent_sandbox`]) and of the Gateway API
//! ([`gateway`]). It has no code for sandboxes: no guest, no protocol, no files, no policy.

pub mod agent_sandbox;
pub mod call;
pub mod client;
pub mod dial;
mod error;
pub mod exec;
pub mod forward;
pub mod gateway;
pub mod watch;

pub use error::{Error, Result};
// Re-exported, so that the rest of the workspace uses the version that is pinned here.
pub use {k8s_openapi, kube};
