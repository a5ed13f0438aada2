//! `sandpod ls`: lists a directory of a sandbox.

use clap::Args;
use sandpod::{FileInfo, FileKind};

use super::Context;
use crate::complete::{remote_paths, sandboxes};
use crate::exit::Result;
use crate::files::{absolute, format_mode, modified, name, value};
use crate::time::timestamp;

const EXAMPLES: &str = "\
Examples:
  sandpod ls ID
  sandpod ls ID /etc
  sandpod ls ID /workspace --output json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Directory or file [default: the working directory of commands]
    #[arg(default_value = "", hide_default_value = true, add = remote_paths())]
    path: String,
}

/// Prints its entries, sorted by name.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let path = absolute(&target, &arguments.path)?;
    let sandbox = target.sandbox(&arguments.id).await?.sandbox;
    let info = sandbox.stat(&path, true).await?;
    let mut entries = match info.kind {
        FileKind::Directory => sandbox.list(&path).await?,
        _ => vec![info],
    };
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    if context.output.is_json() {
        return context.output.json(&entries.iter().map(value).collect::<Vec<_>>());
    }
    let rows: Vec<_> = entries.iter().map(row).collect();
    context.output.table(&["MODE", "SIZE", "MODIFIED", "NAME"], &rows)
}

fn row(info: &FileInfo) -> Vec<String> {
    let name = name(&info.path).unwrap_or(&info.path);
    let name = match &info.link_target {
        Some(target) => format!("{name} -> {target}"),
        None if info.kind == FileKind::Directory => format!("{name}/"),
        None => name.to_owned(),
    };
    let modified = modified(info).and_then(timestamp).unwrap_or_else(|| "-".to_owned());
    vec![format_mode(info), info.size.to_string(), modified, name]
}
