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
Quote the pattern, or your shell expands it. A pattern without '/' matches names at any depth; one with '/' matches paths \
from the directory on, and '**' stands for any directories. The exit code is 1 if no file matches.

Examples:
  sandpod glob ID '*.py'             in every directory
  sandpod glob ID '/*.py'            in the directory itself
  sandpod glob ID 'src/**/*.py'
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
    if found.matches.is_empty() && has_open_class(&arguments.pattern) {
        context.output.note("the pattern has a '[' without a ']', which matches only a file name with '['");
    }
    let files: Vec<_> = found.matches.iter().map(value).collect();
    context.output.value(&json!({ "matches": files, "truncated": found.incomplete.is_some() }), || {
        found.matches.iter().map(|info| cell(&info.path)).collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::from(u8::from(found.matches.is_empty())))
}

/// Reports whether a bracket of the pattern is not closed, so that it stands for itself.
fn has_open_class(pattern: &str) -> bool {
    let mut rest = pattern;
    while let Some(open) = rest.find(['[', '\\']) {
        let escaped = rest[open..].starts_with('\\');
        let behind = &rest[open + 1..];
        let content = behind.strip_prefix(['!', '^']).unwrap_or(behind);
        // An escaped character stands for itself, and so does the first one of a class.
        let first = |text: &str| text.chars().next().map_or(0, char::len_utf8);
        rest = if escaped {
            &behind[first(behind)..]
        } else {
            let content = &content[first(content)..];
            match content.find(']') {
                Some(close) => &content[close + 1..],
                None => return true,
            }
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_without_an_end_are_found() {
        for open in ["[", "a[b", "[!", "[]", "[a]/x[", "é[é"] {
            assert!(has_open_class(open), "{open}");
        }
        for closed in ["", "*", "[a]", "[]]", "[!]]", "\\[", "a]", "[[]", "\\"] {
            assert!(!has_open_class(closed), "{closed}");
        }
    }
}
