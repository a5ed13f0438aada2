//! Sandboxes of the real agent-sandbox controller, with the RBAC that we ship for it.

mod adopt;
mod alpha;
mod front_door;
mod gateways;
mod life;
mod own_router;
mod pools;
mod push;
mod races;
mod refusal;
mod samples;
pub(crate) mod setup;
mod stock;
mod suspend;
mod ways;
