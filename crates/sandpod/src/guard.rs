//! The guard around a sandbox: its policy, the audit, spans and counters.
//!
//! A [`Sandbox`] has every operation of the client. Each takes the same steps: the policy checks the text of paths and
//! commands ([`policy`], [`paths`], [`commands`]), the audit records the intent, the call is sent with the bounds that
//! the guest enforces, and the audit records the outcome ([`watch`]). Only the guest enforces a policy; the checks
//! here return clear errors early.

mod cancelled;
mod commands;
mod loss;
mod operation;
mod paths;
mod policy;
mod process;
mod rules;
mod sandbox;
mod watch;

pub use self::cancelled::CANCELLED;
pub use self::commands::CommandRules;
pub use self::loss::Receipt;
pub(crate) use self::loss::{Loss, Record};
pub use self::operation::Operation;
pub use self::paths::Traversal;
pub use self::policy::{Checked, DenyScope, SandboxPolicy};
pub use self::process::{Process, ProcessInfo};
pub(crate) use self::rules::PolicyLayer;
pub use self::sandbox::Sandbox;
pub(crate) use self::watch::{Intent, watch};
