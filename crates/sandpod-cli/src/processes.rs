//! Finding a started command by what people call it.

use sandpod::{ErrorKind, ProcessInfo, Sandbox};

use crate::exit::{Failure, Result};

/// The command with this name or process number; without one the last that was started.
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
            "See which were with `sandpod ps`, or start one with `sandpod exec --detach`.",
        )
    })
}
