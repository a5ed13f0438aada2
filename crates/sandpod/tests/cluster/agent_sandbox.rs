//! Sandboxes of the real agent-sandbox controller, with the role that we ship for it.

mod life;
mod pools;
mod push;
mod refusal;
mod setup;
mod stock;
mod ways;
