//! What keeps sandboxes from working here: check by check, each with its fix.
//!
//! [`examine_cluster`] looks at a cluster without making anything in it, [`examine_agent_sandbox`] at one with agent-sandbox,
//! [`examine_machine`] at this machine. [`examine_sandbox`] makes sandboxes and looks at what they do; [`examine_network`]
//! and [`examine_isolation`] find out whether a cluster really cuts them off.
//!
//! Where several things are found, each is added to what the caller brings as soon as it is known: making sandboxes takes
//! a while.

mod agent_sandbox;
mod cluster;
mod machine;
mod sandbox;
mod template;

pub use agent_sandbox::examine_agent_sandbox;
pub use cluster::examine_cluster;
pub use machine::examine_machine;
pub use sandbox::{examine_isolation, examine_network, examine_sandbox};

use crate::Error;

/// What a check found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// Whether it keeps sandboxes from working.
    pub verdict: Verdict,
    /// What is there.
    pub found: String,
    /// What to do, if something is to be done.
    pub fix: Option<String>,
    /// Only a sandbox that is made shows it.
    pub needs_sandbox: bool,
}

/// Whether something keeps sandboxes from working.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It is as it should be.
    Good,
    /// It can't be seen, or matters only to some.
    Unsure,
    /// It has to be mended.
    Bad,
}

impl Verdict {
    /// Its name: `good`, `unsure` or `bad`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Unsure => "unsure",
            Self::Bad => "bad",
        }
    }
}

/// One thing that an account may have to be allowed: a verb on a resource.
///
/// ```
/// use sandpod::doctor::Right;
///
/// let right = Right { group: String::new(), resource: "pods/exec".to_owned(), name: None, verb: "create".to_owned() };
/// assert_eq!(right.to_string(), "create pods/exec");
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Right {
    /// The API group; empty for the core.
    pub group: String,
    /// The resource, with its part after a slash.
    pub resource: String,
    /// The only object of it that is meant; none: all.
    pub name: Option<String>,
    /// What is done with it.
    pub verb: String,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

impl Finding {
    fn good(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Good,
            found: found.into(),
            fix: None,
            needs_sandbox: false,
        }
    }

    fn unsure(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Unsure,
            found: found.into(),
            fix: Some(fix.into()),
            needs_sandbox: false,
        }
    }

    fn bad(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Bad,
            found: found.into(),
            fix: Some(fix.into()),
            needs_sandbox: false,
        }
    }

    /// The same, where only a sandbox shows it.
    fn until_made(self) -> Self {
        Self { needs_sandbox: true, ..self }
    }

    fn of(check: &str, error: &Error) -> Self {
        Self::bad(check, error.message(), error.next_step())
    }
}

/// What is to be done about something that is found to be bad.
#[cfg(test)]
fn fix(finding: Finding) -> String {
    assert_eq!(finding.verdict, Verdict::Bad, "{finding:?}");
    finding.fix.expect("what is bad has a fix")
}

/// What can be done about something that is no fault, or can't be told.
#[cfg(test)]
fn next(finding: Finding) -> String {
    assert_eq!(finding.verdict, Verdict::Unsure, "{finding:?}");
    finding.fix.expect("what is unsure has a next step")
}
