//! `sandpod run`: a new sandbox, one command in it, its exit code, and the sandbox's end.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use sandpod::{Command, Mode, Provider, Sandbox};

use super::Context;
use super::exec::{self, OnSignal, Ran};
use crate::exit::{Failure, Result};
use crate::interrupt::{Interrupts, make};
use crate::output::Output;
use crate::target::{Labels, Stay, Target};

/// A sandbox of ours that we can't delete ends so long after its last use, unless something says when. What runs in it
/// while we watch is a use.
const IDLE_TTL: Duration = Duration::from_secs(3600);
/// In agent-sandbox mode its controller ends it after so long besides: it may have no guest of ours, which knows of its use.
const CLAIM_TTL: Duration = Duration::from_secs(24 * 3600);

const EXAMPLES: &str = "\
The exit code is the command's own; 125 if it never started. Ctrl-C ends it and deletes the sandbox. On this machine a \
sandbox has no network, unless the configuration has block_network = false. One of agent-sandbox ends after a day at the \
latest, if no --ttl or --idle-ttl is given.

Examples:
  sandpod run 'echo hello | tr a-z A-Z'
  sandpod run -- python3 -c 'print(1 + 1)'
  sandpod run --mode raw --namespace agents --image python:3.12-slim 'python3 --version'
  sandpod run 'wc -l' < file
  while read -r line; do sandpod run --no-stdin \"$line\"; done < lines";

#[derive(Args)]
#[command(
    override_usage = "sandpod run [OPTIONS] 'LINE'\n       sandpod run [OPTIONS] -- PROGRAM [ARGUMENT]...",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    /// A line for the shell
    #[arg(required_unless_present = "argv", conflicts_with = "argv")]
    line: Option<String>,
    /// A program and its arguments, without a shell
    #[arg(last = true)]
    argv: Vec<String>,
    #[command(flatten)]
    how: exec::How,
    #[command(flatten)]
    labels: Labels,
}

/// Runs the command and answers with its exit code.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<ExitCode> {
    let command = arguments.line.map_or(Command::Argv(arguments.argv), Command::Line);
    let target = context.target()?;
    let how = arguments.how.limited(target.exec_timeout());
    let ran =
        in_new_sandbox(&target, &arguments.labels, &context.output, async |sandbox, interrupts, output| {
            exec::show(sandbox, command, &how, OnSignal::End, output, interrupts).await
        });
    ran.await?.report(&context.output)
}

/// Makes a sandbox, does something in it until that ends or we are told to, and deletes the sandbox in any case.
pub(super) async fn in_new_sandbox(
    target: &Target,
    labels: &Labels,
    output: &Output,
    work: impl AsyncFnOnce(&Sandbox, &mut Interrupts, &Output) -> Result<Ran>,
) -> Result<Ran> {
    let mut interrupts = Interrupts::listen()?;
    let provider = target.maker(Stay::WithUs).await.map_err(Failure::before_start)?;
    let mut request = target.request(labels);
    if !target.says_an_end() {
        request.idle_ttl = Some(IDLE_TTL);
        request.ttl = (target.mode == Mode::AgentSandbox).then_some(CLAIM_TTL);
    }
    let handle = make(&provider, request, &mut interrupts, output).await;
    let handle = handle.map_err(Failure::before_start)?;
    let ran = work(&handle.sandbox, &mut interrupts, output).await;
    delete(&provider, handle.id.as_str(), &mut interrupts, output).await;
    ran
}

/// Deletes the sandbox. How the command ended counts more than how this went.
async fn delete(provider: &Provider, id: &str, interrupts: &mut Interrupts, output: &Output) {
    tokio::select! {
        deleted = provider.delete(id, true) => {
            if let Err(error) = deleted {
                output.note(&format!("the sandbox {id} was not deleted: {error}"));
            }
        }
        _ = interrupts.next() => output.note(&format!("not waited for: look whether sandbox {id} is left")),
    }
}
