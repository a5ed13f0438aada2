//! Diagnostic checks for sandboxes. Each [`Finding`] has a [`Verdict`] and, if there is a problem, a fix.
//!
//! [`examine_cluster`] checks a cluster without creating objects, [`examine_agent_sandbox`] checks one with
//! agent-sandbox, and [`examine_machine`] checks this machine. [`examine_sandbox`] creates a sandbox and runs a command
//! in it. [`examine_network`] and [`examine_isolation`] create sandboxes to check that the cluster enforces network
//! policies.
//!
//! Functions with several findings add each one to the caller's collection as soon as it is known, because creating
//! sandboxes takes time.

mod agent_sandbox;
mod cluster;
mod container;
mod machine;
mod sandbox;
mod template;
mod trials;

pub use agent_sandbox::examine_agent_sandbox;
pub use cluster::examine_cluster;
pub use machine::examine_machine;
pub use sandbox::{examine_isolation, examine_network, examine_sandbox};

use crate::Error;

/// The result of a check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// Name of the check.
    pub check: String,
    /// Whether the result prevents sandboxes from working.
    pub verdict: Verdict,
    /// What the check found.
    pub found: String,
    /// How to fix or investigate it, unless the verdict is good.
    pub fix: Option<String>,
    /// Whether only creating a sandbox gives a definite result.
    pub needs_sandbox: bool,
}

/// Whether a finding prevents sandboxes from working.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// No problem was found.
    Good,
    /// The check has no definite result, or the problem affects only some uses.
    Unsure,
    /// The problem must be fixed.
    Bad,
}

impl Verdict {
    /// The name: `good`, `unsure` or `bad`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Unsure => "unsure",
            Self::Bad => "bad",
        }
    }
}

/// A permission that an account may need: a verb on a resource.
///
/// ```
/// use sandpod::doctor::Right;
///
/// let right = Right { group: String::new(), resource: "pods/exec".to_owned(), name: None, verb: "create".to_owned() };
/// assert_eq!(right.to_string(), "create pods/exec");
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Right {
    /// API group. Empty for the core group.
    pub group: String,
    /// Resource, with an optional subresource after a slash.
    pub resource: String,
    /// Name of the object, or `None` for all objects.
    pub name: Option<String>,
    /// Verb, such as `create`.
    pub verb: String,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)
    }
}

/// Names of all checks. A name that ends with `: ` is followed by a resource or a connection mode.
pub const CHECKS: &[&str] = &[
    "configuration",
    "API server",
    "Kubernetes",
    "clock",
    "rights: ",
    "admission",
    "quota",
    "nodes",
    "agent-sandbox",
    "controller",
    "template",
    "template's guest",
    "writable places",
    "warm pool",
    "router",
    "connection mode: ",
    "guest token",
    "guest program",
    "sandbox",
    "guest",
    "network policy",
    "isolation",
    "user namespaces",
    "AppArmor",
    "cgroups",
    "Landlock",
    "seccomp",
    "container",
];

/// Returns the name of a check, which is one of [`CHECKS`].
fn named(check: impl Into<String>) -> String {
    let name = check.into();
    let is_known = |known: &str| name == known || (known.ends_with(": ") && name.starts_with(known));
    debug_assert!(CHECKS.iter().any(|known| is_known(known)), "`{name}` is not one of CHECKS");
    name
}

impl Finding {
    fn good(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            check: named(check),
            verdict: Verdict::Good,
            found: found.into(),
            fix: None,
            needs_sandbox: false,
        }
    }

    fn unsure(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check: named(check),
            verdict: Verdict::Unsure,
            found: found.into(),
            fix: Some(fix.into()),
            needs_sandbox: false,
        }
    }

    fn bad(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check: named(check),
            verdict: Verdict::Bad,
            found: found.into(),
            fix: Some(fix.into()),
            needs_sandbox: false,
        }
    }

    /// Marks the finding as one that only creating a sandbox can settle.
    fn until_made(self) -> Self {
        Self { needs_sandbox: true, ..self }
    }

    fn of(check: &str, error: &Error) -> Self {
        Self::bad(check, error.message(), error.next_step())
    }
}

/// Returns the fix of a bad finding.
#[cfg(test)]
fn fix(finding: Finding) -> String {
    assert_eq!(finding.verdict, Verdict::Bad, "{finding:?}");
    finding.fix.expect("a bad finding has a fix")
}

/// Returns the next step of an unsure finding.
#[cfg(test)]
fn next(finding: Finding) -> String {
    assert_eq!(finding.verdict, Verdict::Unsure, "{finding:?}");
    finding.fix.expect("an unsure finding has a next step")
}

#[cfg(test)]
mod tests {
    use super::CHECKS;

    #[test]
    fn the_document_has_a_row_for_each_check() {
        const PAGE: &str = include_str!("../../../docs/troubleshooting.md");
        let (_, table) = PAGE.split_once("## Checks of `sandpod doctor`").unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let listed: Vec<String> =
            rows.map(|(name, _)| name.replace("RESOURCE", "").replace("MODE", "")).collect();
        assert_eq!(listed, CHECKS);
    }
}
