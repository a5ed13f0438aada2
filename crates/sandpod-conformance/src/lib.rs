//! One suite of behaviours for every sandbox, over every transport and in every environment.
//!
//! A [`Target`] is one row of the table: a transport and an environment. [`run`] opens each target once and runs every
//! behaviour there, each as a test of its own, many at once: they share a sandbox, as callers do, and each has a directory
//! of its own.

#![expect(clippy::unwrap_used, reason = "a behaviour that can't continue fails")]

mod behaviours;
mod capability;
mod harness;
mod table;

use futures::future::BoxFuture;
use sandpod_client::Sandbox;

use behaviours::Behaviour;

pub use capability::Capability;
pub use harness::run;

/// A transport, and the environment at its end.
pub struct Target {
    /// The transport of the stream.
    pub transport: &'static str,
    /// The environment: an image, a runtime, or this machine.
    pub place: &'static str,
    /// The user of its commands.
    pub user: &'static str,
    /// Whether openat2 and Landlock are used or disabled.
    pub kernel: Kernel,
    /// Whether the environment has a shell.
    pub has_shell: bool,
    /// Whether its streams can be broken by the test.
    pub loses_streams: bool,
    /// Capabilities that it does not have by design, and refuses by name.
    pub missing: &'static [MissingCapability],
    /// Opens the target.
    pub open: Box<dyn Fn() -> BoxFuture<'static, OpenedSandbox> + Send + Sync>,
}

impl Target {
    /// Returns the capability that a behaviour needs and this target does not have.
    fn missing_for(&self, behaviour: &str) -> Option<&'static MissingCapability> {
        self.missing.iter().find(|missing| missing.behaviours.contains(&behaviour))
    }

    /// Returns whether a behaviour is refused by name: it needs a missing capability or a missing shell.
    fn refuses(&self, behaviour: &Behaviour) -> bool {
        self.missing_for(behaviour.name).is_some() || (behaviour.needs.shell && !self.has_shell)
    }
}

/// A capability that a target does not have.
pub struct MissingCapability {
    /// The capability.
    pub capability: Capability,
    /// Why the target can't have it.
    pub reason: &'static str,
    /// The behaviours that need it. For them the suite tests that the capability is refused by name.
    pub behaviours: &'static [&'static str],
}

/// The kernel features that the guest uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kernel {
    /// All features.
    Full,
    /// Neither openat2 nor Landlock, as on an old kernel.
    Old,
}

impl Kernel {
    /// Both variants.
    pub const ALL: [Self; 2] = [Self::Full, Self::Old];

    /// Returns the value of the guest's `SANDPOD_DISABLED_KERNEL_FEATURES`.
    #[must_use]
    pub fn without(self) -> Option<&'static str> {
        match self {
            Self::Full => None,
            Self::Old => Some("openat2,landlock"),
        }
    }
}

/// A sandbox that was opened.
pub struct OpenedSandbox {
    /// The sandbox, bound with [`dir`](Self::dir) as its working directory.
    pub sandbox: Sandbox,
    /// A writable directory.
    pub dir: String,
    /// The value of `HOME` in commands.
    pub home: String,
    /// Breaks all open streams.
    pub lose_streams: Box<dyn Fn() + Send + Sync>,
    /// Deletes the sandbox and all that was created for it.
    pub end: Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send + Sync>,
}
