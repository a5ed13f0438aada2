//! `sandpod extend`: more time for a sandbox.

use std::time::Duration;

use clap::Args;

use super::{Context, info};
use crate::exit::Result;
use crate::target::{Stay, advised};
use crate::time::parse_length;

const EXAMPLES: &str = "\
The time runs from now, whatever time the sandbox had before.

Examples:
  sandpod extend ID 2h
  sandpod extend ID 90s";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
    /// It ends so long from now
    #[arg(value_parser = parse_length)]
    length: Duration,
}

/// Extends it and prints what is known of it then.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Stay::Kept).await?;
    target.info(&provider, &arguments.id).await?;
    provider.extend(&arguments.id, arguments.length).await.map_err(|error| advised(&arguments.id, &error))?;
    let info = target.info(&provider, &arguments.id).await?;
    info::print(&info, &target, &context.output)
}
