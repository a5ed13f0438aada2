//! Sandboxes on a real cluster, with the role that we ship. `testbed/harness` says what it needs; the guest's programs
//! come from where the library looks for them.

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
