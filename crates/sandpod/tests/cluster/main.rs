//! Sandboxes on a real cluster, with the RBAC that we ship. `testbed/harness` documents the requirements; the library finds
//! the guest's binaries as it does for users.

mod agent_sandbox;
mod defects;
mod doctor;
mod guard;
mod ladder;
mod lifecycle;
mod load;
mod namespaces;
mod naming;
mod options;
mod places;
mod pools;
mod provider;
mod reach;
mod refusal;
mod setup;
mod spans;
