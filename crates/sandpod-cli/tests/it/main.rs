//! The command as people type it, and local sandboxes whose guest it is.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod configuration;
mod copies;
mod doctor;
mod guard;
mod isolation;
mod losses;
mod machine;
mod names;
mod person;
mod provider;
#[path = "../support/pty.rs"]
mod pty;
mod run;
mod terminal;
#[path = "../support/transcript.rs"]
mod transcript;
mod transcripts;

use std::process::{Command, Output};

/// `sandpod` with arguments.
fn sandpod(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandpod"));
    command.args(arguments);
    command
}

/// What a shell line does in a new local sandbox.
fn run(line: &str) -> Output {
    sandpod(&["run", line]).output().expect("sandpod starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
