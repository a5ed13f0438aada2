//! The command line, with sandboxes on this machine.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod configuration;
mod copies;
mod creation;
mod doctor;
#[path = "../support/document.rs"]
mod document;
mod documents;
mod errors;
mod examples;
mod habits;
mod ids;
mod isolation;
mod machine;
mod names;
#[path = "../support/pty.rs"]
mod pty;
mod run;
mod state;
mod terminal;
#[path = "../support/transcript.rs"]
mod transcript;
mod transcripts;
mod user;

use std::process::{Command, Output};

/// `sandpod` with arguments.
fn sandpod(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandpod"));
    command.args(arguments);
    command
}

/// Runs a shell line in a new local sandbox.
fn run(line: &str) -> Output {
    sandpod(&["run", line]).output().expect("sandpod starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
