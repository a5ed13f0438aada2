//! One suite of behaviours for every sandbox, whatever carries its stream and wherever it runs.
//!
//! A [`Way`] is one row of the table: a transport, and the place at its end. [`run`] opens each way once and
//! tries every behaviour there, each as a test of its own, many at once: they share a sandbox as the
//! callers of one do, and each has a directory of its own.

#![expect(clippy::unwrap_used, reason = "a behaviour that can't go on fails")]

mod behaviours;
mod harness;
mod power;
mod table;

use futures::future::BoxFuture;
use sandpod_client::Sandbox;

pub use harness::run;
pub use power::Power;

/// A transport, and the place at its end.
pub struct Way {
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
    pub lacks: &'static [Lack],
    /// Opens it.
    pub open: Box<dyn Fn() -> BoxFuture<'static, Place> + Send + Sync>,
}

impl Way {
    /// What is lacking for a behaviour, if anything.
    fn lacking(&self, behaviour: &str) -> Option<&'static Lack> {
        self.lacks.iter().find(|lack| lack.behaviours.contains(&behaviour))
    }
}

/// A power that a place does not have.
pub struct Lack {
    /// What is lacking.
    pub power: Power,
    /// Why it can't be otherwise.
    pub reason: &'static str,
    /// What needs it: there it is tried that the power is refused by its name.
    pub behaviours: &'static [&'static str],
}

/// What the guest uses of its kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kernel {
    /// All that there is.
    Whole,
    /// Neither openat2 nor Landlock, as on an old kernel.
    Old,
}

impl Kernel {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Whole, Self::Old];

    /// What a guest must be told by `SANDPOD_WITHOUT`, if anything.
    #[must_use]
    pub fn without(self) -> Option<&'static str> {
        match self {
            Self::Whole => None,
            Self::Old => Some("openat2,landlock"),
        }
    }
}

/// A sandbox that was opened.
pub struct Place {
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
