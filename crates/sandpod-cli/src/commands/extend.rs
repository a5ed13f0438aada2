//! `sandpod extend`: extends the lifetime of a sandbox.

use std::time::Duration;

use clap::Args;

use super::{Context, info};
use crate::complete::sandboxes;
use crate::exit::Result;
use crate::target::{Lifetime, with_command_advice};
use crate::time::parse_lifetime;

const EXAMPLES: &str = "\
The new lifetime starts now and replaces the previous one.

Examples:
  sandpod extend ID 2h
  sandpod extend ID 90s";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Time from now after which the sandbox is deleted
    #[arg(value_parser = parse_lifetime)]
    duration: Duration,
}

/// Extends the lifetime and prints the details of the sandbox.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Lifetime::Persistent).await?;
    let id = target.info(&provider, &arguments.id).await?.id;
    let extended = provider.extend(id.as_str(), arguments.duration).await;
    extended.map_err(|error| with_command_advice(id.as_str(), &error))?;
    let info = target.info(&provider, id.as_str()).await?;
    info::print(&info, &target, &context.output)
}
