//! Follows a command in a sandbox: prints or captures its output, and sends it stdin.

use std::io;

use data_encoding::BASE64;
use futures::StreamExt as _;
use sandpod::{CallError, ErrorCode, ErrorKind, Event, Exit, Process};
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

use crate::exit::{Failure, NEVER_STARTED, Result, UNKNOWN, sentence};
use crate::output::{Output, print_bytes, write_all};

/// The most bytes of each stream that are captured for JSON.
const MAX_CAPTURED: usize = 1 << 20;
/// The size of one read from stdin.
const INPUT_CHUNK: usize = 64 << 10;
/// The beginning of a guest's message on stderr when it cannot start the command; the exit code is then 125.
const START_ERROR_PREFIX: &str = "the command was not started: ";
/// Start errors: the beginning and the end of the message, its kind, and the next step.
const START_ERRORS: [(&str, &str, ErrorKind, &str); 8] = [
    (
        "there is no program ",
        "",
        ErrorKind::NotFound,
        "Check the program's name and PATH. To use shell syntax, quote the whole line: `sandpod run 'LINE'`, `sandpod exec ID 'LINE'`.",
    ),
    ("the image has no ", "", ErrorKind::NotFound, "Give a program and its arguments instead of a line."),
    (
        "the working directory ",
        " does not exist",
        ErrorKind::NotFound,
        "List the directory with `sandpod ls`.",
    ),
    ("the working directory ", "", ErrorKind::InvalidInput, "Check it with `sandpod ls`."),
    (
        "its arguments and environment ",
        "",
        ErrorKind::InvalidInput,
        "Copy long values into the sandbox as files with `sandpod cp`.",
    ),
    (
        "the sandbox takes no more processes",
        "",
        ErrorKind::QuotaExceeded,
        "End commands in the sandbox with `sandpod kill`.",
    ),
    ("", " may not be executed", ErrorKind::Denied, "Check its mode with `sandpod ls`."),
    ("", "", ErrorKind::Internal, "Try again."),
];
/// The bytes of stderr that are kept to find a start error.
const STDERR_PREFIX: usize = 4096;

/// The destination of output.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Stdout and stderr, unchanged.
    Streams(Printed),
    /// Our terminal, unchanged, where stderr is not apart.
    Terminal(Printed),
    /// A buffer for a JSON value.
    Captured(Captured),
}

/// The state of output that is passed on.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    /// The beginning of stderr, or of the terminal's output.
    beginning: Vec<u8>,
    /// Holds a start error back, so that it is printed once, as an error of ours.
    holds_start_error: bool,
    /// The number of bytes of `beginning` that are not printed yet.
    held: usize,
}

/// The captured output of a command.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) truncated: bool,
    /// A stream is longer than a JSON value holds.
    exceeds_json: bool,
}

impl Sink {
    pub(crate) fn new(output: &Output) -> Self {
        if output.is_json() { Self::Captured(Captured::default()) } else { Self::streams() }
    }

    /// A sink for a command that is started now. [`Self::start_failure`] has its start error, which is not printed.
    pub(crate) fn of_start(output: &Output) -> Self {
        if output.is_json() {
            Self::Captured(Captured::default())
        } else {
            Self::Streams(Printed::of_start())
        }
    }

    /// As [`Self::of_start`], for a command in our terminal.
    pub(crate) fn of_start_in_terminal() -> Self {
        Self::Terminal(Printed::of_start())
    }

    /// A sink that passes output on to stdout and stderr.
    pub(crate) fn streams() -> Self {
        Self::Streams(Printed::default())
    }

    /// A sink that passes output on to our terminal.
    pub(crate) fn terminal() -> Self {
        Self::Terminal(Printed::default())
    }

    /// Prints a start error that was held back, because the command was started after all.
    pub(crate) fn print_held(&mut self) -> Result<()> {
        match self {
            Self::Streams(printed) => printed.print_held(print_stderr),
            Self::Terminal(printed) => printed.print_held(print_bytes),
            Self::Captured(_) => Ok(()),
        }
    }

    /// Writes or captures a chunk of output.
    pub(crate) fn write(&mut self, data: &[u8], stderr: bool) -> Result<()> {
        match (self, stderr) {
            (Self::Streams(_), false) => print_bytes(data),
            (Self::Streams(printed), true) => printed.write(data, print_stderr),
            (Self::Terminal(printed), _) => printed.write(data, print_bytes),
            (Self::Captured(captured), stderr) => {
                captured.append(data, stderr);
                Ok(())
            }
        }
    }

    /// Reports that the guest has discarded a part of the output.
    pub(crate) fn report_gap(&mut self, bytes: u64, output: &Output) {
        output.note(&format!("[{bytes} bytes of output were discarded]"));
        if let Self::Captured(captured) = self {
            captured.truncated = true;
        }
    }

    /// The start error of the command, if it has one: the guest writes it to stderr.
    pub(crate) fn start_failure(&self, exit: &Exit) -> Option<Failure> {
        let stderr = match self {
            Self::Streams(printed) | Self::Terminal(printed) => &printed.beginning,
            Self::Captured(captured) => &captured.stderr,
        };
        let why = stderr.strip_prefix(START_ERROR_PREFIX.as_bytes());
        let why = String::from_utf8_lossy(why.filter(|_| exit.exit_code == Some(NEVER_STARTED.into()))?);
        let (.., kind, next) =
            START_ERRORS.into_iter().find(|(begin, end, ..)| why.starts_with(begin) && why.ends_with(end))?;
        Some(Failure::new(kind, sentence(&format!("{START_ERROR_PREFIX}{why}")), next).before_start())
    }
}

