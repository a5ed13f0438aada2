//! The `sandpod` command: flags in, one call of the library, readable output. It knows the
//! library's front door and the terminal, and nothing of Kubernetes. In a local sandbox it is its
//! own guest: the hidden subcommand `guest` is what runs in there.

mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Sandboxes for AI agents, on Kubernetes or on this machine.
#[derive(Parser)]
#[command(name = "sandpod", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command in a new sandbox on this machine, then delete the sandbox
    Run(run::Arguments),
    /// Be the guest of a sandbox
    #[command(hide = true)]
    Guest,
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(arguments) => run::run(arguments),
        // Before any thread is started: namespaces can't be entered by more than one.
        Command::Guest => sandpod_guest::local::run(),
    }
}
