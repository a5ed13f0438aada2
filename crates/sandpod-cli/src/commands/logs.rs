//! `sandpod logs`: prints the output of a started command.

use clap::Args;
use futures::StreamExt as _;
use sandpod::{Event, Exit, ProcessInfo};
use serde_json::json;

use super::Context;
use crate::exit::{Failure, Result};
use crate::follow::{Sink, follow};
use crate::interrupt::Interrupts;
use crate::processes::find;

const EXAMPLES: &str = "\
Only the end of long output is kept. A note on stderr reports discarded output.

Examples:
  sandpod logs ID                    output of the command that was started last
  sandpod logs ID PROCESS --follow";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    id: String,
    /// Name or process number of the command, as in sandpod ps [default: the last started command]
    process: Option<String>,
    /// Follow the output until the command ends
    #[arg(long, short)]
    follow: bool,
}

/// Prints the output.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let handle = interrupts.unless_interrupted(target.sandbox(&arguments.id)).await?;
    let found = interrupts.unless_interrupted(find(&handle.sandbox, arguments.process.as_deref())).await?;
    let mut sink = Sink::new(&context.output);
    let ended = interrupts.unless_interrupted(read(&found, arguments.follow, &mut sink, context)).await;
    if let Sink::Captured(captured) = &sink {
        let mut value = captured.value(ended.as_ref().map(Option::as_ref));
        value.insert("process".to_owned(), json!(found.process.name()));
        context.output.json(&value)?;
    }
    ended.map(drop).map_err(Failure::printed)
}

/// Reads the output until now or until the command ends. Returns the exit of a command that has ended.
async fn read(found: &ProcessInfo, to_end: bool, sink: &mut Sink, context: &Context) -> Result<Option<Exit>> {
    if to_end {
        return follow(&found.process, 0, sink, &context.output).await.map(Some);
    }
    until_now(found, sink, context).await?;
    Ok(found.exit.clone())
}

/// Reads the output that existed when the command was found.
async fn until_now(found: &ProcessInfo, sink: &mut Sink, context: &Context) -> Result<()> {
    let mut events = found.process.attach(0);
    let mut offset = 0;
    while offset < found.output_end {
        match events.next().await.transpose()? {
            Some(Event::Output { data, stderr, .. }) => {
                offset += data.len() as u64;
                sink.write(&data, stderr)?;
            }
            Some(Event::Hole { from, until }) => {
                offset = until;
                sink.report_gap(until - from, &context.output);
            }
            Some(Event::Exit(_)) | None => break,
        }
    }
    Ok(())
}