impl Printed {
    fn of_start() -> Self {
        Self { holds_start_error: true, ..Self::default() }
    }

    fn write(&mut self, data: &[u8], print: fn(&[u8]) -> Result<()>) -> Result<()> {
        self.print_held(print)?;
        let is_first = self.beginning.is_empty();
        let room = (STDERR_PREFIX - self.beginning.len()).min(data.len());
        self.beginning.extend_from_slice(&data[..room]);
        if self.holds_start_error && is_first && data.starts_with(START_ERROR_PREFIX.as_bytes()) {
            self.held = room;
            return print(&data[room..]);
        }
        print(data)
    }

    fn print_held(&mut self, print: fn(&[u8]) -> Result<()>) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        print(&self.beginning[..held])
    }
}

fn print_stderr(data: &[u8]) -> Result<()> {
    write_all(io::stderr(), data).map_err(|cause| Failure::local("write to stderr", &cause))
}

impl Captured {
    fn append(&mut self, data: &[u8], stderr: bool) {
        let captured = if stderr { &mut self.stderr } else { &mut self.stdout };
        let room = (MAX_CAPTURED - captured.len()).min(data.len());
        captured.extend_from_slice(&data[..room]);
        self.exceeds_json |= room < data.len();
        self.truncated |= self.exceeds_json;
    }

    /// Notes that the JSON value lacks the rest of the output.
    pub(crate) fn note_truncation(&self, output: &Output) {
        if self.exceeds_json {
            output.note("the output is truncated: JSON has the first 1 MiB of stdout and of stderr");
        }
    }

    /// The output, and the exit code or error where the command has ended.
    pub(crate) fn value(&self, ended: Result<Option<&Exit>, &Failure>) -> Map<String, Value> {
        let mut value = self.fields();
        let exit = ended.ok().flatten();
        value.insert("exit_code".to_owned(), json!(exit.and_then(|exit| exit.exit_code)));
        if let Some(error) = ended.err().and_then(Failure::value) {
            value.insert("error".to_owned(), error);
        }
        value
    }

    /// Both streams as text, or in base64 if one of them is not UTF-8.
    fn fields(&self) -> Map<String, Value> {
        let (encoding, stdout, stderr) = match (self.text(&self.stdout), self.text(&self.stderr)) {
            (Some(stdout), Some(stderr)) => ("utf-8", stdout.to_owned(), stderr.to_owned()),
            _ => ("base64", BASE64.encode(&self.stdout), BASE64.encode(&self.stderr)),
        };
        let fields = [
            ("encoding", json!(encoding)),
            ("stdout", json!(stdout)),
            ("stderr", json!(stderr)),
            ("truncated", json!(self.truncated)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Bytes as text. An incomplete last character of truncated output is dropped.
    fn text<'a>(&self, bytes: &'a [u8]) -> Option<&'a str> {
        match str::from_utf8(bytes) {
            Ok(text) => Some(text),
            Err(error) if self.truncated && error.error_len().is_none() => {
                str::from_utf8(&bytes[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        }
    }
}

/// Passes the output from `offset` on to `sink` until the command ends.
pub(crate) async fn follow(process: &Process, offset: u64, sink: &mut Sink, output: &Output) -> Result<Exit> {
    let mut events = process.attach(offset);
    while let Some(event) = events.next().await {
        match event? {
            Event::Output { data, stderr, .. } => sink.write(&data, stderr)?,
            Event::Hole { from, until } => sink.report_gap(until - from, output),
            Event::Exit(exit) => return Ok(exit),
        }
    }
    Err(Failure::new(
        ErrorKind::Unavailable,
        "The sandbox ended before the command did.",
        "Check its status with `sandpod list`.",
    ))
}

/// Sends our stdin to the command until either ends. The caller aborts the task when the command has ended.
pub(crate) fn send_input(process: Process, output: Output) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut chunk = vec![0; INPUT_CHUNK];
        loop {
            let length = stdin.read(&mut chunk).await.unwrap_or_default();
            // A command may ignore its input; a failed write is not reported.
            let sent = match length {
                0 => process.close_stdin().await,
                _ => process.write(chunk[..length].to_vec()).await,
            };
            if length > 0 && sent.as_ref().is_err_and(takes_no_input) {
                output.note("the command takes no input: start it with `sandpod exec --detach --stdin`");
            }
            if length == 0 || sent.is_err() {
                return;
            }
        }
    })
}

/// Reports whether the command was started without stdin, or its stdin is closed.
fn takes_no_input(error: &CallError) -> bool {
    matches!(error, CallError::Failure(failure) if failure.code() == ErrorCode::InvalidArgument)
}

/// Our exit code for the command's.
pub(crate) fn exit_code(exit: &Exit) -> u8 {
    exit.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(stdout: &[u8], truncated: bool) -> Map<String, Value> {
        Captured { stdout: stdout.to_vec(), stderr: b"e".to_vec(), truncated, ..Captured::default() }.fields()
    }

    #[test]
    fn output_that_is_not_utf8_is_encoded_in_base64() {
        let text = fields("é".as_bytes(), false);
        assert_eq!((&text["encoding"], &text["stdout"]), (&json!("utf-8"), &json!("é")));
        let binary = fields(b"\xff\0", false);
        assert_eq!((&binary["encoding"], &binary["stdout"]), (&json!("base64"), &json!("/wA=")));
        assert_eq!(binary["stderr"], json!("ZQ=="), "both streams have the same encoding");
    }

    #[test]
    fn text_truncated_within_a_character_is_still_text() {
        let cut = &"aé".as_bytes()[..2];
        assert_eq!(fields(cut, true)["stdout"], json!("a"));
        assert_eq!(fields(cut, false)["encoding"], json!("base64"));
    }
}
