//! `sandpod run`: a new sandbox, one command in it, and its exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use futures::StreamExt as _;
use sandpod::{Command, Event, GuestProgram, LocalConfig, Provider, Sandbox, SandboxRequest, StartOptions};

/// The exit code when the command never started.
const NEVER_STARTED: u8 = 125;
/// The exit code after Ctrl-C, as a shell has it.
const INTERRUPTED: u8 = 130;

type Error = Box<dyn std::error::Error>;

#[derive(Args)]
#[command(override_usage = "sandpod run 'LINE'\n       sandpod run -- PROGRAM [ARGUMENT]...")]
pub(crate) struct Arguments {
    /// A line for the shell
    #[arg(required_unless_present = "argv", conflicts_with = "argv")]
    line: Option<String>,
    /// A program and its arguments, without a shell
    #[arg(last = true)]
    argv: Vec<String>,
}

/// Runs the command and answers with its exit code.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let command = arguments.line.map_or(Command::Argv(arguments.argv), Command::Line);
    let code = tokio::runtime::Runtime::new()
        .map_err(Error::from)
        .and_then(|runtime| runtime.block_on(in_sandbox(command)));
    code.map_or_else(
        |error| {
            #[expect(clippy::print_stderr, reason = "errors go to the terminal")]
            {
                eprintln!("error: {error}");
            }
            ExitCode::from(NEVER_STARTED)
        },
        ExitCode::from,
    )
}

/// Makes a sandbox, runs the command until it ends or Ctrl-C, and ends the sandbox.
async fn in_sandbox(command: Command) -> Result<u8, Error> {
    // Our own program, found in a way that works for the user whom the guest runs as.
    let program = GuestProgram { path: "/proc/self/exe".into(), args: vec!["guest".to_owned()] };
    let config = LocalConfig { program: Some(program), ends_with_process: true, ..LocalConfig::default() };
    let provider = Provider::local(&config)?;
    let handle = provider.get_or_create(SandboxRequest::default()).await?;
    let code = tokio::select! {
        code = show(&handle.sandbox, command) => code,
        _ = tokio::signal::ctrl_c() => Ok(INTERRUPTED),
    };
    provider.delete(handle.id.as_str(), true).await?;
    code
}

/// Starts the command and shows its output as it comes.
async fn show(sandbox: &Sandbox, command: Command) -> Result<u8, Error> {
    let process = sandbox.start(command, StartOptions { paced: true, ..StartOptions::default() }).await?;
    let mut events = process.attach(0);
    while let Some(event) = events.next().await {
        match event? {
            Event::Output { data, stderr: false, .. } => write(&mut io::stdout(), &data)?,
            Event::Output { data, stderr: true, .. } => write(&mut io::stderr(), &data)?,
            Event::Hole { from, until } => {
                return Err(format!(
                    "{} bytes of output were lost: they came faster than they were shown",
                    until - from
                )
                .into());
            }
            Event::Exit(exit) => {
                return Ok(exit.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
            }
        }
    }
    Err("the sandbox ended before the command did".into())
}

fn write(mut terminal: impl Write, data: &[u8]) -> io::Result<()> {
    terminal.write_all(data)?;
    terminal.flush()
}
