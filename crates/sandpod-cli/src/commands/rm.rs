//! `sandpod rm`: removes files of a sandbox.

use clap::Args;
use sandpod::{CallError, ErrorCode, FileKind, Sandbox};
use serde_json::json;

use super::Context;
use crate::complete::{remote_paths, sandboxes};
use crate::exit::{Failure, Result};
use crate::files::absolute;

const EXAMPLES: &str = "\
Examples:
  sandpod rm ID /workspace/old.txt
  sandpod rm ID --recursive /workspace/build
  sandpod rm ID --force maybe-there.txt";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Paths of files, links or directories
    #[arg(required = true, add = remote_paths())]
    paths: Vec<String>,
    /// Remove directories with their content
    #[arg(long, short)]
    recursive: bool,
    /// Ignore missing files
    #[arg(long, short)]
    force: bool,
}

/// Removes the paths one after the other.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let paths: Vec<_> = arguments.paths.iter().map(|path| absolute(&target, path)).collect::<Result<_>>()?;
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    let mut removed = Vec::new();
    for path in paths {
        match remove(&sandbox, &path, arguments.recursive).await {
            Ok(()) => removed.push(path),
            Err(Refused::Call(error)) if arguments.force && is_missing(&error) => {}
            Err(Refused::Call(error)) => return Err(error.into()),
            Err(Refused::Directory) => {
                return Err(Failure::usage(
                    format!("{path} is a directory."),
                    "Add --recursive to remove it with its content.",
                ));
            }
        }
    }
    context.output.value(&json!({ "removed": removed }), String::new)
}

/// The reason why a path was not removed.
enum Refused {
    Directory,
    Call(CallError),
}

async fn remove(sandbox: &Sandbox, path: &str, recursive: bool) -> Result<(), Refused> {
    let info = sandbox.stat(path, false).await.map_err(Refused::Call)?;
    if info.kind == FileKind::Directory && !recursive {
        return Err(Refused::Directory);
    }
    sandbox.delete(path).await.map_err(Refused::Call)
}

fn is_missing(error: &CallError) -> bool {
    matches!(error, CallError::Failure(failure) if failure.code() == ErrorCode::NotFound)
}
