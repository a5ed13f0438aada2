//! `sandpod grep`: text in files.

use std::process::ExitCode;

use clap::Args;
use sandpod::GrepOptions;
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::files::absolute;
use crate::output::cell;

const EXAMPLES: &str = "\
The text is taken as it is: no regular expression. The exit code is 1 if no line has it.

Examples:
  sandpod grep ID TODO
  sandpod grep ID 'def main(' /workspace/src --glob '*.py'";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
    /// The text
    text: String,
    /// A directory or file, if not the directory where commands start
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    /// Only files whose names match, or whose paths do if there is a slash in it
    #[arg(long, value_name = "PATTERN")]
    glob: Option<String>,
    /// No more lines than these
    #[arg(long, value_name = "NUMBER", value_parser = parse_count)]
    max_count: Option<u64>,
}

fn parse_count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("'{text}' is no number of lines: write 1 or more"))
}

/// Prints the lines.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let target = context.target()?;
    let root = absolute(&target, &arguments.path)?;
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    let options = GrepOptions { root: Some(root), glob: arguments.glob, max_count: arguments.max_count };
    let found = sandbox.grep(&arguments.text, options).await?;
    if found.truncated {
        context.output.note("there may be more: look in fewer files");
    }
    let lines =
        found.matches.iter().map(|line| json!({ "path": line.path, "line": line.line, "text": line.text }));
    let value = json!({ "matches": lines.collect::<Vec<_>>(), "truncated": found.truncated });
    context.output.value(&value, || {
        // Tabs are part of a line; a line break would be another line.
        let text = |text: &str| text.replace('\n', "\\n");
        let lines = found.matches.iter();
        let lines = lines.map(|line| format!("{}:{}:{}", cell(&line.path), line.line, text(&line.text)));
        lines.collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::from(u8::from(found.matches.is_empty())))
}
