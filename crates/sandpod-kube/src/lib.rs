//! What sandpod knows of Kubernetes, and the only owner of `kube` and `k8s-openapi` in the workspace.
//!
//! It may know Kubernetes: how a cluster is reached ([`client`]), how a command's streams travel through
//! `pods/exec` ([`exec`]) and a connection to a port through `pods/portforward` ([`forward`]), how many wait with one watch ([`watch`]), and the resources of kubernetes-sigs/agent-sandbox ([`agent_sandbox`]). It knows nothing of
//! sandboxes: no guest, no protocol, no files, no policy. Whoever needs those builds them on the streams from here.

pub mod agent_sandbox;
pub mod client;
mod error;
pub mod exec;
pub mod forward;
pub mod watch;

pub use error::{Error, Result};
// So that the rest of the workspace has the one version that is pinned here, and names neither in a manifest.
pub use {k8s_openapi, kube};
