//! The three kinds of places that sandboxes run in.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Where sandboxes run.
///
/// ```
/// use sandpod::Mode;
///
/// assert_eq!("raw".parse::<Mode>()?, Mode::Raw);
/// assert!("docker".parse::<Mode>().is_err());
/// # Ok::<(), sandpod::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// In namespaces of this machine.
    Local,
    /// In plain Pods of a cluster.
    Raw,
    /// In Pods that agent-sandbox keeps.
    AgentSandbox,
}

impl Mode {
    /// Its name: `local`, `raw` or `agent-sandbox`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Raw => "raw",
            Self::AgentSandbox => "agent-sandbox",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::AgentSandbox, Self::Raw, Self::Local];
        all.into_iter().find(|mode| mode.as_str() == name).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            Error::invalid(
                format!("Unknown mode: '{}'.", shown.escape_debug()),
                "Must be 'agent-sandbox', 'raw' or 'local'.",
            )
        })
    }
}
