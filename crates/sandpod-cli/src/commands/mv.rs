//! `sandpod mv`: moves a file or directory within a sandbox.

use clap::Args;
use sandpod::{FileKind, Sandbox};
use serde_json::json;

use super::Context;
use crate::complete::sandboxes;
use crate::exit::Result;
use crate::files::{absolute, join, missing_directory, name};

const EXAMPLES: &str = "\
If the destination is an existing directory, the source is moved into it.

Examples:
  sandpod mv ID draft.md final.md
  sandpod mv ID /workspace/out /tmp
  sandpod mv ID --no-clobber new.txt kept.txt";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Source path
    from: String,
    /// Destination path
    to: String,
    /// Do not replace an existing file
    #[arg(long)]
    no_clobber: bool,
}

/// Moves the file or directory.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let (from, to) = (absolute(&target, &arguments.from)?, absolute(&target, &arguments.to)?);
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    let to = destination(&sandbox, &from, to).await?;
    let moved = sandbox.move_path(&from, &to, !arguments.no_clobber).await?;
    context.output.value(&json!({ "from": from, "to": to, "atomic": moved.atomic }), String::new)
}

/// The final path: inside `to`, if that is a directory.
async fn destination(sandbox: &Sandbox, from: &str, to: String) -> Result<String> {
    // If the stat fails, the move fails with the reason.
    let is_directory =
        async |path| sandbox.stat(path, true).await.is_ok_and(|info| info.kind == FileKind::Directory);
    if is_directory(&to).await {
        return Ok(name(from).map_or(to.clone(), |name| join(&to, name)));
    }
    if to.ends_with('/') && !is_directory(from).await {
        return Err(missing_directory(&to));
    }
    Ok(to)
}
