//! The front door to sandboxes of agent-sandbox: a proxy for HTTP, WebSocket and gRPC.
//!
//! It accepts what agent-sandbox's own router accepts ([`Target`]), so its clients work unchanged. It differs where that
//! router is unsafe or loses requests: every caller proves who it is and that it may use the sandbox ([`access`]),
//! addresses come only from a [`watch`] of the Pods ([`Registry`]), and a long command has no timeout.
//!
//! A [`Listener`] hands each request to a [`Router`], which admits it, finds its Pod ([`route`]) and streams both ways.

pub mod access;
mod headers;
mod limits;
mod listen;
mod metrics;
pub mod probes;
mod proxy;
mod refusal;
mod registry;
mod route;
mod target;
pub mod tls;
mod tunnel;
mod upstream;
pub mod watch;

pub use limits::Limits;
pub use listen::Listener;
pub use metrics::Metrics;
pub use proxy::{Options, Router};
pub use refusal::{Reason, Refusal};
pub use registry::{Endpoint, Lookup, Registry};
pub use route::{Route, route};
pub use target::Target;
pub use tunnel::TunnelLimits;
