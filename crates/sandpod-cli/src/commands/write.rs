//! `sandpod write`: writes stdin to a file.

use clap::Args;
use serde_json::json;
use tokio::fs::File;

use super::Context;
use crate::complete::sandboxes;
use crate::exit::{Failure, Result};
use crate::files::absolute;

const EXAMPLES: &str = "\
The file is replaced atomically; missing parent directories are created.

Examples:
  echo hello | sandpod write ID /workspace/hello.txt
  sandpod write ID script.py < script.py";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Path of the file
    path: String,
}

/// Writes the file.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let path = absolute(&target, &arguments.path)?;
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    // Stdin is spooled first: an incomplete input must not be written, and a retry after a lost stream reads it again.
    let unread = |cause| Failure::local("read stdin", &cause);
    let mut spool = File::from_std(tempfile::tempfile().map_err(unread)?);
    let bytes = tokio::io::copy(&mut tokio::io::stdin(), &mut spool).await.map_err(unread)?;
    let written = sandbox.upload(&path, spool).await?;
    context.output.value(&json!({ "path": path, "size": bytes, "atomic": written.atomic }), String::new)
}
