//! Output: results go to stdout as a table or as one JSON value, everything else goes to stderr.
//!
//! Text from a sandbox is untrusted: tables, lines and JSON show terminal escapes instead of sending them. Only the output of
//! commands and the content of files are passed on unchanged.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;

use anstream::{AutoStream, ColorChoice};
use clap::{ArgAction, Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use sandpod::Escaped;
use serde::Serialize;
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::FormatFields as _;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::layer::{self, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use unicode_width::UnicodeWidthStr as _;

use crate::exit::{Failure, Result, escape};
use crate::progress;
use crate::terminal::is_raw;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Format {
    Table,
    // More columns; only `list` has them.
    Wide,
    Json,
}

/// The output options of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct Output {
    /// Output format: lines and tables, or one JSON value
    #[arg(
        long = "output",
        short = 'o',
        global = true,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    format: Format,
    /// Same as --output json
    #[arg(long = "json", global = true, hide = true)]
    as_json: bool,
    /// Print results only: no notes, no progress, and only the ids of sandboxes
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Describe each step on stderr; -vv logs it with times and fields, for developers
    #[arg(long, short, global = true, action = ArgAction::Count)]
    verbose: u8,
}

#[expect(clippy::unused_self, reason = "all output goes through this type")]
impl Output {
    pub(crate) fn is_json(&self) -> bool {
        self.as_json || self.format == Format::Json
    }

    pub(crate) fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Installs the log on stderr: warnings, steps in words with `-v`, everything with `-vv`; nothing with `--quiet`.
    pub(crate) fn log(&self) {
        if self.quiet {
            return;
        }
        let log = if self.verbose > 1 {
            let log = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
            log.log_internal_errors(false).boxed() // They would go to the same broken stderr.
        } else {
            Lines.boxed()
        };
        let level = if self.verbose > 0 { LevelFilter::DEBUG } else { LevelFilter::WARN };
        // The prefix of all our crates; the crates below them log every frame.
        let ours = Targets::new().with_target("sandpod", level);
        // It is the only subscriber of this process.
        let _ = tracing_subscriber::registry().with(ours).with(log).try_init();
    }

    /// Prints a value as JSON.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .map_err(|cause| Failure::local("print", &io::Error::other(cause)))?;
        print(&format!("{}\n", visible_json(&text)))
    }

    /// Prints a value as JSON, or else lines.
    pub(crate) fn value(&self, value: &impl Serialize, lines: impl FnOnce() -> String) -> Result<()> {
        if self.is_json() { self.json(value) } else { self.text(&lines()) }
    }

    /// Prints lines, with escapes made visible.
    pub(crate) fn text(&self, lines: &str) -> Result<()> {
        let mut all = String::new();
        for line in lines.lines() {
            let _ = writeln!(all, "{}", Escaped(line).whole());
        }
        print(&all)
    }

    /// Prints a table.
    pub(crate) fn table(&self, head: &[&str], rows: &[Vec<String>]) -> Result<()> {
        print(&table(head, rows))
    }

    /// Prints a note on stderr, unless `--quiet` is given.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            print_to_stderr(&escape(text));
        }
    }

    /// Reports whether progress is drawn: on a terminal, without `--quiet` and JSON.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && !self.is_json() && io::stderr().is_terminal()
    }
}

/// Prints the library's events on stderr, one line each, unless a program in a sandbox controls the terminal.
struct Lines;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: layer::Context<'_, S>) {
        let mut text = String::new();
        let formatted = DefaultFields::new().format_fields(Writer::new(&mut text), attributes);
        if let Some(span) = context.span(id).filter(|_| formatted.is_ok()) {
            span.extensions_mut().insert(Step(step(&text)));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: layer::Context<'_, S>) {
        let is_warning = *event.metadata().level() <= Level::WARN;
        let mut fields = String::new();
        let formatted = DefaultFields::new().format_fields(Writer::new(&mut fields), event);
        let mut text = String::from(if is_warning { "warning: " } else { "" });
        if !is_warning && let Some(span) = context.event_span(event) {
            let extensions = span.extensions();
            text.push_str(extensions.get::<Step>().map_or("", |step| &step.0));
        }
        let Some(words) = in_words(&fields) else { return };
        text.push_str(&words);
        if formatted.is_ok() && !is_raw() {
            print_to_stderr(&escape(&text));
        }
    }
}

/// Describes the end of an operation in words. Returns nothing for its beginning, and other events unchanged.
fn in_words(fields: &str) -> Option<String> {
    if fields.starts_with("begun ") {
        return None;
    }
    let Some(ended) = fields.strip_prefix("ended took=") else { return Some(fields.to_owned()) };
    Some(match ended.split_once(" error=") {
        Some((took, error)) => format!("{} after {took}", error.trim_matches('"').replace('_', " ")),
        None => format!("done in {ended}"),
    })
}

/// The beginning of the lines of an operation.
struct Step(String);

/// Names an operation by the values of its fields: `execute in work: `.
fn step(fields: &str) -> String {
    let value = |name: &str| {
        let value = fields.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        value.map(|value| value.trim_matches('"').to_owned())
    };
    match (value("name"), value("sandbox").filter(|id| !id.is_empty())) {
        (Some(name), Some(id)) => format!("{name} in {id}: "),
        (Some(name), None) => format!("{name}: "),
        (None, _) => String::new(),
    }
}

