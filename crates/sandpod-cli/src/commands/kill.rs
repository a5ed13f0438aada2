//! `sandpod kill`: sends a signal to a started command.

use clap::Args;
use serde_json::json;

use super::Context;
use crate::complete::{processes, sandboxes};
use crate::exit::Result;
use crate::processes::find;

/// The common signals with their numbers.
const SIGNALS: [(&str, i32); 10] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
];

const EXAMPLES: &str = "\
Examples:
  sandpod kill ID PROCESS
  sandpod kill ID PROCESS --signal KILL";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Sandbox id
    #[arg(add = sandboxes())]
    id: String,
    /// Name or process number of the command, as in sandpod ps
    #[arg(add = processes())]
    process: String,
    /// Name or number of the signal
    #[arg(long, short, default_value = "TERM", value_parser = parse_signal)]
    signal: i32,
}

fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = SIGNALS.iter().find(|(title, _)| *title == name).map(|(_, number)| *number);
    let number = known.or_else(|| text.parse().ok().filter(|number| (1..=64).contains(number)));
    let names = SIGNALS.map(|(name, _)| name).join(", ");
    number.ok_or_else(|| format!("'{text}' is not a signal: use a number or one of {names}"))
}

/// Sends the signal.
pub(crate) async fn run(arguments: Arguments, context: &Context) -> Result<()> {
    let handle = context.target()?.sandbox(&arguments.id).await?;
    let found = find(&handle.sandbox, Some(&arguments.process)).await?;
    found.process.signal(arguments.signal).await?;
    let value = json!({ "process": found.process.name(), "signal": arguments.signal });
    context.output.value(&value, String::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse_signal(text), Ok(15), "{text}");
        }
        for text in ["", "0", "65", "TREM"] {
            assert!(parse_signal(text).unwrap_err().contains("USR1"), "{text}");
        }
    }
}
