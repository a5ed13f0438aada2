//! `sandpod logs`: prints the output of started commands.

use std::time::{Duration, SystemTime};

use clap::Args;
use futures::StreamExt as _;
use sandpod::{Event, Exit, ProcessInfo};
use serde_json::json;

use super::Context;
use crate::complete::{processes, sandboxes};
use crate::exit::{Failure, Result};
use crate::follow::{Sink, follow};
use crate::interrupt::Interrupts;
use crate::processes::find;
use crate::time::parse_duration;

const EXAMPLES: &str = "\
The sandbox keeps only the end of long output; a note on stderr reports discarded output. JSON has the first 1 MiB of what \
is kept of stdout and of stderr, and `truncated` reports that output is missing.

Examples:
  sandpod logs ID                    output of the command that was started last
  sandpod logs ID PROCESS --follow
  sandpod logs ID --follow --tail 5
  sandpod logs ID --since 10m        output of all commands that were started in this time";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Name or process number of the command, as in sandpod ps [default: the last started command]
    #[arg(add = processes())]
    process: Option<String>,
    /// Follow the output until the command ends
    #[arg(long, short)]
    follow: bool,
    /// Print only the last lines of the earlier output
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
    /// Print the output of all commands that were started within this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["process", "follow"])]
    since: Option<Duration>,
}

/// Prints the output.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let mut interrupts = Interrupts::listen()?;
    let target = context.target()?;
    let handle = interrupts.unless_interrupted(target.sandbox(&arguments.id)).await?;
    if let Some(since) = arguments.since {
        let recent = async {
            let start = SystemTime::now().checked_sub(since).unwrap_or(SystemTime::UNIX_EPOCH);
            let all = handle.sandbox.processes().await?;
            Ok(all.into_iter().filter(|info| info.started >= start).collect::<Vec<_>>())
        };
        let recent = interrupts.unless_interrupted(recent).await?;
        return print_all(&recent, &arguments, context, &mut interrupts).await;
    }
    let found = interrupts.unless_interrupted(find(&handle.sandbox, arguments.process.as_deref())).await?;
    let mut sink = Sink::new(&context.output);
    let ended = interrupts.unless_interrupted(read(&found, &arguments, &mut sink, context)).await;
    if let Sink::Captured(captured) = &sink {
        let mut value = captured.value(ended.as_ref().map(Option::as_ref));
        value.insert("process".to_owned(), json!(found.process.name()));
        context.output.json(&value)?;
        captured.note_truncation(&context.output);
    }
    ended.map(drop).map_err(Failure::printed)
}

/// Prints the output of several commands, each after a note with its name.
async fn print_all(
    all: &[ProcessInfo],
    arguments: &Arguments,
    context: &Context,
    interrupts: &mut Interrupts,
) -> Result<()> {
    let mut values = Vec::new();
    for info in all {
        let mut sink = Sink::new(&context.output);
        if !context.output.is_json() {
            context.output.note(&format!("==> {}: {} <==", info.process.name(), info.command));
        }
        interrupts.unless_interrupted(read(info, arguments, &mut sink, context)).await?;
        if let Sink::Captured(captured) = &sink {
            let mut value = captured.value(Ok(info.exit.as_ref()));
            value.insert("process".to_owned(), json!(info.process.name()));
            values.push(value);
        }
    }
    if context.output.is_json() { context.output.json(&values) } else { Ok(()) }
}

/// Reads the output until now or until the command ends. Returns the exit of a command that has ended.
async fn read(
    found: &ProcessInfo,
    arguments: &Arguments,
    sink: &mut Sink,
    context: &Context,
) -> Result<Option<Exit>> {
    let Some(lines) = arguments.tail else {
        if arguments.follow {
            return follow(&found.process, 0, sink, &context.output).await.map(Some);
        }
        until_now(found, &mut Reader::Direct(sink), context).await?;
        return Ok(found.exit.clone());
    };
    let mut chunks = Vec::new();
    until_now(found, &mut Reader::Kept(&mut chunks), context).await?;
    for (data, stderr) in last_lines(&chunks, lines) {
        sink.write(data, stderr)?;
    }
    if arguments.follow {
        return follow(&found.process, found.output_end, sink, &context.output).await.map(Some);
    }
    Ok(found.exit.clone())
}

/// A part of the output, and whether it is of stderr.
type Chunk = (Vec<u8>, bool);

/// The destination of earlier output.
enum Reader<'a> {
    Direct(&'a mut Sink),
    /// Kept, because only its end is printed.
    Kept(&'a mut Vec<Chunk>),
}

/// Returns the parts of the last lines, counted over both streams.
fn last_lines(chunks: &[Chunk], lines: usize) -> Vec<(&[u8], bool)> {
    let mut left = lines;
    let mut parts = Vec::new();
    let mut is_last = true;
    for (data, stderr) in chunks.iter().rev() {
        // A line break at the very end ends the last line and begins none.
        let end = data.len() - usize::from(is_last && data.ends_with(b"\n"));
        is_last = is_last && data.is_empty();
        let breaks = data[..end].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        let start = if left == 0 {
            return Vec::new();
        } else {
            breaks.map(|(at, _)| at + 1).nth(left - 1)
        };
        let counted = data[..end].split(|byte| *byte == b'\n').count() - 1;
        parts.push((&data[start.unwrap_or_default()..], *stderr));
        if start.is_some() {
            break;
        }
        left -= counted;
    }
    parts.reverse();
    parts
}

/// Reads the output that existed when the command was found.
async fn until_now(found: &ProcessInfo, reader: &mut Reader<'_>, context: &Context) -> Result<()> {
    let mut events = found.process.attach(0);
    let mut offset = 0;
    while offset < found.output_end {
        match events.next().await.transpose()? {
            Some(Event::Output { data, stderr, .. }) => {
                offset += data.len() as u64;
                match reader {
                    Reader::Direct(sink) => sink.write(&data, stderr)?,
                    Reader::Kept(chunks) => {
                        // With --follow, later output comes from another reader.
                        let surplus =
                            usize::try_from(offset.saturating_sub(found.output_end)).unwrap_or_default();
                        chunks.push((data[..data.len() - surplus].to_vec(), stderr));
                    }
                }
            }
            Some(Event::Hole { from, until }) => {
                offset = until;
                if let Reader::Direct(sink) = reader {
                    sink.report_gap(until - from, &context.output);
                }
            }
            Some(Event::Exit(_)) | None => break,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(chunks: &[&str], lines: usize) -> String {
        let chunks: Vec<Chunk> = chunks.iter().map(|data| (data.as_bytes().to_vec(), false)).collect();
        last_lines(&chunks, lines).iter().map(|(data, _)| String::from_utf8_lossy(data)).collect()
    }

    #[test]
    fn the_last_lines_are_found_across_chunks() {
        assert_eq!(tail(&["a\nb\nc\n"], 2), "b\nc\n");
        assert_eq!(tail(&["a\nb", "b\n", "c"], 2), "bb\nc");
        assert_eq!(tail(&["a\n", "b\n", "c\n"], 1), "c\n");
        assert_eq!(tail(&["a\n", "\n", "c\n"], 2), "\nc\n");
        assert_eq!(
            (tail(&["a\n"], 9), tail(&["a\n"], 0), tail(&[], 3)),
            ("a\n".to_owned(), String::new(), String::new())
        );
    }
}
