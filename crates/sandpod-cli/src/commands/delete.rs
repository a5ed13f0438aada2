//! `sandpod delete`: the end of sandboxes.

use clap::Args;
use futures::future::join_all;
use serde_json::json;

use super::Context;
use crate::exit::{Failure, Result};
use crate::target::{Stay, find};

const EXAMPLES: &str = "\
That there is no such sandbox is said, and no error: afterwards there is none.

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
    let target = context.target()?;
    let provider = target.provider(Stay::Kept).await?;
    let deleting = arguments.ids.iter().map(async |id| {
        // One that can't be read is there, and of one that nobody finds something may be left.
        let was_there = !matches!(find(&provider, id).await, Ok(None));
        provider.delete(id, !arguments.no_wait).await?;
        Ok::<_, Failure>((id, was_there))
    });
    let (mut deleted, mut missing) = (Vec::new(), Vec::new());
    for ended in join_all(deleting).await {
        let (id, was_there) = ended?;
        if was_there { deleted.push(id) } else { missing.push(id) }
    }
    for id in &missing {
        let instead = target.instead_of(&provider, id).await;
        context.output.note(&format!("there is no sandbox {id}. {instead}"));
    }
    context.output.value(&json!({ "deleted": deleted, "not_found": missing }), String::new)
}
