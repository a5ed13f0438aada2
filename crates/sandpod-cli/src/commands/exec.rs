//! `sandpod exec`: runs a command in an existing sandbox.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sandpod::{CallError, Command, ErrorCode, ExecuteOptions, Exit, Process, Sandbox, StartOptions};
use serde_json::json;

use super::Context;
use crate::exit::{Failure, Result};
use crate::follow::{Sink, exit_code, follow, send_input};
use crate::interrupt::Interrupts;
use crate::output::{Output, print_to_stderr};
use crate::terminal::can_read_stdin;
use crate::time::parse_duration;

/// The signal for a command that ignores the first interrupt.
const SIGKILL: i32 = 9;

const EXAMPLES: &str = "\
The exit code is the command's, or 125 if it was not started. The first Ctrl-C is forwarded to the command, the second \
kills it.

Examples:
  sandpod exec ID -- ls -l /workspace
  sandpod exec ID -c 'cd /tmp && ls | wc -l'
  sandpod exec ID --timeout 5m --env LEVEL=3 -- python3 job.py
  sandpod exec ID --detach -c 'python3 -m http.server'     prints the name for logs and attach
  sandpod exec ID --detach --stdin -- python3 -i           reads the input of attach
  while read -r name; do sandpod exec ID --no-stdin -- touch \"$name\"; done < names
  tar c . | sandpod exec ID -- tar x -C /workspace";

#[derive(Args)]
#[command(
    override_usage = "sandpod exec [OPTIONS] ID -- PROGRAM [ARGUMENT]...\n       sandpod exec [OPTIONS] ID -c 'LINE'",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    /// Sandbox id
    id: String,
    /// Command line for the shell
    #[arg(
        short = 'c',
        long = "line",
        value_name = "LINE",
        required_unless_present = "argv",
        conflicts_with = "argv"
    )]
    line: Option<String>,
    /// Program and arguments, without a shell
    #[arg(last = true)]
    argv: Vec<String>,
    #[command(flatten)]
    options: CommandOptions,
    /// Start the command in the background and print its name
    #[arg(long, short)]
    detach: bool,
    /// Keep stdin open for attach
    #[arg(long, requires = "detach", conflicts_with = "no_stdin")]
    stdin: bool,
}

// The options of commands in a sandbox. No doc comment: it would replace the help of the command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CommandOptions {
    /// Time after which the command and its child processes are killed; 0 disables it [default: default_exec_timeout, if set]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Environment variable of the command; may be repeated
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Working directory [default: that of the sandbox]
    #[arg(long, short, value_name = "DIRECTORY")]
    workdir: Option<String>,
    /// Do not read stdin; the command gets an empty one
    #[arg(long)]
    no_stdin: bool,
}

impl CommandOptions {
    /// Applies the configured timeout, unless `--timeout` is given.
    pub(crate) fn with_default_timeout(self, configured: Option<Duration>) -> Self {
        Self { timeout: self.timeout.or(configured), ..self }
    }

    /// Reports whether our stdin is sent to the command.
    fn sends_input(&self) -> bool {
        !self.no_stdin && can_read_stdin()
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
        .ok_or_else(|| format!("'{text}' is not a variable such as LEVEL=3"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The effect of a signal on the command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OnInterrupt {
    /// The first signal is forwarded; the second ends us and kills the command.
    Forward,
    /// We end, and the sandbox is deleted with the command.
    End,
}

/// The end of a command, with the output that is not printed yet.
pub(crate) struct Finished {
    pub(crate) ended: Result<Exit>,
    pub(crate) sink: Sink,
    /// The timeout of the command.
    pub(crate) timeout: Option<Duration>,
}

impl Finished {
    /// Prints the rest of the output and returns our exit code.
    pub(crate) fn report(self, output: &Output) -> Result<ExitCode> {
        let start_failure = self.ended.as_ref().ok().and_then(|exit| self.sink.start_failure(exit));
        if let Sink::Captured(captured) = &self.sink {
            let mut value = captured.value(self.ended.as_ref().map(Some));
            let timed_out = self.ended.as_ref().is_ok_and(|exit| exit.timed_out);
            value.insert("timed_out".to_owned(), json!(timed_out));
            value.extend(
                start_failure.as_ref().and_then(Failure::value).map(|error| ("error".to_owned(), error)),
            );
            output.json(&value)?;
            start_failure.map_or(Ok(()), |failure| Err(failure.printed()))?;
        } else if let Some(start_failure) = start_failure {
            // The message of the guest on stderr has no line break.
            print_to_stderr(&format!("\n  next: {}", start_failure.next()));
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

/// Runs the command and returns its exit code.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let command = arguments.line.map_or(Command::Argv(arguments.argv), Command::Line);
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let finding = async { target.sandbox(&arguments.id).await.map_err(Failure::before_start) };
    let handle = interrupts.unless_interrupted(finding).await?;
    if arguments.detach {
        let options = StartOptions { stdin: arguments.stdin, ..arguments.options.options().into() };
        let process = handle.sandbox.start(command, options).await;
        let process = process.map_err(Failure::of_start)?;
        let name = process.name();
        context
            .output
            .value(&json!({ "sandbox": handle.id.as_str(), "process": name }), || name.to_owned())?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = arguments.options.with_default_timeout(target.exec_timeout());
    let ran = run_attached(
        &handle.sandbox,
        command,
        &options,
        OnInterrupt::Forward,
        &context.output,
        &mut interrupts,
    )
    .await?;
    ran.report(&context.output)
}

/// Starts a command and prints its output as it arrives.
pub(super) async fn run_attached(
    sandbox: &Sandbox,
    command: Command,
    options: &CommandOptions,
    on_interrupt: OnInterrupt,
    output: &Output,
    interrupts: &mut Interrupts,
) -> Result<Finished> {
    let stdin = options.sends_input();
    let start = StartOptions { paced: true, stdin, ..options.options().into() };
    let process = sandbox.start(command, start).await;
    let process = process.map_err(Failure::of_start)?;
    let input = stdin.then(|| send_input(process.clone(), output.clone()));
    let mut sink = Sink::new(output);
    let followed =
        wait_forwarding_signals(&process, on_interrupt, follow(&process, 0, &mut sink, output), interrupts)
            .await;
    if let Some(input) = input {
        input.abort();
    }
    let is_ended_by_timeout = followed.as_ref().is_err_and(Failure::is_timeout);
    if followed.is_err() && !is_ended_by_timeout && on_interrupt == OnInterrupt::Forward {
        // Without a reader the command would block on its output for ever.
        let _ = process.signal(SIGKILL).await;
    }
    Ok(Finished { ended: followed.map_err(Failure::after_start), sink, timeout: options.timeout })
}

async fn wait_forwarding_signals(
    process: &Process,
    on_interrupt: OnInterrupt,
    following: impl Future<Output = Result<Exit>>,
    interrupts: &mut Interrupts,
) -> Result<Exit> {
    let mut following = std::pin::pin!(following);
    let mut ends = on_interrupt == OnInterrupt::End;
    loop {
        tokio::select! {
            exit = &mut following => return exit,
            signal = interrupts.next() => {
                if ends {
                    return Err(Failure::interrupted(signal));
                }
                ends = true;
                forward(process, signal).await?;
            }
        }
    }
}

/// Sends a signal. A command that has ended already is no error.
async fn forward(process: &Process, signal: i32) -> Result<()> {
    match process.signal(signal).await {
        Err(CallError::Failure(failure)) if failure.code() == ErrorCode::NotFound => Ok(()),
        sent => Ok(sent?),
    }
}
