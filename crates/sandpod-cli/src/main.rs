//! The `sandpod` command: flags in, one call of the library, readable output. It knows the
//! library's front door and the terminal, and neither Kubernetes nor the guest.

use clap::Parser;

/// Sandboxes for AI agents, on Kubernetes or on this machine.
#[derive(Parser)]
#[command(name = "sandpod", version)]
struct Cli {}

fn main() {
    Cli::parse();
}
