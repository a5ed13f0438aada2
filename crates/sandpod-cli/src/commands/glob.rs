//! `sandpod glob`: finds files by pattern.

use std::process::ExitCode;

use clap::Args;
use sandpod::Incomplete;
use serde_json::json;

use super::Context;
use crate::complete::sandboxes;
use crate::exit::Result;
use crate::files::{absolute, value};
use crate::output::cell;

const EXAMPLES: &str = "\
Quote the pattern, or your shell expands it. The exit code is 1 if no file matches.

Examples:
  sandpod glob ID '**/*.py'
  sandpod glob ID '*.conf' /etc";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Glob pattern
    pattern: String,
    /// Directory to search [default: the working directory of commands]
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
}

/// Prints the paths of matching files.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let target = context.target()?;
    let root = absolute(&target, &arguments.path)?;
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    let found = sandbox.glob(&arguments.pattern, &root).await?;
    match found.incomplete {
        Some(Incomplete::Unreadable) => context.output.note("incomplete: not all directories could be read"),
        Some(_) => context.output.note("incomplete: too many files; search a smaller directory"),
        None => {}
    }
    let files: Vec<_> = found.matches.iter().map(value).collect();
    context.output.value(&json!({ "matches": files, "truncated": found.incomplete.is_some() }), || {
        found.matches.iter().map(|info| cell(&info.path)).collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::from(u8::from(found.matches.is_empty())))
}
