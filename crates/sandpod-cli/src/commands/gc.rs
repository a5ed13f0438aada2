//! `sandpod gc`: what nobody needs any more goes. The reaper of a namespace runs it.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::target::Stay;
use crate::time::parse_length;

const EXAMPLES: &str = "\
Examples:
  sandpod gc                                     those whose time is up
  sandpod gc --max-idle 30m                      and those that nobody used for so long
  sandpod gc --all --mode raw --namespace agents and, when no sandbox is left, what they shared";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Also those that nobody used for so long, whatever idle time they have
    #[arg(long, value_name = "LENGTH", value_parser = parse_length)]
    max_idle: Option<Duration>,
    /// When no sandbox is left, also what sandboxes share: the guest's ConfigMaps and the deny-all policy
    #[arg(long)]
    all: bool,
}

/// Cleans up and says what went.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let provider = context.target()?.provider(Stay::Kept).await?;
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
