//! `sandpod resume`: a Pod again for a suspended sandbox.

use clap::Args;

use super::{Context, info};
use crate::exit::Result;
use crate::target::Stay;

const EXAMPLES: &str = "\
Processes, and files that are not on a volume, are gone; the setup script runs again.

Examples:
  sandpod resume ID";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
}

/// Resumes it and prints what is known of it then.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Stay::Kept).await?;
    provider.resume(&arguments.id).await?;
    let info = target.info(&provider, &arguments.id).await?;
    info::print(&info, &target, &context.output)
}
