//! `sandpod suspend`: a sandbox without a Pod, until it is resumed.

use clap::Args;

use super::{Context, info};
use crate::exit::Result;
use crate::target::Stay;

const EXAMPLES: &str = "\
Only sandboxes of agent-sandbox can be suspended. What lies on their volumes stays; `sandpod info` says where that is.

Examples:
  sandpod suspend ID
  sandpod resume ID";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
}

/// Suspends it and prints what is known of it then.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Stay::Kept).await?;
    provider.suspend(&arguments.id).await?;
    let info = target.info(&provider, &arguments.id).await?;
    info::print(&info, &target, &context.output)
}
