//! `sandpod mv`: another path for a file or directory.

use clap::Args;
use sandpod::{FileKind, Sandbox};
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::files::{absolute, join, name, no_directory};

const EXAMPLES: &str = "\
Into a directory that is there, it keeps its name.

Examples:
  sandpod mv ID draft.md final.md
  sandpod mv ID /workspace/out /tmp
  sandpod mv ID --no-clobber new.txt kept.txt";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
    /// What is moved
    from: String,
    /// Where to
    to: String,
    /// Replace nothing
    #[arg(long)]
    no_clobber: bool,
}

/// Moves it.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let (from, to) = (absolute(&target, &arguments.from)?, absolute(&target, &arguments.to)?);
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    let to = destination(&sandbox, &from, to).await?;
    let moved = sandbox.move_path(&from, &to, !arguments.no_clobber).await?;
    context.output.value(&json!({ "from": from, "to": to, "atomic": moved.atomic }), String::new)
}

/// The new path: below it, if it is a directory.
async fn destination(sandbox: &Sandbox, from: &str, to: String) -> Result<String> {
    // If it can't be seen, the move itself says why.
    let is_directory =
        async |path| sandbox.stat(path, true).await.is_ok_and(|info| info.kind == FileKind::Directory);
    if is_directory(&to).await {
        return Ok(name(from).map_or(to.clone(), |name| join(&to, name)));
    }
    if to.ends_with('/') && !is_directory(from).await {
        return Err(no_directory(&to));
    }
    Ok(to)
}
