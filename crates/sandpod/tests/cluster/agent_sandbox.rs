//! Sandboxes of the real agent-sandbox controller, with the role that we ship for it.

mod front_door;
mod gateways;
mod life;
mod own_router;
mod pools;
mod refusal;
mod samples;
mod setup;
mod ways;
