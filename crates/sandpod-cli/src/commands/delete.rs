//! `sandpod delete`: deletes sandboxes.

use clap::Args;
use futures::future::join_all;
use serde_json::json;

use super::Context;
use crate::exit::{Failure, Result};
use crate::target::{Lifetime, find};

const EXAMPLES: &str = "\
Deleting a sandbox that does not exist succeeds, with a message.

Examples:
  sandpod delete ID
  sandpod delete --no-wait ID OTHER
  sandpod list --quiet --label team=search | xargs -r sandpod delete";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Ids of the sandboxes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Return before the deletion is complete
    #[arg(long)]
    no_wait: bool,
}

/// Deletes the sandboxes concurrently.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Lifetime::Persistent).await?;
    let deleting = arguments.ids.iter().map(async |id| {
        // An unreadable sandbox still exists, and a missing one may have left objects behind.
        let existed = !matches!(find(&provider, id).await, Ok(None));
        provider.delete(id, !arguments.no_wait).await?;
        Ok::<_, Failure>((id, existed))
    });
    let (mut deleted, mut missing) = (Vec::new(), Vec::new());
    for ended in join_all(deleting).await {
        let (id, existed) = ended?;
        if existed { deleted.push(id) } else { missing.push(id) }
    }
    for id in &missing {
        let suggestion = target.suggestion(&provider, id).await;
        context.output.note(&format!("sandbox {id} does not exist. {suggestion}"));
    }
    context.output.value(&json!({ "deleted": deleted, "not_found": missing }), String::new)
}
