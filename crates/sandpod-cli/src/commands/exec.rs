//! `sandpod exec`: a command in a sandbox that is there.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sandpod::{CallError, Command, ErrorCode, ExecuteOptions, Exit, Process, Sandbox, StartOptions};
use serde_json::json;

use super::Context;
use crate::exit::{Failure, Result};
use crate::follow::{Sink, exit_code, follow, send_input};
use crate::interrupt::Interrupts;
use crate::output::{Output, say};
use crate::terminal::may_read;
use crate::time::parse_length;

/// What is sent when Ctrl-C didn't help.
const SIGKILL: i32 = 9;

const EXAMPLES: &str = "\
The exit code is the command's own; 125 if it never started. Ctrl-C is passed on; the second one kills.

Examples:
  sandpod exec ID -- ls -l /workspace
  sandpod exec ID -c 'cd /tmp && ls | wc -l'
  sandpod exec ID --timeout 5m --env LEVEL=3 -- python3 job.py
  sandpod exec ID --detach -c 'python3 -m http.server'     prints its name, for logs and attach
  sandpod exec ID --detach --stdin -- python3 -i           takes what attach sends
  while read -r name; do sandpod exec ID --no-stdin -- touch \"$name\"; done < names
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
    /// With --detach: its input stays open for what attach sends
    #[arg(long, requires = "detach", conflicts_with = "no_stdin")]
    stdin: bool,
}

// How a command runs. No doc comment: it would take the place of what the command says of itself.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct How {
    /// End it after so long, with all that it started; 0: never [default: default_exec_timeout, where it is set]
    #[arg(long, value_name = "LENGTH", value_parser = parse_length)]
    timeout: Option<Duration>,
    /// A variable of the command; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Where it runs, if not in the sandbox's own directory
    #[arg(long, short, value_name = "DIRECTORY")]
    workdir: Option<String>,
    /// Leave our stdin alone; the command's own is empty
    #[arg(long)]
    no_stdin: bool,
}

impl How {
    /// The same, but for no longer than the configuration says, unless it says itself how long.
    pub(crate) fn limited(self, configured: Option<Duration>) -> Self {
        Self { timeout: self.timeout.or(configured), ..self }
    }

    /// Whether what comes on our stdin is for the command.
    fn sends_input(&self) -> bool {
        !self.no_stdin && may_read()
    }

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
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("'{text}' is no variable: write LEVEL=3"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// What a signal to us means for the command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OnSignal {
    /// It gets the signal; the second one kills it.
    Pass,
    /// It ends with its sandbox.
    End,
}

/// How a command ended, and what is left to print of it.
pub(crate) struct Ran {
    pub(crate) ended: Result<Exit>,
    pub(crate) sink: Sink,
    /// How long it might take.
    pub(crate) timeout: Option<Duration>,
}

impl Ran {
    /// Prints what is left and says with which exit code we end.
    pub(crate) fn report(self, output: &Output) -> Result<ExitCode> {
        let no_start = self.ended.as_ref().ok().and_then(|exit| self.sink.no_start(exit));
        if let Sink::Kept(kept) = &self.sink {
            let mut value = kept.value(self.ended.as_ref().map(Some));
            let timed_out = self.ended.as_ref().is_ok_and(|exit| exit.timed_out);
            value.insert("timed_out".to_owned(), json!(timed_out));
            value.extend(no_start.as_ref().and_then(Failure::value).map(|error| ("error".to_owned(), error)));
            output.json(&value)?;
            no_start.map_or(Ok(()), |failure| Err(failure.printed()))?;
        } else if let Some(no_start) = no_start {
            // The guest has said why, without an end of the line.
            say(&format!("\n  next: {}", no_start.next()));
        }
        let exit = self.ended.map_err(Failure::printed)?;
        if let Some(note) = &exit.note {
            output.note(note);
        }
        if let Some(timeout) = self.timeout.filter(|_| exit.timed_out) {
            output.note(&format!("Command timed out after {}s", timeout.as_secs()));
        }
        Ok(ExitCode::from(exit_code(&exit)))
    }
}

/// Runs the command and answers with its exit code.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let command = arguments.line.map_or(Command::Argv(arguments.argv), Command::Line);
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let finding = async { target.sandbox(&arguments.id).await.map_err(Failure::before_start) };
    let handle = interrupts.or(finding).await?;
    if arguments.detach {
        let options = StartOptions { stdin: arguments.stdin, ..arguments.how.options().into() };
        let process = handle.sandbox.start(command, options).await;
        let process = process.map_err(Failure::of_start)?;
        let name = process.name();
        context
            .output
            .value(&json!({ "sandbox": handle.id.as_str(), "process": name }), || name.to_owned())?;
        return Ok(ExitCode::SUCCESS);
    }
    let how = arguments.how.limited(target.exec_timeout());
    let ran = show(&handle.sandbox, command, &how, OnSignal::Pass, &context.output, &mut interrupts).await?;
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
    let stdin = how.sends_input();
    let options = StartOptions { paced: true, stdin, ..how.options().into() };
    let process = sandbox.start(command, options).await;
    let process = process.map_err(Failure::of_start)?;
    let input = stdin.then(|| send_input(process.clone(), output.clone()));
    let mut sink = Sink::new(output);
    let followed = until_end(&process, on_signal, follow(&process, 0, &mut sink, output), interrupts).await;
    if let Some(input) = input {
        input.abort();
    }
    let is_ended_by_timeout = followed.as_ref().is_err_and(Failure::is_timeout);
    if followed.is_err() && !is_ended_by_timeout && on_signal == OnSignal::Pass {
        // Nobody reads what it writes any more, so that it would wait for ever.
        let _ = process.signal(SIGKILL).await;
    }
    Ok(Ran { ended: followed.map_err(Failure::after_start), sink, timeout: how.timeout })
}

async fn until_end(
    process: &Process,
    on_signal: OnSignal,
    following: impl Future<Output = Result<Exit>>,
    interrupts: &mut Interrupts,
) -> Result<Exit> {
    let mut following = std::pin::pin!(following);
    let mut ends = on_signal == OnSignal::End;
    loop {
        tokio::select! {
            exit = &mut following => return exit,
            signal = interrupts.next() => {
                if ends {
                    return Err(Failure::interrupted(signal));
                }
                ends = true;
                pass(process, signal).await?;
            }
        }
    }
}

/// Sends a signal. What has ended already is followed to its end all the same.
async fn pass(process: &Process, signal: i32) -> Result<()> {
    match process.signal(signal).await {
        Err(CallError::Failure(failure)) if failure.code() == ErrorCode::NotFound => Ok(()),
        sent => Ok(sent?),
    }
}
