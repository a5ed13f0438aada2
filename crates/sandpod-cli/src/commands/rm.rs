//! `sandpod rm`: files of a sandbox go.

use clap::Args;
use sandpod::{CallError, ErrorCode, FileKind, Sandbox};
use serde_json::json;

use super::Context;
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
    /// The sandbox
    id: String,
    /// Files, links or directories
    #[arg(required = true)]
    paths: Vec<String>,
    /// Directories with all that is in them, too
    #[arg(long, short)]
    recursive: bool,
    /// What is not there is no error
    #[arg(long, short)]
    force: bool,
}

/// Removes them, one after the other.
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
                    "Remove it with all that is in it by --recursive.",
                ));
            }
        }
    }
    context.output.value(&json!({ "removed": removed }), String::new)
}

/// Why something was not removed.
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
