//! `sandpod suspend` and `sandpod resume`: a sandbox without a Pod, and with one again.

use clap::Args;
use sandpod::{Provider, SandboxRequest};

use super::{Context, info};
use crate::exit::Result;
use crate::target::{Stay, Target, advised};

pub(crate) const SUSPEND_EXAMPLES: &str = "\
Only sandboxes of agent-sandbox can be suspended. What lies on their volumes stays; `sandpod info` says where that is. \
One whose workspace is on no volume loses it, and is suspended with --force only.

Examples:
  sandpod suspend ID
  sandpod suspend --force ID
  sandpod resume ID";

pub(crate) const RESUME_EXAMPLES: &str = "\
Processes, and files that are not on a volume, are gone; the setup script runs again.

Examples:
  sandpod resume ID";

#[derive(Args)]
pub(crate) struct SuspendArguments {
    /// The sandbox
    id: String,
    /// Suspend it even if its workspace is lost
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
pub(crate) struct ResumeArguments {
    /// The sandbox
    id: String,
}

/// Suspends it and prints what is known of it then.
pub(crate) async fn suspend(arguments: SuspendArguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Stay::Kept).await?;
    let suspended = provider.suspend(&arguments.id, arguments.force).await;
    suspended.map_err(|error| advised(&arguments.id, &error))?;
    print(&arguments.id, &target, &provider, context).await
}

/// Resumes it and prints what is known of it then.
pub(crate) async fn resume(arguments: ResumeArguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Stay::Kept).await?;
    let resumed = provider.resume(SandboxRequest::of(&arguments.id)).await;
    resumed.map_err(|error| advised(&arguments.id, &error))?;
    print(&arguments.id, &target, &provider, context).await
}

async fn print(id: &str, target: &Target, provider: &Provider, context: &Context) -> Result<()> {
    let info = target.info(provider, id).await?;
    info::print(&info, target, &context.output)
}
