//! `sandpod delete`: the end of sandboxes.

use clap::Args;
use futures::future::join_all;
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::target::Stay;

const EXAMPLES: &str = "\
That there is no such sandbox is no error: afterwards there is none.

Examples:
  sandpod delete ID
  sandpod delete --no-wait ID OTHER
  sandpod list --quiet --label team=search | xargs -r sandpod delete";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandboxes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Return when the order is taken, not when all is gone
    #[arg(long)]
    no_wait: bool,
}

/// Deletes them, all at once.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let provider = context.target()?.provider(Stay::Kept).await?;
    let deleting = arguments.ids.iter().map(|id| provider.delete(id, !arguments.no_wait));
    for deleted in join_all(deleting).await {
        deleted?;
    }
    context.output.value(&json!({ "deleted": arguments.ids }), String::new)
}
