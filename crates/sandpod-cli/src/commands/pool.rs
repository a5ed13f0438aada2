//! `sandpod pool`: shows the warm pool.

use clap::{Args, Subcommand};
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::target::Lifetime;

const EXAMPLES: &str = "\
Examples:
  sandpod pool status --mode raw --namespace agents";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show the numbers of available and used Pods
    #[command(after_help = EXAMPLES)]
    Status,
}

/// Prints the status.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let Action::Status = arguments.action;
    let pool = context.target()?.provider(Lifetime::Persistent).await?.pool_status().await?;
    if context.output.is_json() {
        return context.output.json(&json!({
            "available": pool.available,
            "active": pool.active,
            "total": pool.total,
            "target": pool.target,
        }));
    }
    let row =
        [pool.available, pool.active, pool.total, pool.target].map(|number| number.to_string()).to_vec();
    context.output.table(&["AVAILABLE", "ACTIVE", "TOTAL", "TARGET"], &[row])
}
