//! `sandpod list`: lists sandboxes.

use clap::{Args, ValueEnum};
use sandpod::{ListOptions, SandboxInfo, Status};
use serde_json::Value;

use super::{Context, info};
use crate::exit::Result;
use crate::target::{Labels, Lifetime};
use crate::time::{format_age, format_remaining};

const EXAMPLES: &str = "\
Examples:
  sandpod list
  sandpod list --label team=search --status running
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
    let mut options = ListOptions { labels, status: arguments.status.map(Status::from), cursor: None };
    let mut all: Vec<SandboxInfo> = Vec::new();
    loop {
        let page = provider.list(options.clone()).await?;
        all.extend(page.sandboxes);
        options.cursor = page.cursor;
        if options.cursor.is_none() {
            break;
        }
    }
    if context.output.is_json() {
        return context
            .output
            .json(&all.iter().map(|info| info::value(info, &target)).collect::<Vec<Value>>());
    }
    if context.output.is_quiet() {
        let ids: Vec<_> = all.iter().map(|info| info.id.as_str()).collect();
        return context.output.text(&ids.join("\n"));
    }
    let rows: Vec<_> = all.iter().map(row).collect();
    context.output.table(&["ID", "STATUS", "AGE", "ENDS", "LABELS"], &rows)
}

fn row(info: &SandboxInfo) -> Vec<String> {
    let labels: Vec<_> = info.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    vec![
        info.id.to_string(),
        info.status.as_str().to_owned(),
        format_age(info.created_at),
        format_remaining(info.expires_at),
        if labels.is_empty() { "-".to_owned() } else { labels.join(",") },
    ]
}
