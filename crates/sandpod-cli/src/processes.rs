//! Finds a started command by name or process number.

use sandpod::{ErrorKind, ProcessInfo, Sandbox};

use crate::exit::{Failure, Result};

/// Returns the command with this name or process number, or the last started command.
pub(crate) async fn find(sandbox: &Sandbox, wanted: Option<&str>) -> Result<ProcessInfo> {
    let mut all = sandbox.processes().await?;
    let position = match wanted {
        None => all.len().checked_sub(1),
        Some(wanted) => all.iter().position(|info| {
            info.process.name() == wanted || info.pid.is_some_and(|pid| pid.to_string() == wanted)
        }),
    };
    position.map(|position| all.swap_remove(position)).ok_or_else(|| {
        let message = match wanted {
            Some(wanted) => format!("No command '{wanted}' was started in this sandbox."),
            None => "No command was started in this sandbox.".to_owned(),
        };
        Failure::new(
            ErrorKind::NotFound,
            message,
            "List the commands with `sandpod ps`, or start one with `sandpod exec --detach`.",
        )
    })
}
