//! `sandpod delete`: deletes sandboxes.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;
use futures::future::join_all;
use sandpod::{Provider, Status};
use serde_json::json;

use super::Context;
use super::list::all;
use crate::complete::sandboxes;
use crate::exit::{Failure, Result};
use crate::output::Output;
use crate::target::{Labels, Lifetime, Target, complete, find, ids};

/// The digits that the beginning of a generated id must have here.
const MIN_DIGITS: usize = 4;

const EXAMPLES: &str = "\
Deleting a sandbox that does not exist succeeds, with a message. The beginning of a generated id is enough if it has \
sp- and at least 4 more characters; an id that was chosen must be complete. A generated id is sp- and 8 or 26 \
letters and digits from 2 to 7.

--all asks for confirmation on a terminal, and requires --force elsewhere.

Examples:
  sandpod delete ID
  sandpod delete --no-wait ID OTHER
  sandpod delete --all --label team=search
  sandpod delete --all --force";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Ids of the sandboxes
    #[arg(required_unless_present = "all", value_name = "ID", add = sandboxes())]
    ids: Vec<String>,
    /// Delete all sandboxes of the mode and namespace, or those with the labels
    #[arg(long, short, conflicts_with = "ids")]
    all: bool,
    /// Neither ask before --all nor report missing sandboxes; required for --all without a terminal
    #[arg(long, short)]
    force: bool,
    /// Return before the deletion is complete
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    labels: Labels,
}

/// Deletes the sandboxes concurrently.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    check(&arguments, &target)?;
    let provider = target.provider(Lifetime::Persistent).await?;
    let wanted = if arguments.all {
        let Some(ids) = everything(&arguments, &target, &provider).await? else { return Ok(()) };
        ids
    } else {
        arguments.ids.clone()
    };
    let deleting = wanted.iter().map(async |given| {
        let (id, existed) = resolved(&provider, given).await?;
        provider.delete(&id, !arguments.no_wait).await?;
        if id != *given && !context.output.is_json() {
            context.output.note(&format!("deleted: {id}"));
        }
        Ok::<_, Failure>((id, existed))
    });
    let (mut deleted, mut missing) = (Vec::new(), Vec::new());
    for ended in join_all(deleting).await {
        let (id, existed) = ended?;
        if existed { deleted.push(id) } else { missing.push(id) }
    }
    for id in missing.iter().filter(|_| !arguments.force) {
        let suggestion = target.suggestion(&provider, id).await;
        context.output.note(&format!("sandbox {id} does not exist. {suggestion}"));
    }
    if arguments.all {
        report_all(&deleted, &context.output);
    }
    context.output.value(&json!({ "deleted": deleted, "not_found": missing }), String::new)
}

/// Rejects options that select more sandboxes than the user may have meant.
fn check(arguments: &Arguments, target: &Target) -> Result<()> {
    if !arguments.all && !target.labels(&arguments.labels).is_empty() {
        return Err(Failure::usage(
            "Option --label requires --all.",
            "Add --all to delete the sandboxes with the labels, or omit --label.",
        ));
    }
    if arguments.all && !arguments.force && !is_interactive() {
        return Err(Failure::usage(
            "`sandpod delete --all` asks for confirmation, but stdin or stderr is no terminal.",
            "Add --force to delete the sandboxes without confirmation.",
        ));
    }
    Ok(())
}

/// Reports whether the user can confirm.
fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn report_all(deleted: &[String], output: &Output) {
    match deleted {
        [] => output.note("there are no sandboxes to delete"),
        deleted => output.note(&format!("deleted: {}", deleted.join(", "))),
    }
}

/// Returns the id that is meant, and whether the sandbox exists. An unreadable sandbox still exists, and a missing one may
/// have left objects behind.
async fn resolved(provider: &Provider, id: &str) -> Result<(String, bool)> {
    if !matches!(find(provider, id).await, Ok(None)) {
        return Ok((id.to_owned(), true));
    }
    if id.strip_prefix("sp-").is_none_or(|digits| digits.len() < MIN_DIGITS) {
        return Ok((id.to_owned(), false));
    }
    let ids = ids(provider).await?;
    let found = complete(id, &ids)?;
    Ok(found.map_or_else(|| (id.to_owned(), false), |id| (id.to_owned(), true)))
}

/// Returns the ids of all sandboxes with the labels. None if the user does not confirm.
async fn everything(
    arguments: &Arguments,
    target: &Target,
    provider: &Provider,
) -> Result<Option<Vec<String>>> {
    let all = all(provider, target.labels(&arguments.labels), None).await?;
    // Pods that wait in a pool are no sandboxes yet.
    let ids: Vec<String> =
        all.iter().filter(|info| info.status != Status::Warm).map(|info| info.id.to_string()).collect();
    let asks = !arguments.force && !ids.is_empty();
    if asks && !is_confirmed(&format!("Delete {} sandboxes of {} mode? [y/N] ", ids.len(), target.mode)) {
        return Ok(None);
    }
    Ok(Some(ids))
}

fn is_confirmed(question: &str) -> bool {
    let mut answer = String::new();
    let asked = write!(io::stderr(), "{question}").and_then(|()| io::stdin().read_line(&mut answer));
    asked.is_ok() && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}
