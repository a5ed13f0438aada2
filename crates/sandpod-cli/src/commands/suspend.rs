//! `sandpod suspend` and `sandpod resume`: delete the Pod of a sandbox, and create a new one.

use clap::Args;
use sandpod::{Provider, SandboxRequest};

use super::{Context, info};
use crate::complete::sandboxes;
use crate::exit::Result;
use crate::target::{Lifetime, Target, with_command_advice};

pub(crate) const SUSPEND_EXAMPLES: &str = "\
Only sandboxes in agent-sandbox mode can be suspended. Files on volumes are kept; sandpod info lists these directories. \
A sandbox whose workspace is not on a volume loses it, and requires --force.

Examples:
  sandpod suspend ID
  sandpod suspend --force ID
  sandpod resume ID";

pub(crate) const RESUME_EXAMPLES: &str = "\
Processes and files outside volumes are lost; the setup script runs again.

Examples:
  sandpod resume ID";

#[derive(Args)]
pub(crate) struct SuspendArguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Suspend the sandbox even if its workspace is lost
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
pub(crate) struct ResumeArguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
}

/// Suspends the sandbox and prints its details.
pub(crate) async fn suspend(arguments: SuspendArguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Lifetime::Persistent).await?;
    let id = target.info(&provider, &arguments.id).await?.id;
    let suspended = provider.suspend(id.as_str(), arguments.force).await;
    suspended.map_err(|error| with_command_advice(id.as_str(), &error))?;
    print(id.as_str(), &target, &provider, context).await
}

/// Resumes the sandbox and prints its details.
pub(crate) async fn resume(arguments: ResumeArguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Lifetime::Persistent).await?;
    let id = target.info(&provider, &arguments.id).await?.id;
    let resumed = provider.resume(SandboxRequest::of(id.as_str())).await;
    resumed.map_err(|error| with_command_advice(id.as_str(), &error))?;
    print(id.as_str(), &target, &provider, context).await
}

async fn print(id: &str, target: &Target, provider: &Provider, context: &Context) -> Result<()> {
    let info = target.info(provider, id).await?;
    info::print(&info, target, &context.output)
}
