//! What stands between a caller and a sandbox: its policy, the audit, spans and counters.
//!
//! A [`Sandbox`] has every operation of the client's. Each goes one way: the policy is asked by the text of paths and
//! commands ([`policy`], [`paths`], [`commands`]), the audit hears the intent, the call is sent with the bounds that the guest
//! holds it to, and the audit hears the outcome ([`watch`]). Only what the guest holds is a promise; what is asked here is
//! there for a clear answer.

mod commands;
mod loss;
mod operation;
mod paths;
mod policy;
mod process;
mod rules;
mod sandbox;
mod watch;

pub use self::commands::CommandRules;
pub use self::loss::Receipt;
pub(crate) use self::loss::{Loss, Record};
pub use self::operation::Operation;
pub use self::paths::Traversal;
pub use self::policy::{Checked, DenyScope, SandboxPolicy};
pub use self::process::{Process, ProcessInfo};
pub(crate) use self::rules::Layer;
pub use self::sandbox::Sandbox;
pub(crate) use self::watch::{Intent, watch};
