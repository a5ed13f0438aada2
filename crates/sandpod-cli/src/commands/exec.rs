//! `sandpod exec`: a command in a sandbox that is there.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sandpod::{Command, ExecuteOptions, Exit, Process, Sandbox, StartOptions};
use serde_json::json;

use super::Context;
use crate::exit::{Failure, Result};
use crate::follow::{Sink, exit_code, follow, send_input};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::time::parse_length;

/// What is sent when Ctrl-C didn't help.
const SIGKILL: i32 = 9;

const EXAMPLES: &str = "\
The exit code is the command's own; 125 if it never started. Ctrl-C is passed on; the second one kills.

Examples:
  sandpod exec ID -- ls -l /workspace
  sandpod exec ID -c 'cd /tmp && ls | wc -l'
  sandpod exec ID --timeout 5m --env LEVEL=3 -- python3 job.py
  sandpod exec ID --detach -c 'python3 -m http.server'     prints its name, for logs, attach and kill
  tar c . | sandpod exec ID -- tar x -C /workspace";

#[derive(Args)]
#[command(
    override_usage = "sandpod exec [OPTIONS] ID -- PROGRAM [ARGUMENT]...\n       sandpod exec [OPTIONS] ID -c 'LINE'",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
    /// A line for the shell
    #[arg(
        short = 'c',
        long = "line",
        value_name = "LINE",
        required_unless_present = "argv",
        conflicts_with = "argv"
    )]
    line: Option<String>,
    /// A program and its arguments, without a shell
    #[arg(last = true)]
    argv: Vec<String>,
    #[command(flatten)]
    how: How,
    /// Start it, print its name and leave it alone
    #[arg(long, short)]
    detach: bool,
}

/// How a command runs.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct How {
    /// End it after so long, with all that it started
    #[arg(long, value_name = "LENGTH", value_parser = parse_length)]
    timeout: Option<Duration>,
    /// A variable of the command; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Where it runs, if not in the sandbox's own directory
    #[arg(long, short, value_name = "DIRECTORY")]
    workdir: Option<String>,
}

impl How {
    pub(crate) fn options(&self) -> ExecuteOptions {
        ExecuteOptions {
            timeout: self.timeout,
            env: self.env.iter().cloned().collect(),
            working_dir: self.workdir.clone(),
            ..ExecuteOptions::default()
        }
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("'{text}' is no variable: write LEVEL=3"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// What a signal to us means for the command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OnSignal {
    /// It gets the signal; the second one kills it.
    Pass,
    /// It is killed.
    Kill,
}

/// How a command ended, and what is left to print of it.
pub(crate) struct Ran {
    pub(crate) exit: Exit,
    pub(crate) sink: Sink,
    /// How long it might take.
    pub(crate) timeout: Option<Duration>,
}

impl Ran {
    /// Prints what is left and says with which exit code we end.
    pub(crate) fn report(&self, output: &Output) -> Result<ExitCode> {
        if let Some(note) = &self.exit.note {
            output.note(note);
        }
        if let Some(timeout) = self.timeout.filter(|_| self.exit.timed_out) {
            output.note(&format!("Command timed out after {}s", timeout.as_secs()));
        }
        if let Sink::Kept(kept) = &self.sink {
            output.json(&json!({
                "exit_code": self.exit.exit_code,
                "stdout": String::from_utf8_lossy(&kept.stdout),
                "stderr": String::from_utf8_lossy(&kept.stderr),
                "truncated": kept.truncated,
                "timed_out": self.exit.timed_out,
            }))?;
        }
        Ok(ExitCode::from(exit_code(&self.exit)))
    }
}

/// Runs the command and answers with its exit code.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let command = arguments.line.map_or(Command::Argv(arguments.argv), Command::Line);
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let handle = tokio::select! {
        handle = target.sandbox(&arguments.id) => handle.map_err(Failure::before_start)?,
        signal = interrupts.next() => return Err(Failure::interrupted(signal)),
    };
    if arguments.detach {
        let process = handle.sandbox.start(command, arguments.how.options()).await;
        let process = process.map_err(|error| Failure::from(error).before_start())?;
        let name = process.name();
        context
            .output
            .value(&json!({ "sandbox": handle.id.as_str(), "process": name }), || name.to_owned())?;
        return Ok(ExitCode::SUCCESS);
    }
    let ran =
        show(&handle.sandbox, command, &arguments.how, OnSignal::Pass, &context.output, &mut interrupts)
            .await?;
    ran.report(&context.output)
}

/// Starts a command and shows its output as it comes.
pub(super) async fn show(
    sandbox: &Sandbox,
    command: Command,
    how: &How,
    on_signal: OnSignal,
    output: &Output,
    interrupts: &mut Interrupts,
) -> Result<Ran> {
    let options = StartOptions { run: how.options(), paced: true, stdin: true, ..StartOptions::default() };
    let process = sandbox.start(command, options).await;
    let process = process.map_err(|error| Failure::from(error).before_start())?;
    let input = send_input(process.clone());
    let mut sink = Sink::new(output);
    let followed = until_end(&process, on_signal, follow(&process, 0, &mut sink, output), interrupts).await;
    input.abort();
    if followed.is_err() {
        // Nobody reads what it writes any more, so that it would wait for ever.
        let _ = process.signal(SIGKILL).await;
    }
    Ok(Ran { exit: followed.map_err(Failure::after_start)?, sink, timeout: how.timeout })
}

async fn until_end(
    process: &Process,
    on_signal: OnSignal,
    following: impl Future<Output = Result<Exit>>,
    interrupts: &mut Interrupts,
) -> Result<Exit> {
    let mut following = std::pin::pin!(following);
    let mut kills = on_signal == OnSignal::Kill;
    loop {
        tokio::select! {
            exit = &mut following => return exit,
            signal = interrupts.next() => {
                if kills {
                    return Err(Failure::interrupted(signal));
                }
                kills = true;
                process.signal(signal).await?;
            }
        }
    }
}
