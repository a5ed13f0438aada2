//! `sandpod gc`: deletes expired sandboxes and orphaned objects. The reaper of a namespace runs it.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::target::Lifetime;
use crate::time::parse_duration;

const EXAMPLES: &str = "\
Examples:
  sandpod gc                                      delete expired sandboxes
  sandpod gc --max-idle 30m                       also delete sandboxes idle for 30 minutes
  sandpod gc --all --mode raw --namespace agents  also delete shared objects if no sandbox is left";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Also delete sandboxes without a call for this time, whatever their own idle TTL
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    max_idle: Option<Duration>,
    /// Also delete the guest's ConfigMaps and the deny-all NetworkPolicy if no sandbox is left
    #[arg(long)]
    all: bool,
}

/// Cleans up and prints the deleted ids.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let provider = context.target()?.provider(Lifetime::Persistent).await?;
    let cleaned = provider.cleanup(arguments.max_idle).await?;
    let removed = if arguments.all { provider.clear().await? } else { Vec::new() };
    let deleted: Vec<_> = cleaned.deleted.iter().map(ToString::to_string).collect();
    let value = json!({ "deleted": deleted, "kept": cleaned.kept, "removed": removed });
    context.output.value(&value, || {
        let gone = deleted
            .iter()
            .map(|id| format!("deleted {id}\n"))
            .chain(removed.iter().map(|name| format!("removed {name}\n")));
        format!("{}{} deleted, {} kept", gone.collect::<String>(), deleted.len(), cleaned.kept)
    })
}
