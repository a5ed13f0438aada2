//! `sandpod ps`: lists the commands that were started in a sandbox.

use clap::Args;
use sandpod::ProcessInfo;
use serde_json::{Value, json};

use super::Context;
use crate::complete::sandboxes;
use crate::exit::Result;
use crate::progress::format_size;
use crate::time::{format_age, timestamp};

const EXAMPLES: &str = "\
Only the most recent of the ended commands are listed.

Examples:
  sandpod ps ID
  sandpod ps ID --quiet              print the names of running commands only
  sandpod ps ID --output json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
}

/// Prints the commands.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let handle = context.target()?.sandbox(&arguments.id).await?;
    let processes = handle.sandbox.processes().await?;
    if context.output.is_json() {
        return context.output.json(&processes.iter().map(value).collect::<Vec<_>>());
    }
    if context.output.is_quiet() {
        let running = processes.iter().filter(|info| info.exit.is_none());
        let names: Vec<_> = running.map(|info| info.process.name()).collect();
        return context.output.text(&names.join("\n"));
    }
    let rows: Vec<_> = processes.iter().map(row).collect();
    context.output.table(&["PROCESS", "PID", "AGE", "STATE", "OUTPUT", "COMMAND"], &rows)
}

fn state(info: &ProcessInfo) -> String {
    let Some(exit) = &info.exit else { return "running".to_owned() };
    exit.exit_code.map_or_else(|| "ended".to_owned(), |code| format!("exit {code}"))
}

fn row(info: &ProcessInfo) -> Vec<String> {
    vec![
        info.process.name().to_owned(),
        info.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        format_age(Some(info.started)),
        state(info),
        format_size(info.output_end),
        info.command.clone(),
    ]
}

fn value(info: &ProcessInfo) -> Value {
    json!({
        "process": info.process.name(),
        "pid": info.pid,
        "command": info.command,
        "started_at": timestamp(info.started),
        "running": info.exit.is_none(),
        "exit_code": info.exit.as_ref().and_then(|exit| exit.exit_code),
        "output_bytes": info.output_end,
        "terminal": info.terminal,
    })
}
