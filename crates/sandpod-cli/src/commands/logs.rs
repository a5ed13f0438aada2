//! `sandpod logs`: what a started command wrote.

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
Of long output the last is kept. A hole is noted on stderr.

Examples:
  sandpod logs ID                    of the command that was started last
  sandpod logs ID PROCESS --follow";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The sandbox
    id: String,
    /// The command's name or process number, as ps shows them; without one the last that was started
    process: Option<String>,
    /// Go on until the command ends
    #[arg(long, short)]
    follow: bool,
}

/// Prints it.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let handle = interrupts.or(target.sandbox(&arguments.id)).await?;
    let found = interrupts.or(find(&handle.sandbox, arguments.process.as_deref())).await?;
    let mut sink = Sink::new(&context.output);
    let ended = interrupts.or(read(&found, arguments.follow, &mut sink, context)).await;
    if let Sink::Kept(kept) = &sink {
        let mut value = kept.value(ended.as_ref().map(Option::as_ref));
        value.insert("process".to_owned(), json!(found.process.name()));
        context.output.json(&value)?;
    }
    ended.map(drop).map_err(Failure::printed)
}

/// What was written until now, or until the command ends; and how it ended, if it did.
async fn read(found: &ProcessInfo, to_end: bool, sink: &mut Sink, context: &Context) -> Result<Option<Exit>> {
    if to_end {
        return follow(&found.process, 0, sink, &context.output).await.map(Some);
    }
    until_now(found, sink, context).await?;
    Ok(found.exit.clone())
}

/// What was written when the command was found.
async fn until_now(found: &ProcessInfo, sink: &mut Sink, context: &Context) -> Result<()> {
    let mut events = found.process.attach(0);
    let mut offset = 0;
    while offset < found.output_end {
        match events.next().await.transpose()? {
            Some(Event::Output { data, stderr, .. }) => {
                offset += data.len() as u64;
                sink.take(&data, stderr)?;
            }
            Some(Event::Hole { from, until }) => {
                offset = until;
                sink.miss(until - from, &context.output);
            }
            Some(Event::Exit(_)) | None => break,
        }
    }
    Ok(())
}
