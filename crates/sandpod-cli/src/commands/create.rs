//! `sandpod create`: a sandbox that stays.

use clap::Args;
use sandpod::SandboxRequest;

use super::{Context, info};
use crate::exit::Result;
use crate::interrupt::{Interrupts, make};
use crate::target::{Labels, Stay};

const EXAMPLES: &str = "\
Examples:
  sandpod create
  sandpod create --id work --label team=search --ttl 8h
  ID=$(sandpod create --quiet --mode raw --namespace agents --idle-ttl 15m)";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Its id, if not a random one; a sandbox that has it already is taken
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    labels: Labels,
}

/// Makes a sandbox and prints what it is.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let mut interrupts = Interrupts::listen()?;
    let provider = target.maker(Stay::Kept).await?;
    let request = SandboxRequest { id: arguments.id, ..target.request(&arguments.labels) };
    let handle = make(&provider, request, &mut interrupts, &context.output).await?;
    let made = provider.info(handle.id.as_str()).await;
    let made = made.inspect_err(|_| context.output.note(&format!("the sandbox {} is there", handle.id)))?;
    info::print(&made, &target, &context.output)
}
