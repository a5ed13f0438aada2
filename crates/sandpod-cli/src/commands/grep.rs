//! `sandpod grep`: searches for text in files.

use std::process::ExitCode;

use clap::Args;
use sandpod::GrepOptions;
use serde_json::json;

use super::Context;
use crate::complete::sandboxes;
use crate::exit::Result;
use crate::files::absolute;
use crate::output::cell;

const EXAMPLES: &str = "\
The text is matched literally, not as a regular expression. The exit code is 1 if no line matches.

Examples:
  sandpod grep ID TODO
  sandpod grep ID 'def main(' /workspace/src --glob '*.py'";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Text to search for
    text: String,
    /// Directory or file to search [default: the working directory of commands]
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    /// Search only files whose name matches, or whose path matches if the pattern has a slash
    #[arg(long, value_name = "PATTERN")]
    glob: Option<String>,
    /// Most lines to print
    #[arg(long, value_name = "NUMBER", value_parser = parse_count)]
    max_count: Option<u64>,
}

fn parse_count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("'{text}' is not a positive number"))
}

/// Prints the matching lines.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let target = context.target()?;
    let root = absolute(&target, &arguments.path)?;
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    let options = GrepOptions { root: Some(root), glob: arguments.glob, max_count: arguments.max_count };
    let found = sandbox.grep(&arguments.text, options).await?;
    if found.truncated {
        context.output.note("incomplete: too many matches; search fewer files");
    }
    let lines =
        found.matches.iter().map(|line| json!({ "path": line.path, "line": line.line, "text": line.text }));
    let value = json!({ "matches": lines.collect::<Vec<_>>(), "truncated": found.truncated });
    context.output.value(&value, || {
        // Tabs are kept; a line break would look like another match.
        let text = |text: &str| text.replace('\n', "\\n");
        let lines = found.matches.iter();
        let lines = lines.map(|line| format!("{}:{}:{}", cell(&line.path), line.line, text(&line.text)));
        lines.collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::from(u8::from(found.matches.is_empty())))
}
