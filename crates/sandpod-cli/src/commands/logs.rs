//! `sandpod logs`: what a started command wrote.

use clap::Args;
use futures::StreamExt as _;
use sandpod::{Event, ProcessInfo};
use serde_json::json;

use super::Context;
use crate::exit::Result;
use crate::follow::{Kept, Sink, follow};
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
    let handle = context.target()?.sandbox(&arguments.id).await?;
    let found = find(&handle.sandbox, arguments.process.as_deref()).await?;
    let mut sink = Sink::new(&context.output);
    let exit = if arguments.follow {
        Some(follow(&found.process, 0, &mut sink, &context.output).await?)
    } else {
        until_now(&found, &mut sink, context).await?;
        found.exit.clone()
    };
    if let Sink::Kept(Kept { stdout, stderr, truncated }) = &sink {
        context.output.json(&json!({
            "process": found.process.name(),
            "stdout": String::from_utf8_lossy(stdout),
            "stderr": String::from_utf8_lossy(stderr),
            "truncated": truncated,
            "exit_code": exit.and_then(|exit| exit.exit_code),
        }))?;
    }
    Ok(())
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
