//! `sandpod list`: lists sandboxes.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use sandpod::{ListOptions, Provider, SandboxInfo, Status};
use serde_json::Value;

use super::{Context, info};
use crate::exit::Result;
use crate::target::{Labels, Lifetime, Target};
use crate::time::{format_age, format_remaining};

const EXAMPLES: &str = "\
Examples:
  sandpod list
  sandpod list --label team=search --status running
  sandpod list --output wide
  sandpod list --json
  sandpod list --quiet | xargs -r sandpod delete";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// List only sandboxes with this status
    #[arg(long, value_enum)]
    status: Option<State>,
    #[command(flatten)]
    labels: Labels,
}

/// The status of a sandbox.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    Running,
    Warm,
    Suspended,
    Pending,
    Terminated,
}

impl From<State> for Status {
    fn from(state: State) -> Self {
        match state {
            State::Running => Self::Running,
            State::Warm => Self::Warm,
            State::Suspended => Self::Suspended,
            State::Pending => Self::Pending,
            State::Terminated => Self::Terminated,
        }
    }
}

/// Prints all pages.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Lifetime::Persistent).await?;
    let labels = target.labels(&arguments.labels);
    let all = all(&provider, labels, arguments.status.map(Status::from)).await?;
    if context.output.is_json() {
        return context
            .output
            .json(&all.iter().map(|info| info::value(info, &target)).collect::<Vec<Value>>());
    }
    if context.output.is_quiet() {
        let ids: Vec<_> = all.iter().map(|info| info.id.as_str()).collect();
        return context.output.text(&ids.join("\n"));
    }
    if context.output.is_wide() {
        let head = ["ID", "STATUS", "AGE", "ENDS", "MODE", "NETWORK", "POLICY", "LIMITS", "USED", "LABELS"];
        let rows: Vec<_> = all.iter().map(|info| wide_row(info, &target)).collect();
        return context.output.table(&head, &rows);
    }
    let rows: Vec<_> = all.iter().map(row).collect();
    context.output.table(&["ID", "STATUS", "AGE", "ENDS", "LABELS"], &rows)
}

/// Reads all pages.
pub(super) async fn all(
    provider: &Provider,
    labels: BTreeMap<String, String>,
    status: Option<Status>,
) -> Result<Vec<SandboxInfo>> {
    let mut options = ListOptions { labels, status, cursor: None };
    let mut all = Vec::new();
    loop {
        let page = provider.list(options.clone()).await?;
        all.extend(page.sandboxes);
        options.cursor = page.cursor;
        if options.cursor.is_none() {
            return Ok(all);
        }
    }
}

fn wide_row(info: &SandboxInfo, target: &Target) -> Vec<String> {
    let limits = info.limits.iter().filter(|(_, limit)| !limit.starts_with("none"));
    // The mechanism of a limit, in parentheses, is shown by `info`.
    let limits: Vec<_> = limits
        .map(|(resource, limit)| format!("{resource}={}", limit.split(" (").next().unwrap_or_default()))
        .collect();
    let mut row = row(info);
    let columns = [
        target.mode.as_str().to_owned(),
        info.network.clone().unwrap_or_else(|| "-".to_owned()),
        info::format_policy(info),
        if limits.is_empty() { "-".to_owned() } else { limits.join(",") },
        format_age(info.last_activity.or(info.created_at)),
    ];
    row.splice(4..4, columns);
    row
}

fn row(info: &SandboxInfo) -> Vec<String> {
    let labels: Vec<_> = info.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    vec![
        info.id.to_string(),
        info::status(info).to_owned(),
        format_age(info.created_at),
        format_remaining(info.expires_at),
        if labels.is_empty() { "-".to_owned() } else { labels.join(",") },
    ]
}
