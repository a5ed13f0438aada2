//! `sandpod info`: prints the details of a sandbox.

use std::fmt::Write as _;

use clap::Args;
use sandpod::{GuestDelivery, SandboxInfo};
use serde_json::{Value, json};

use super::Context;
use crate::complete::sandboxes;
use crate::exit::Result;
use crate::output::Output;
use crate::target::{Lifetime, Target};
use crate::time::{format_remaining, timestamp};

/// The status of a sandbox that ended before its time.
pub(super) const LOST: &str = "lost";

const EXAMPLES: &str = "\
Examples:
  sandpod info ID
  sandpod info ID --output json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
}

/// Prints the sandbox.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let target = context.target()?;
    let provider = target.provider(Lifetime::Persistent).await?;
    let info = target.info(&provider, &arguments.id).await?;
    print(&info, &target, &context.output)
}

/// Prints one sandbox.
pub(super) fn print(info: &SandboxInfo, target: &Target, output: &Output) -> Result<()> {
    if output.is_quiet() && !output.is_json() {
        return output.text(info.id.as_str());
    }
    output.value(&value(info, target), || lines(info, target))
}

/// A sandbox as JSON.
pub(super) fn value(info: &SandboxInfo, target: &Target) -> Value {
    json!({
        "id": info.id.as_str(),
        "mode": target.mode.as_str(),
        "namespace": info.namespace,
        "status": status(info),
        "generation": info.generation,
        "created_at": info.created_at.and_then(timestamp),
        "last_activity": info.last_activity.and_then(timestamp),
        "expires_at": info.expires_at.and_then(timestamp),
        "thread_id": info.thread_id,
        "labels": info.labels,
        "annotations": info.annotations,
        "durable_dirs": info.durable_dirs,
        "network": info.network,
        "limits": info.limits,
        "policy_sha256": info.policy_sha256,
        "guest_delivery": info.guest_delivery.map(GuestDelivery::as_str),
        "state_dir": info.state_dir,
    })
}

/// Explains a network in words.
fn describe_network(network: &str) -> &str {
    match network {
        "host" => "open (that of this machine)",
        network => network,
    }
}

/// The beginning of the policy's hash, as with commits.
pub(super) fn format_policy(info: &SandboxInfo) -> String {
    let hash = info.policy_sha256.as_ref();
    hash.map_or_else(
        || "none".to_owned(),
        |hash| format!("sha256:{}", hash.chars().take(12).collect::<String>()),
    )
}

/// The status of a sandbox. `lost`: it ended before its time, and a further use of its id may bring it back.
pub(super) fn status(info: &SandboxInfo) -> &'static str {
    if info.is_lost { LOST } else { info.status.as_str() }
}

fn lines(info: &SandboxInfo, target: &Target) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(lines, "{:13} {value}", format!("{name}:"));
    };
    line("id", info.id.as_str());
    line("mode", target.mode.as_str());
    if !info.namespace.is_empty() {
        line("namespace", &info.namespace);
    }
    line("status", status(info));
    line("generation", &info.generation.to_string());
    line("created", &info.created_at.and_then(timestamp).unwrap_or_else(|| "not yet".to_owned()));
    if let Some(used) = info.last_activity.and_then(timestamp) {
        line("last used", &used);
    }
    line("ends", &format_remaining(info.expires_at));
    if let Some(network) = &info.network {
        line("network", describe_network(network));
    }
    line("policy", &format_policy(info));
    for (resource, limit) in info.limits.iter().filter(|(_, limit)| *limit != "none") {
        line(resource, limit);
    }
    if let Some(delivery) = &info.guest_delivery {
        let reason = info.guest_delivery_reason.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
        line("guest", &format!("{}{reason}", delivery.as_str()));
    }
    if let Some(dir) = &info.state_dir {
        line("state", &dir.display().to_string());
    }
    for dir in &info.durable_dirs {
        line("survives", dir);
    }
    for (key, value) in &info.labels {
        line("label", &format!("{key}={value}"));
    }
    lines
}
