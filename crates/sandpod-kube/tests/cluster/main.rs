//! This crate on a real cluster, with the RBAC that we ship. `testbed/harness` documents the requirements.

mod agent_sandbox;
mod smoke;
