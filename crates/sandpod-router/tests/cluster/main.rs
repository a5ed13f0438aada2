//! The program `sandpod-router` on a real cluster, with the rights of deploy/rbac/router.yaml.

mod agent_sandbox;
mod process;