/// Writes text to stdout. A closed pipe is a silent failure.
fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to stdout unchanged.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    write_all(io::stdout(), bytes).map_err(|cause| Failure::local("write to stdout", &cause))
}

/// Prints a failure on stderr, with the colours of clap's own errors where those have colours.
pub(crate) fn print_failure(failure: &Failure) {
    let text = failure.to_string();
    let is_coloured = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
    print_to_stderr(&if is_coloured { coloured(&text) } else { text });
}

/// Colours the words before the message and the next step. The text itself has no escapes.
fn coloured(text: &str) -> String {
    let text = text.replacen("error:", "\x1b[1m\x1b[31merror:\x1b[0m", 1);
    match text.rsplit_once("\n  next:") {
        Some((message, next)) => format!("{message}\n  \x1b[32mnext:\x1b[0m{next}"),
        None => text,
    }
}

/// Clears the progress line and writes a line to stderr. Write errors are ignored.
pub(crate) fn print_to_stderr(line: &str) {
    progress::clear();
    let _ = write_all(io::stderr(), format!("{line}\n").as_bytes());
}

/// Writes all bytes. A non-blocking stream is polled until it accepts more.
pub(crate) fn write_all(stream: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&stream, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&stream, PollFlags::OUT)], None); // The next write returns its error.
            }
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
    Ok(())
}

/// Escapes a text so that it stays on one line and shows its control characters.
pub(crate) fn cell(text: &str) -> String {
    Escaped(text).whole().replace('\n', "\\n").replace('\t', "\\t")
}

fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&title| title.to_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|text| cell(text)).collect()).collect();
    let lines = || std::iter::once(&head).chain(&rows);
    let width = |column: usize| lines().map(|line| line[column].width()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut all = String::new();
    for line in lines() {
        let mut text = String::new();
        for (value, width) in line.iter().zip(&widths) {
            let _ = write!(text, "{value}{:gap$}", "", gap = width - value.width() + 2);
        }
        let _ = writeln!(all, "{}", text.trim_end());
    }
    all
}

/// Escapes the control characters that JSON leaves alone and terminals interpret.
fn visible_json(json: &str) -> String {
    let mut visible = String::with_capacity(json.len());
    for character in json.chars() {
        if character != '\n' && Escaped(character.encode_utf8(&mut [0; 4])).to_string().len() > 4 {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(visible, "\\u{unit:04x}");
            }
        } else {
            visible.push(character);
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_coloured_before_its_message_and_its_next_step() {
        let failure = Failure::usage("The error: is bad.", "Give another.");
        let expected =
            "\x1b[1m\x1b[31merror:\x1b[0m The error: is bad.\n  \x1b[32mnext:\x1b[0m Give another.";
        assert_eq!(coloured(&failure.to_string()), expected);
    }

    #[test]
    fn a_step_is_named_by_its_operation_and_sandbox() {
        assert_eq!(step("name=\"execute\" sandbox=\"work\""), "execute in work: ");
        assert_eq!(in_words("begun targets=[]"), None);
        assert_eq!(in_words("ended took=15ms").as_deref(), Some("done in 15ms"));
        assert_eq!(in_words("ended took=1ms error=\"not_found\"").as_deref(), Some("not found after 1ms"));
        assert_eq!(in_words("a warning").as_deref(), Some("a warning"));
        assert_eq!((step("name=\"list\" sandbox=\"\""), step("pod=1")), ("list: ".to_owned(), String::new()));
    }

    #[test]
    fn columns_align_with_their_titles_for_wide_characters() {
        let rows = [
            vec!["a".to_owned(), "日本".to_owned(), "x".to_owned()],
            vec!["long".to_owned(), "é".to_owned(), String::new()],
        ];
        assert_eq!(table(&["ID", "NAME", "END"], &rows), "ID    NAME  END\na     日本  x\nlong  é\n");
    }

    #[test]
    fn a_cell_shows_line_breaks_and_terminal_escapes() {
        let shown = table(&["A"], &[vec!["x\u{1b}]0;t\u{7}\ny\u{9b}2J".to_owned()]]);
        assert_eq!(shown, "A\nx\\u{1b}]0;t\\u{7}\\ny\\u{9b}2J\n");
    }

    #[test]
    fn a_long_cell_is_not_truncated() {
        assert_eq!(cell(&"x".repeat(5000)).len(), 5000);
    }

    #[test]
    fn a_non_blocking_stream_with_a_slow_reader_gets_all_bytes() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let sent = vec![b'x'; 1 << 20]; // More than the buffer of a pipe.
        let received = std::thread::spawn(move || {
            let mut received = Vec::new();
            io::Read::read_to_end(&mut reader, &mut received).map(|_| received)
        });
        write_all(&writer, &sent).unwrap();
        drop(writer);
        assert_eq!(received.join().unwrap().unwrap(), sent);
    }

    #[test]
    fn json_shows_control_characters_and_parses_to_the_same_value() {
        let value = "a\u{9b}\u{202e}\u{1b}é\"😀";
        let text = visible_json(&serde_json::to_string(value).unwrap());
        assert!(text.chars().all(|character| !character.is_control() && character != '\u{202e}'), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), value);
    }
}
