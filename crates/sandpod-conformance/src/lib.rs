//! One suite of behaviours for every sandbox, whatever carries its stream and wherever it runs.
//!
//! A [`Target`] is one row of the table: a transport, and the place at its end. [`run`] opens each target once and
//! tries every behaviour there, each as a test of its own, many at once: they share a sandbox as the
//! callers of one do, and each has a directory of its own.

#![expect(clippy::unwrap_used, reason = "a behaviour that can't go on fails")]

mod behaviours;
mod capability;
mod harness;
mod table;

use futures::future::BoxFuture;
use sandpod_client::Sandbox;

pub use capability::Capability;
pub use harness::run;

/// A transport, and the place at its end.
pub struct Target {
    /// What carries the stream.
    pub transport: &'static str,
    /// What the sandbox runs in.
    pub place: &'static str,
    /// Who its commands run as.
    pub user: &'static str,
    /// Whether openat2 and Landlock are used, or forced off.
    pub kernel: Kernel,
    /// Whether the place has a shell.
    pub has_shell: bool,
    /// Whether its streams can be broken on purpose.
    pub loses_streams: bool,
    /// What the place can't do by design, and says so by name when it is asked.
    pub missing: &'static [MissingCapability],
    /// Opens it.
    pub open: Box<dyn Fn() -> BoxFuture<'static, OpenedSandbox> + Send + Sync>,
}

impl Target {
    /// What is missing for a behaviour, if anything.
    fn missing_for(&self, behaviour: &str) -> Option<&'static MissingCapability> {
        self.missing.iter().find(|lack| lack.behaviours.contains(&behaviour))
    }
}

/// A capability that a place does not have.
pub struct MissingCapability {
    /// What is missing.
    pub capability: Capability,
    /// Why it can't be otherwise.
    pub reason: &'static str,
    /// What needs it: there it is tried that the capability is refused by its name.
    pub behaviours: &'static [&'static str],
}

/// What the guest uses of its kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kernel {
    /// All that there is.
    Full,
    /// Neither openat2 nor Landlock, as on an old kernel.
    Old,
}

impl Kernel {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Full, Self::Old];

    /// What a guest must be told by `SANDPOD_WITHOUT`, if anything.
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
    /// Bound, with [`dir`](Self::dir) as its working directory.
    pub sandbox: Sandbox,
    /// A directory that may be written.
    pub dir: String,
    /// What commands find in `HOME`.
    pub home: String,
    /// Breaks every stream there is.
    pub lose_streams: Box<dyn Fn() + Send + Sync>,
    /// Ends it, so that nothing of it is left.
    pub end: Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send + Sync>,
}
