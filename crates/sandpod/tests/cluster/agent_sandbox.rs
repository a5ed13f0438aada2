//! Sandboxes of the real agent-sandbox controller, with the role that we ship for it.

mod adopt;
mod life;
mod pools;
mod races;
mod refusal;
mod setup;
mod ways;
