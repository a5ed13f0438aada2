//! The `sandpod` command: it parses arguments, calls the library and prints results. It uses the library's public interface
//! only, nothing of Kubernetes. Where no guest is installed, the command is also the guest of local sandboxes
//! (`sandpod guest`).
//!
//! [`target`] opens a provider from the options, [`commands`] has one file per command, [`output`] prints results, and
//! [`exit`] maps failures to messages and exit codes.

#![expect(
    clippy::doc_markdown,
    reason = "doc comments of arguments are printed as help, where backticks would show"
)]

mod commands;
mod complete;
mod creation;
mod exit;
mod files;
mod follow;
mod help;
mod interactive;
mod interrupt;
mod line;
mod manifest;
mod output;
mod processes;
mod progress;
mod target;
mod terminal;
mod time;
mod tracked_file;
mod usage;
mod variables;
mod words;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use sandpod::EmbeddedGuest;

use crate::commands::{Command, Context};
use crate::exit::Failure;
use crate::output::Output;

/// The guests that this command places into Pods. A build by cargo alone has none.
const GUESTS: &[EmbeddedGuest] = include!(concat!(env!("OUT_DIR"), "/guests.rs"));

const ABOUT: &str = "\
Examples:
  sandpod run echo hello                       run a command in a new sandbox on this machine
  sandpod run --mode raw -n agents echo hello  run it in a Pod
  sandpod create                               create a sandbox that is kept
  sandpod exec ID ls -l                        run a command in it
  sandpod shell ID                             open a shell in it
  sandpod cp ./project ID:/workspace           copy files into it
  sandpod delete ID                            delete it";

/// Time for an interrupted copy to remove its incomplete files.
const COPY_CLEANUP: Duration = Duration::from_secs(10);

/// Run commands in sandboxes for AI agents, on Kubernetes or on this machine
#[derive(Parser)]
#[command(
    name = "sandpod",
    version,
    arg_required_else_help = true,
    override_usage = "sandpod [OPTIONS] COMMAND [ARGUMENT]...",
    after_help = ABOUT,
    help_template = help::TEMPLATE,
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
    // Before any thread starts, because a process with several threads cannot unshare its user namespace; and before clap
    // builds the command line, which takes longer than the start of a guest.
    if std::env::args_os().skip(1).eq([target::GUEST]) {
        return guest();
    }
    // Ends the process if a shell asks for completions.
    clap_complete::CompleteEnv::with_factory(command_line).complete();
    let parsed = help::for_arguments(command_line())
        .try_get_matches()
        .and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    let Cli { options, output, command } = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage::report(error),
    };
    output.log();
    sandpod::embed_guests(GUESTS);
    // One thread: a command mostly waits, and waking another thread costs more than its work.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(cause) => return report(&Failure::local("start", &cause), &output),
    };
    let context = Context { options, output };
    // The file operations of a copy end soon; a blocking read of stdin in other commands may never end.
    let shutdown_timeout = if command.copies() { COPY_CLEANUP } else { Duration::ZERO };
    let ended = runtime.block_on(commands::run(command, &context));
    runtime.shutdown_timeout(shutdown_timeout);
    ended.unwrap_or_else(|failure| report(&failure, &context.output))
}

/// Runs the guest of a local sandbox. Its creator passes a socket as stdin and sends all settings through it.
fn guest() -> ExitCode {
    let is_socket = |stat: rustix::fs::Stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket();
    if rustix::fs::fstat(std::io::stdin()).is_ok_and(is_socket) {
        return sandpod_guest::local::run();
    }
    let failure = Failure::usage(
        "`sandpod guest` is internal: the command runs in a local sandbox as its guest.",
        "Create a sandbox with `sandpod create`.",
    );
    output::print_failure(&failure);
    failure.exit_code()
}

/// Prints the failure on stderr, and on stdout too where output is JSON.
fn report(failure: &Failure, output: &Output) -> ExitCode {
    if let Some(value) = failure.value() {
        output::print_failure(failure);
        if output.is_json() && !failure.is_printed() {
            let _ = output.json(&serde_json::json!({ "error": value })); // The failure is on stderr in any case.
        }
    }
    failure.exit_code()
}

/// The command line, for completions and suggestions.
fn command_line() -> clap::Command {
    Cli::command()
}
