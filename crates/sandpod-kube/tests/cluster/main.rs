//! What this crate does on a real cluster, with the roles that we ship. `testbed/harness` says what it needs.

mod agent_sandbox;
mod smoke;
