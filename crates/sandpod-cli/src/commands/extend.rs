//! `sandpod extend`: extends the lifetime of a sandbox.

use std::time::Duration;

use clap::Args;

use super::{Context, info};
use crate::exit::Result;
use crate::target::{Lifetime, with_command_advice};
use crate::time::parse_duration;

const EXAMPLES: &str = "\
The new lifetime starts now and replaces the previous one.

Examples:
  sandpod extend ID 2h
  sandpod extend ID 90s";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    id: String,
    /// Time from now after which the sandbox is deleted
    #[arg(value_parser = parse_duration)]
    duration: Duration,
}

/// Extends the lifetime and prints the details of the sandbox.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Lifetime::Persistent).await?;
    target.info(&provider, &arguments.id).await?;
    provider
        .extend(&arguments.id, arguments.duration)
        .await
        .map_err(|error| with_command_advice(&arguments.id, &error))?;
    let info = target.info(&provider, &arguments.id).await?;
    info::print(&info, &target, &context.output)
}
