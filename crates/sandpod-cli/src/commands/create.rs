//! `sandpod create`: creates a sandbox that is kept.

use clap::Args;
use sandpod::SandboxRequest;

use super::{Context, info};
use crate::creation::Creation;
use crate::exit::Result;
use crate::interrupt::{Interrupts, OnExisting, create};
use crate::target::{Labels, Lifetime};
use crate::variables::Variables;

const EXAMPLES: &str = "\
The sandbox is kept until it is deleted or expires. If a sandbox with the id exists, it is returned unchanged; options \
such as --network, --mount and --env are then an error.

Examples:
  sandpod create
  sandpod create --id work --label team=search --ttl 8h
  sandpod create --id web --network=open --memory 2g --env TOKEN
  ID=$(sandpod create --quiet --mode raw --namespace agents --idle-ttl 15m)";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Id of the sandbox [default: random]
    #[arg(long, visible_alias = "name")]
    id: Option<String>,
    #[command(flatten)]
    variables: Variables,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    creation: Creation,
}

/// Creates a sandbox and prints its details.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let env = arguments.variables.all();
    let has_options = !arguments.creation.is_empty() || !env.is_empty();
    let on_existing = if has_options { OnExisting::RejectOptions } else { OnExisting::Return };
    let target = context.creating_target(arguments.creation)?;
    let mut interrupts = Interrupts::listen()?;
    let provider = target.creating_provider(Lifetime::Persistent).await?;
    let request = SandboxRequest { id: arguments.id, env, ..target.request(&arguments.labels) };
    let handle = create(&provider, request, on_existing, &mut interrupts, &context.output).await?;
    let created = provider.info(handle.id.as_str()).await;
    let created =
        created.inspect_err(|_| context.output.note(&format!("sandbox {} was created", handle.id)))?;
    info::print(&created, &target, &context.output)
}
