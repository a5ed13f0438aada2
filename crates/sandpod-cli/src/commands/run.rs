//! `sandpod run`: runs a command in a new sandbox, deletes the sandbox, and exits with the code of the command.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueHint};
use sandpod::{Mode, Provider, SandboxHandle, SandboxRequest};

use super::Context;
use super::cp::copy_in;
use super::exec::{self, Finished, Keeping, Running};
use crate::creation::Creation;
use crate::exit::{Failure, Result};
use crate::interrupt::{Interrupts, OnExisting, create};
use crate::output::Output;
use crate::target::{Labels, Lifetime, Target};
use crate::words::CommandWords;

/// The idle TTL of a sandbox without a configured TTL, in case we cannot delete it. A running command that we follow counts
/// as use.
const IDLE_TTL: Duration = Duration::from_secs(3600);
/// The TTL of a claim without a configured TTL: a stock runtime does not enforce the idle TTL, so the controller ends it.
const CLAIM_TTL: Duration = Duration::from_secs(24 * 3600);

const EXAMPLES: &str = "\
The exit code is the command's, or 125 if it was not started. Ctrl-C ends the command and deletes the sandbox. A local \
sandbox has no network unless --network is given or block_network = false is configured. A sandbox of agent-sandbox mode without --ttl and \
--idle-ttl is deleted after a day at the latest. On a terminal the command gets one, too, and Ctrl-] ends it.

Examples:
  sandpod run python3 -c 'print(1 + 1)'
  sandpod run 'echo hello | tr a-z A-Z'
  sandpod run --mode raw --namespace agents --image python:3.12-slim python3 --version
  sandpod run bash                       opens a terminal if stdin and stdout are one
  sandpod run --network=443 --memory 1g --copy . python3 main.py
  sandpod run --mount ~/data:/data:ro ls /data
  sandpod run wc -l < file
  while read -r line; do sandpod run --no-stdin \"$line\"; done < lines";

#[derive(Args)]
#[command(
    override_usage = "sandpod run [OPTIONS] PROGRAM [ARGUMENT]...\n       sandpod run [OPTIONS] 'LINE'",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    words: CommandWords,
    #[command(flatten)]
    options: exec::CommandOptions,
    /// Directory whose content, or file that, is copied into the working directory before; may be repeated
    #[arg(long = "copy", value_name = "PATH", value_hint = ValueHint::AnyPath)]
    copies: Vec<PathBuf>,
    /// Id of the sandbox [default: random]
    #[arg(long, visible_alias = "name")]
    id: Option<String>,
    /// Accepted and ignored: the sandbox is always deleted
    #[arg(long, hide = true)]
    rm: bool,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    creation: Creation,
}

/// Runs the command and returns its exit code.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    arguments.words.first().map_or(Ok(()), |first| arguments.creation.check_first_word(first))?;
    let command = arguments.words.command()?;
    let target = context.creating_target(arguments.creation)?;
    let request = SandboxRequest { id: arguments.id, ..target.request(&arguments.labels) };
    let options = arguments.options.with_default_timeout(target.exec_timeout());
    let ran = in_new_sandbox(&target, request, &context.output, async |handle, interrupts, output| {
        for path in &arguments.copies {
            let copying = copy_in(&target, &handle.sandbox, path, output);
            interrupts.unless_interrupted(copying).await.map_err(Failure::before_start)?;
        }
        let running = Running { handle, options: &options, keeping: Keeping::Temporary, output };
        running.run(command, interrupts).await
    });
    ran.await?.report(&context.output)
}

/// Creates a sandbox, runs `work` in it, and deletes the sandbox in any case.
pub(super) async fn in_new_sandbox(
    target: &Target,
    mut request: SandboxRequest,
    output: &Output,
    work: impl AsyncFnOnce(&SandboxHandle, &mut Interrupts, &Output) -> Result<Finished>,
) -> Result<Finished> {
    let mut interrupts = Interrupts::listen()?;
    let provider =
        target.creating_provider(Lifetime::Process).await.map_err(Failure::before_start_unless_usage)?;
    if !target.has_ttl() {
        request.idle_ttl = Some(IDLE_TTL);
        request.ttl = (target.mode == Mode::AgentSandbox).then_some(CLAIM_TTL);
    }
    let handle = create(&provider, request, OnExisting::Reject, &mut interrupts, output).await;
    let handle = handle.map_err(Failure::before_start)?;
    let ran = work(&handle, &mut interrupts, output).await;
    delete(&provider, handle.id.as_str(), &mut interrupts, output).await;
    ran
}

/// Deletes the sandbox. A failure is only a note, because the exit code is the command's.
async fn delete(provider: &Provider, id: &str, interrupts: &mut Interrupts, output: &Output) {
    tokio::select! {
        deleted = provider.delete(id, true) => {
            if let Err(error) = deleted {
                output.note(&format!("sandbox {id} was not deleted: {error}"));
            }
        }
        _ = interrupts.next() => output.note(&format!("cleanup was interrupted: sandbox {id} may still exist; check with `sandpod list`")),
    }
}
