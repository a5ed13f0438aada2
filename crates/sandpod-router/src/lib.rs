//! A router for sandboxes of agent-sandbox: a proxy for HTTP, WebSocket and gRPC.
//!
//! It accepts the requests of agent-sandbox's own router ([`Target`]), so the clients of that router work unchanged. It
//! differs where that router is unsafe or loses requests: each request proves its caller and the right to the sandbox
//! ([`access`]), addresses come only from a [`watch`] of the Pods ([`Registry`]), and a long command has no timeout.
//! A sandbox can also be named by a host name ([`Domain`]), and a suspended one can be resumed by a request ([`Wake`]).
//!
//! A [`Listener`] passes each request to a [`Router`], which authorizes it, finds its Pod ([`resolve`], [`route`](route())) and
//! streams both ways.
//!
//! Without the feature `server` the crate has only the decisions, which need no Kubernetes crate.

#![cfg_attr(not(feature = "server"), allow(dead_code, reason = "the server uses the rest"))]

#[cfg(feature = "server")]
pub mod access;
mod headers;
#[cfg(feature = "server")]
mod limits;
#[cfg(feature = "server")]
mod listen;
#[cfg(feature = "server")]
mod metrics;
mod observe;
mod preview;
#[cfg(feature = "server")]
pub mod probes;
#[cfg(feature = "server")]
mod proxy;
mod refusal;
mod registry;
mod route;
pub mod scoped_token;
mod target;
#[cfg(feature = "server")]
pub mod tls;
#[cfg(feature = "server")]
mod tunnel;
#[cfg(feature = "server")]
mod upstream;
#[cfg(feature = "server")]
mod wake;
#[cfg(feature = "server")]
pub mod watch;

#[cfg(feature = "server")]
pub use limits::Limits;
#[cfg(feature = "server")]
pub use listen::Listener;
#[cfg(feature = "server")]
pub use metrics::Metrics;
pub use observe::{PodState, SandboxState};
pub use preview::{Domain, Preview};
#[cfg(feature = "server")]
pub use proxy::{Options, Router};
pub use refusal::{Reason, Refusal};
pub use registry::{Endpoint, Lookup, Registry};
pub use route::{Route, resolve, route};
pub use target::{Name, SandboxRef, Target};
#[cfg(feature = "server")]
pub use tunnel::TunnelLimits;
#[cfg(feature = "server")]
pub use wake::Wake;
