//! Runs the setup script of new sandboxes.

use std::time::Duration;

use sandpod_client::{ExecuteOptions, Sandbox};

use crate::audit::Audit;
use crate::backend::{Backend, Place, Setup};
use crate::guard::{Intent, Operation, watch};
use crate::{Error, ErrorKind, Result};

/// Time limit of the calls before and after the script.
const MARGIN: Duration = Duration::from_secs(30);
/// Maximum number of bytes of a script's output in an error. The end of the output is shown.
const SHOWN: usize = 4096;

/// A shell script and its time limit.
#[derive(Clone, Debug)]
pub(crate) struct SetupScript {
    pub(crate) script: String,
    pub(crate) limit: Duration,
}

/// Runs the script in `place` unless it has already run there, and records it in the audit.
pub(crate) async fn set_up(
    backend: &dyn Backend,
    audit: Option<&Audit>,
    setup: &SetupScript,
    place: &Place,
    sandbox: &Sandbox,
) -> Result<()> {
    // The script may use its whole limit; the margin covers the calls before and after it.
    if backend.begin_setup(place, setup.limit + MARGIN).await? == Setup::Done {
        return Ok(());
    }
    let intent = Intent::new(Operation::SetUp, place.id.as_str(), vec![setup.script.clone()]);
    watch(audit, intent, None, Box::pin(run(setup, place, sandbox)), |(), _| ()).await
}

async fn run(setup: &SetupScript, place: &Place, sandbox: &Sandbox) -> Result<()> {
    let (script, limit) = (&setup.script, setup.limit);
    let options = ExecuteOptions { timeout: Some(limit), ..ExecuteOptions::default() };
    let executed = sandbox.execute(script.as_str(), options).await.map_err(|cause| {
        let next = "Try again; if it stays so, see whether the Pod can run the script.";
        Error::new(ErrorKind::Unavailable, format!("The setup_script was not run to its end: {cause}."), next)
    })?;
    let end = match executed.exit_code {
        Some(0) => return Ok(()),
        _ if executed.timed_out => format!("took longer than {}s", limit.as_secs()),
        Some(code) => format!("failed with exit code {code}"),
        None => "ended with an unknown exit code".to_owned(),
    };
    let kind = if executed.timed_out { ErrorKind::Timeout } else { ErrorKind::StartFailed };
    let message =
        format!("The setup_script of sandbox '{}' {end}. It said: {}", place.id, tail(&executed.output));
    Err(Error::new(kind, message, "Mend the script: there is no sandbox until it exits with 0."))
}

/// Returns the end of the output, from the start of a line if possible.
fn tail(output: &[u8]) -> String {
    let start = output.len().saturating_sub(SHOWN);
    let text = String::from_utf8_lossy(&output[start..]);
    let text = text.trim_end();
    let whole = if start > 0 { text.split_once('\n').map_or(text, |(_, rest)| rest) } else { text };
    if whole.is_empty() { "nothing.".to_owned() } else { whole.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_is_cut_at_the_start_of_a_line() {
        assert_eq!(tail(b"short\n"), "short");
        assert_eq!(tail(b"\n"), "nothing.");
        let long = "line of text\n".repeat(1000);
        let shown = tail(long.as_bytes());
        assert!(shown.len() <= SHOWN && shown.starts_with("line of text\n"), "{shown}");
        assert!(tail("ä".repeat(10_000).as_bytes()).len() <= SHOWN + 2, "a truncated character is replaced");
    }
}
