//! `sandpod stats`: counts sandboxes, or shows the resource usage of one.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use sandpod::Stats;
use serde_json::{Value, json};

use super::Context;
use crate::complete::sandboxes;
use crate::exit::Result;
use crate::progress::format_size;
use crate::target::Lifetime;
use crate::time::{format_duration, parse_duration};

const EXAMPLES: &str = "\
Examples:
  sandpod stats                     count all sandboxes
  sandpod stats --idle-after 1h
  sandpod stats ID                  show memory, processes and remaining time of one";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id [default: count all sandboxes]
    #[arg(add = sandboxes())]
    id: Option<String>,
    /// Time without a call after which a sandbox counts as idle
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m", conflicts_with = "id")]
    idle_after: Duration,
}

/// Prints the statistics.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    if let Some(id) = arguments.id {
        let provider = target.provider(Lifetime::Persistent).await?;
        let stats = target.reconnect(&provider, &id).await?.sandbox.stats().await?;
        return context.output.value(&value(&stats), || lines(&stats));
    }
    let stats = target.provider(Lifetime::Persistent).await?.stats(arguments.idle_after).await?;
    if context.output.is_json() {
        return context.output.json(&json!({
            "total": stats.total,
            "running": stats.running,
            "warm": stats.warm,
            "idle": stats.idle,
            "thread_ids": stats.thread_ids,
        }));
    }
    let numbers = [stats.total, stats.running, stats.warm, stats.idle, stats.thread_ids.len()];
    let row = numbers.map(|number| number.to_string()).to_vec();
    context.output.table(&["TOTAL", "RUNNING", "WARM", "IDLE", "THREADS"], &[row])
}

fn value(stats: &Stats) -> Value {
    json!({
        "uptime_seconds": stats.uptime.as_secs(),
        "memory_bytes": stats.memory_bytes,
        "memory_limit_bytes": stats.memory_limit_bytes,
        "tasks": stats.tasks,
        "task_limit": stats.task_limit,
        "commands": stats.commands,
        "command_exit": stats.command_exit,
        "ttl_left_seconds": stats.ttl_left.map(|left| left.as_secs()),
        "enforced": {
            "files": stats.enforced.files,
            "network": stats.enforced.network,
            "ports": stats.enforced.ports,
            "processes": stats.enforced.processes,
            "signals": stats.enforced.signals,
            "memory": stats.enforced.memory,
        },
    })
}

fn lines(stats: &Stats) -> String {
    let of = |used: Option<String>, limit: Option<String>| {
        let used = used.unwrap_or_else(|| "unknown".to_owned());
        limit.map_or_else(|| used.clone(), |limit| format!("{used} of {limit}"))
    };
    let number = |number: u64| number.to_string();
    let memory = of(stats.memory_bytes.map(format_size), stats.memory_limit_bytes.map(format_size));
    let tasks = of(stats.tasks.map(number), stats.task_limit.map(number));
    let left =
        stats.ttl_left.map_or_else(|| "never".to_owned(), |left| format!("in {}", format_duration(left)));
    let mut lines = String::new();
    let _ = writeln!(lines, "up:       {}", format_duration(stats.uptime));
    let _ = writeln!(lines, "memory:   {memory}");
    let _ = writeln!(lines, "tasks:    {tasks}");
    let _ = writeln!(lines, "commands: {}", stats.commands);
    let _ = writeln!(lines, "ends:     {left}");
    lines
}
