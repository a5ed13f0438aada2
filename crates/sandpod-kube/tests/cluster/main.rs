//! What this crate does on a real cluster, with the roles that we ship. `harness.rs` says what it needs.

mod agent_sandbox;
mod harness;
mod smoke;
