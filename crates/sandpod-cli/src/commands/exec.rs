//! `sandpod exec`: runs a command in an existing sandbox.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures::StreamExt as _;
use sandpod::{
    CallError, Command, ErrorCode, ErrorKind, Event, ExecuteOptions, Exit, Process, Sandbox, SandboxHandle,
    StartOptions, TerminalSize,
};
use serde_json::json;

use super::Context;
use crate::complete::sandboxes;
use crate::exit::{Failure, NEVER_STARTED, Result};
use crate::follow::{Captured, Sink, exit_code, follow, send_input};
use crate::interactive::{Ended, interact};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::processes::find;
use crate::terminal::{can_read_stdin, is_interactive, size};
use crate::time::{format_seconds, parse_duration};
use crate::variables::Variables;
use crate::words::CommandWords;

/// The signal for a command that ignores the first interrupt.
const SIGKILL: i32 = 9;
/// The signal that a closed terminal sends to its programs.
const SIGHUP: i32 = 1;
/// The terminal type where TERM is not set.
const TERM: &str = "xterm";

/// The guest's note on a command that failed because there is no network.
const NO_NETWORK: &str = "this sandbox has no network";

const EXAMPLES: &str = "\
The exit code is the command's, or 125 if it was not started. On a terminal the command gets one, too: Ctrl-] detaches \
from it. Without a terminal the first Ctrl-C is forwarded to the command, and the second kills it.

Examples:
  sandpod exec ID ls -l /workspace
  sandpod exec ID 'cd /tmp && ls | wc -l'
  sandpod exec --timeout 5m --env LEVEL=3 ID python3 job.py
  sandpod exec --detach ID python3 -m http.server     prints the name for logs and attach
  sandpod exec --detach --stdin ID python3 -i         reads the input of attach
  while read -r name; do sandpod exec --no-stdin ID touch \"$name\"; done < names
  tar c . | sandpod exec ID tar x -C /workspace";

#[derive(Args)]
#[command(
    override_usage = "sandpod exec [OPTIONS] ID PROGRAM [ARGUMENT]...\n       sandpod exec [OPTIONS] ID 'LINE'",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    #[command(flatten)]
    words: CommandWords,
    #[command(flatten)]
    options: CommandOptions,
    /// Start the command in the background and print its name
    #[arg(long, short)]
    detach: bool,
}

// The options of commands in a sandbox. No doc comment: it would replace the help of the command.
#[derive(Args, Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct CommandOptions {
    /// Time after which the command and its child processes are killed; 0 disables it [default: default_exec_timeout, if set]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    variables: Variables,
    /// Working directory [default: that of the sandbox]
    #[arg(long, short, value_name = "DIRECTORY")]
    workdir: Option<String>,
    /// Do not read stdin; the command gets an empty one
    #[arg(long, conflicts_with = "stdin")]
    no_stdin: bool,
    /// Keep stdin open: the default, except with --detach, where attach sends the input
    #[arg(long, short = 'i', visible_alias = "interactive")]
    stdin: bool,
    /// Give the command a terminal: the default if stdin and stdout are one
    #[arg(long, short = 't')]
    tty: bool,
    /// Give the command no terminal
    #[arg(long, short = 'T', conflicts_with = "tty")]
    no_tty: bool,
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

    /// Reports whether the command gets a terminal that ours is connected to. A note says why a requested one is missing.
    fn uses_terminal(&self, output: &Output) -> bool {
        let possible = is_interactive() && self.sends_input() && !output.is_json();
        if self.tty && !possible {
            output.note("the command gets no terminal: stdin or stdout is not one");
        }
        possible && !self.no_tty
    }

    pub(crate) fn options(&self) -> ExecuteOptions {
        ExecuteOptions {
            timeout: self.timeout,
            env: self.variables.all().into_iter().collect(),
            working_dir: self.workdir.clone(),
            ..ExecuteOptions::default()
        }
    }
}

/// The life of the sandbox in which a command runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Keeping {
    /// It outlives us. The first signal is forwarded to the command; the second ends us and kills the command.
    Kept,
    /// It is deleted when we end, also by a signal.
    Temporary,
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
    pub(crate) fn report(mut self, output: &Output) -> Result<ExitCode> {
        let start_failure = self.ended.as_ref().ok().and_then(|exit| self.sink.start_failure(exit));
        if let Sink::Captured(captured) = &self.sink {
            let mut value = captured.value(self.ended.as_ref().map(Some));
            let timed_out = self.ended.as_ref().is_ok_and(|exit| exit.timed_out);
            value.insert("timed_out".to_owned(), json!(timed_out));
            value.extend(
                start_failure.as_ref().and_then(Failure::value).map(|error| ("error".to_owned(), error)),
            );
            output.json(&value)?;
            captured.note_truncation(output);
            start_failure.map_or(Ok(()), |failure| Err(failure.printed()))?;
        } else if let Some(start_failure) = start_failure {
            return Err(start_failure);
        }
        self.sink.print_held()?;
        let exit = self.ended.map_err(Failure::printed)?;
        match exit.note.as_deref() {
            Some(NO_NETWORK) => output.note(&format!("{NO_NETWORK}; see --network")),
            Some(note) => output.note(note),
            None => {}
        }
        if let Some(timeout) = self.timeout.filter(|_| exit.timed_out) {
            output.note(&format!("Command timed out after {}", format_seconds(timeout)));
        }
        Ok(ExitCode::from(exit_code(&exit)))
    }
}

