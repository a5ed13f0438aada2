//! `sandpod suspend` and `sandpod resume`: a sandbox without a Pod, and with one again.

use clap::Args;
use sandpod::SandboxRequest;

use super::{Context, info};
use crate::exit::Result;
use crate::target::Stay;

pub(crate) const SUSPEND_EXAMPLES: &str = "\
Only sandboxes of agent-sandbox can be suspended. What lies on their volumes stays; `sandpod info` says where that is.

Examples:
  sandpod suspend ID
  sandpod resume ID";

pub(crate) const RESUME_EXAMPLES: &str = "\
Processes, and files that are not on a volume, are gone; the setup script runs again.

Examples:
  sandpod resume ID";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
}

/// What is to become of the sandbox's Pod.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Suspend,
    Resume,
}

/// Changes it and prints what is known of it then.
pub(crate) async fn run(change: Change, arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Stay::Kept).await?;
    match change {
        Change::Suspend => provider.suspend(&arguments.id).await?,
        Change::Resume => provider.resume(SandboxRequest::of(&arguments.id)).await.map(drop)?,
    }
    let info = target.info(&provider, &arguments.id).await?;
    info::print(&info, &target, &context.output)
}
