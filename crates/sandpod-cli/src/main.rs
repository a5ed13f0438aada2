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
mod likeness;
mod manifest;
mod output;
mod processes;
mod progress;
mod session;
mod target;
mod terminal;
mod time;
mod usage;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::commands::{Command, Context};
use crate::exit::Failure;
use crate::output::Output;

const ABOUT: &str = "\
Examples:
  sandpod run 'echo hello'                       a command in a new sandbox on this machine
  sandpod run --mode raw -n agents 'echo hello'  the same in a Pod
  sandpod create                                 a sandbox that stays; prints what it is
  sandpod exec ID -- ls -l                       a command in it
  sandpod shell ID                               a terminal in it
  sandpod cp ./project ID:/workspace             files into it
  sandpod delete ID                              its end";

/// How long a copy that was interrupted may take to remove what is half done.
const SETTLING: Duration = Duration::from_secs(10);

/// Sandboxes for AI agents, on Kubernetes or on this machine.
#[derive(Parser)]
#[command(
    name = "sandpod",
    version,
    arg_required_else_help = true,
    after_help = ABOUT,
    max_term_width = 100
)]
struct Cli {
    #[command(flatten)]
    options: target::Options,
    #[command(flatten)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    // Before any thread is started, for namespaces can't be entered by more than one, and before the command line is
    // made, which takes longer than a guest takes for its root.
    if std::env::args_os().skip(1).eq([target::GUEST]) {
        return guest();
    }
    let Cli { options, output, command } = match Cli::try_parse() {
        Ok(parsed) => parsed,
        Err(error) => return usage::refuse(error),
    };
    output.log();
    // One thread: a command mostly waits, and to wake another one takes longer than what there is to do.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(cause) => return report(&Failure::local("start", &cause), &output),
    };
    let context = Context { options, output };
    // What a copy still does with a file ends soon; others may wait for a key on stdin for ever.
    let patience = if command.copies() { SETTLING } else { Duration::ZERO };
    let ended = runtime.block_on(commands::run(command, &context));
    runtime.shutdown_timeout(patience);
    ended.unwrap_or_else(|failure| report(&failure, &context.output))
}

/// Is the guest of a local sandbox, for whoever makes one: they say all else over a socket.
fn guest() -> ExitCode {
    let is_socket = |stat: rustix::fs::Stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket();
    if rustix::fs::fstat(std::io::stdin()).is_ok_and(is_socket) {
        return sandpod_guest::local::run();
    }
    let failure = Failure::usage(
        "`sandpod guest` is what runs in a local sandbox: there is nothing to do for it here.",
        "Make a sandbox with `sandpod create`.",
    );
    output::say(&failure.to_string());
    failure.exit_code()
}

/// Says what went wrong, and what to do next.
fn report(failure: &Failure, output: &Output) -> ExitCode {
    if let Some(value) = failure.value() {
        output::say(&failure.to_string());
        if output.is_json() && !failure.is_printed() {
            let _ = output.json(&serde_json::json!({ "error": value })); // It was said on stderr, too.
        }
    }
    failure.exit_code()
}

/// The command line, for completions and for tests of its help.
fn command_line() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}
