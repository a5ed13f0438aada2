//! What sandpod knows of Kubernetes, and the only owner of `kube` and `k8s-openapi` in the workspace.
//!
//! It may know Kubernetes: how a cluster is reached ([`client`]), how
//! another server is ([`dial`]), how a command's streams travel through
//! `pods/exec` ([`exec`]) and a connection to a port through `pods/portforward` ([`forward`]), how many wait with one watch ([`watch`]), how long one waits for an answer ([`call`]), and the resources of kubernetes-sigs/agent-sandbox ([`agent_sandbox`])
//! and of the Gateway API ([`gateway`]). It knows nothing of
//! sandboxes: no guest, no protocol, no files, no policy. Whoever needs those builds them on the streams from here.

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
// So that the rest of the workspace has the one version that is pinned here, and names neither in a manifest.
pub use {k8s_openapi, kube};
