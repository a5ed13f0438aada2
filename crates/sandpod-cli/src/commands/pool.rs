//! `sandpod pool`: how the warm pool is filled.

use clap::{Args, Subcommand};
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::target::Stay;

const EXAMPLES: &str = "\
Examples:
  sandpod pool status --mode raw --namespace agents";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// How many wait, and how many are in use
    #[command(after_help = EXAMPLES)]
    Status,
}

/// Prints it.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let What::Status = arguments.what;
    let pool = context.target()?.provider(Stay::Kept).await?.pool_status().await?;
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