/// Runs the command and returns its exit code.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let command = arguments.words.command()?;
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let finding = async { target.sandbox(&arguments.id).await.map_err(Failure::before_start_unless_usage) };
    let handle = interrupts.unless_interrupted(finding).await?;
    if arguments.detach {
        let CommandOptions { stdin, tty, .. } = arguments.options;
        let terminal = tty.then(TerminalSize::default);
        let options = StartOptions { stdin, terminal, ..arguments.options.options().into() };
        let process = handle.sandbox.start(command, options).await;
        let process = process.map_err(Failure::of_start)?;
        let name = process.name();
        check_start(&handle.sandbox, name).await?;
        context
            .output
            .value(&json!({ "sandbox": handle.id.as_str(), "process": name }), || name.to_owned())?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = arguments.options.with_default_timeout(target.exec_timeout());
    let running =
        Running { handle: &handle, options: &options, keeping: Keeping::Kept, output: &context.output };
    running.run(command, &mut interrupts).await?.report(&context.output)
}

/// Fails if a command in the background was not started, for example because its program does not exist.
async fn check_start(sandbox: &Sandbox, name: &str) -> Result<()> {
    let found = find(sandbox, Some(name)).await.map_err(Failure::after_start)?;
    let Some(exit) = found.exit.filter(|exit| exit.exit_code == Some(NEVER_STARTED.into())) else {
        return Ok(());
    };
    let mut sink = Sink::Captured(Captured::default());
    let mut events = found.process.attach(0);
    while let Some(Event::Output { data, stderr, .. }) = events.next().await.transpose()? {
        sink.write(&data, stderr)?;
    }
    sink.start_failure(&exit).map_or(Ok(()), Err)
}

/// A sandbox, and how a command in it is run and shown.
pub(super) struct Running<'a> {
    pub(super) handle: &'a SandboxHandle,
    pub(super) options: &'a CommandOptions,
    pub(super) keeping: Keeping,
    pub(super) output: &'a Output,
}

impl Running<'_> {
    /// Runs a command until it ends, in a terminal if ours is one, and prints its output as it arrives.
    pub(super) async fn run(&self, command: Command, interrupts: &mut Interrupts) -> Result<Finished> {
        if self.options.uses_terminal(self.output) {
            match self.start_in_terminal(command.clone(), BTreeMap::new()).await {
                // A stock runtime has no terminals.
                Err(error) if error.kind() == ErrorKind::Unsupported && !self.options.tty => {}
                started => return self.interact(started.map_err(Failure::of_start)?, interrupts).await,
            }
        }
        self.stream(command, interrupts).await
    }

    /// Runs a command in a terminal that is connected to ours, with additional variables.
    pub(super) async fn run_in_terminal(
        &self,
        command: Command,
        env: BTreeMap<String, String>,
        interrupts: &mut Interrupts,
    ) -> Result<Finished> {
        let started = self.start_in_terminal(command, env).await.map_err(Failure::of_start)?;
        self.interact(started, interrupts).await
    }

    async fn start_in_terminal(
        &self,
        command: Command,
        env: BTreeMap<String, String>,
    ) -> Result<Process, CallError> {
        let mut run = self.options.options();
        let term = std::env::var("TERM").unwrap_or_else(|_| TERM.to_owned());
        run.env.extend(env);
        run.env.entry("TERM".to_owned()).or_insert(term);
        let terminal = Some(size().unwrap_or_default());
        self.handle
            .sandbox
            .start(command, StartOptions { run, paced: true, terminal, ..Default::default() })
            .await
    }

    async fn interact(&self, process: Process, interrupts: &mut Interrupts) -> Result<Finished> {
        let mut sink = Sink::of_start_in_terminal();
        let ended = match interact(&process, 0, &mut sink, interrupts, self.output).await {
            Ok(Ended::Exit(exit)) => Ok(exit),
            Ok(Ended::Detached) if self.keeping == Keeping::Kept => {
                let (id, name) = (&self.handle.id, process.name());
                self.output
                    .note(&format!("detached; {name} continues: return with `sandpod attach {id} {name}`"));
                Err(Failure::detached())
            }
            Ok(Ended::Detached) => {
                self.output.note("detached; the temporary sandbox is deleted with the command");
                Err(Failure::interrupted(SIGHUP))
            }
            Err(failure) => {
                let _ = process.signal(SIGHUP).await; // The sandbox may be deleted.
                return Err(failure.after_start());
            }
        };
        Ok(Finished { ended, sink, timeout: self.options.timeout })
    }

    async fn stream(&self, command: Command, interrupts: &mut Interrupts) -> Result<Finished> {
        let stdin = self.options.sends_input();
        let start = StartOptions { paced: true, stdin, ..self.options.options().into() };
        let process = self.handle.sandbox.start(command, start).await;
        let process = process.map_err(Failure::of_start)?;
        let input = stdin.then(|| send_input(process.clone(), self.output.clone()));
        let mut sink = Sink::of_start(self.output);
        let following = follow(&process, 0, &mut sink, self.output);
        let followed = wait_forwarding_signals(&process, self.keeping, following, interrupts).await;
        if let Some(input) = input {
            input.abort();
        }
        let is_ended_by_timeout = followed.as_ref().is_err_and(Failure::is_timeout);
        if followed.is_err() && !is_ended_by_timeout && self.keeping == Keeping::Kept {
            // Without a reader the command would block on its output for ever.
            let _ = process.signal(SIGKILL).await;
        }
        Ok(Finished { ended: followed.map_err(Failure::after_start), sink, timeout: self.options.timeout })
    }
}

async fn wait_forwarding_signals(
    process: &Process,
    keeping: Keeping,
    following: impl Future<Output = Result<Exit>>,
    interrupts: &mut Interrupts,
) -> Result<Exit> {
    let mut following = std::pin::pin!(following);
    let mut ends = keeping == Keeping::Temporary;
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
