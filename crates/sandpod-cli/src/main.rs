//! The `sandpod` command: flags in, calls of the library, readable output. It knows the library's front door and the
//! terminal, and nothing of Kubernetes. In a local sandbox it is its own guest: `sandpod guest` is what
//! runs in there.
//!
//! [`target`] makes a provider of the options, [`commands`] has one file per command, [`output`] prints results and
//! [`exit`] says how it ended.

#![expect(clippy::doc_markdown, reason = "comments on arguments are the help that people read in a terminal")]

mod commands;
mod counted;
mod exit;
mod files;
mod follow;
mod interrupt;
mod output;
mod processes;
mod progress;
mod session;
mod target;
mod terminal;
mod time;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::{Command, Context};
use crate::exit::Failure;

const ABOUT: &str = "\
Examples:
  sandpod run 'echo hello'                       a command in a new sandbox on this machine
  sandpod run --mode raw -n agents 'echo hello'  the same in a Pod
  sandpod create                                 a sandbox that stays; prints its id
  sandpod exec ID -- ls -l                       a command in it
  sandpod shell ID                               a terminal in it
  sandpod cp ./project ID:/workspace             files into it
  sandpod delete ID                              its end";

/// Sandboxes for AI agents, on Kubernetes or on this machine.
#[derive(Parser)]
#[command(
    name = "sandpod",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = ABOUT,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    options: target::Options,
    #[command(flatten)]
    output: output::Output,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    // Before any thread is started, for namespaces can't be entered by more than one, and before the command line is
    // made, which takes longer than a guest takes for its root.
    if std::env::args_os().skip(1).eq([target::GUEST]) {
        return sandpod_guest::local::run();
    }
    let Cli { options, output, command } = Cli::parse();
    output.log();
    // One thread: a command mostly waits, and to wake another one takes longer than what there is to do.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(cause) => return report(&Failure::local("start", &cause)),
    };
    let ended = runtime.block_on(commands::run(command, Context { options, output }));
    // Somebody may still wait for a key on stdin.
    runtime.shutdown_background();
    ended.unwrap_or_else(|failure| report(&failure))
}

/// Says what went wrong, and what to do next.
fn report(failure: &Failure) -> ExitCode {
    if !failure.is_silent() {
        #[expect(clippy::print_stderr, reason = "errors go to the terminal")]
        {
            eprintln!("{failure}");
        }
    }
    failure.exit_code()
}

/// The command line, for completions and for tests of its help.
fn command_line() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}
