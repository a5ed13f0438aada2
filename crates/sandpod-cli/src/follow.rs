//! Following a command in a sandbox: its output comes here, our input goes there.

use std::io;

use data_encoding::BASE64;
use futures::StreamExt as _;
use sandpod::{CallError, ErrorCode, ErrorKind, Event, Exit, Process};
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

use crate::exit::{Failure, NEVER_STARTED, Result, UNKNOWN, sentence};
use crate::output::{Output, put_bytes, write_all};

/// What is kept of each output for a JSON value.
const MOST_COLLECTED: usize = 1 << 20;
/// What is read from stdin at once.
const INPUT_CHUNK: usize = 64 << 10;
/// How a guest begins to say on stderr why there is no command, with the exit code 125.
const NOT_STARTED: &str = "the command was not started: ";
/// How the reason begins and ends, what it is and what to do next.
const NO_START: [(&str, &str, ErrorKind, &str); 8] = [
    (
        "there is no program ",
        "",
        ErrorKind::NotFound,
        "See which programs there are, or give the shell a line: without `--`, in exec after -c.",
    ),
    ("the image has no ", "", ErrorKind::NotFound, "Give the program and its arguments after `--`."),
    (
        "the working directory ",
        " does not exist",
        ErrorKind::NotFound,
        "See what is there with `sandpod ls`.",
    ),
    ("the working directory ", "", ErrorKind::InvalidInput, "See what it is with `sandpod ls`."),
    (
        "its arguments and environment ",
        "",
        ErrorKind::InvalidInput,
        "Copy what is long into the sandbox with `sandpod cp`.",
    ),
    ("the sandbox takes no more processes", "", ErrorKind::QuotaExceeded, "End commands that run in it."),
    ("", " may not be executed", ErrorKind::Denied, "See its mode with `sandpod ls`."),
    ("", "", ErrorKind::Internal, "Try again."),
];
/// What is remembered of stderr to find out why.
const BEGINNING: usize = 4096;

/// Where output goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// As it comes, byte by byte. How stderr began is remembered.
    Streams(Vec<u8>),
    /// Kept for a JSON value.
    Kept(Kept),
}

/// What a command wrote.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) truncated: bool,
}

impl Sink {
    pub(crate) fn new(output: &Output) -> Self {
        if output.is_json() { Self::Kept(Kept::default()) } else { Self::streams() }
    }

    /// Output that goes on as it comes.
    pub(crate) fn streams() -> Self {
        Self::Streams(Vec::new())
    }

    /// Takes what was written.
    pub(crate) fn take(&mut self, data: &[u8], stderr: bool) -> Result<()> {
        match (self, stderr) {
            (Self::Streams(_), false) => put_bytes(data),
            (Self::Streams(beginning), true) => {
                let room = (BEGINNING - beginning.len()).min(data.len());
                beginning.extend_from_slice(&data[..room]);
                let written = write_all(io::stderr(), data);
                written.map_err(|cause| Failure::local("write to stderr", &cause))
            }
            (Self::Kept(kept), stderr) => {
                kept.take(data, stderr);
                Ok(())
            }
        }
    }

    /// Notes that something was written that is not there any more.
    pub(crate) fn miss(&mut self, bytes: u64, output: &Output) {
        output.note(&format!("[{bytes} bytes of output are not kept any more]"));
        if let Self::Kept(kept) = self {
            kept.truncated = true;
        }
    }

    /// Why a guest started nothing, if so: it says that on stderr.
    pub(crate) fn no_start(&self, exit: &Exit) -> Option<Failure> {
        let stderr = match self {
            Self::Streams(beginning) => beginning,
            Self::Kept(kept) => &kept.stderr,
        };
        let why = stderr.strip_prefix(NOT_STARTED.as_bytes());
        let why = String::from_utf8_lossy(why.filter(|_| exit.exit_code == Some(NEVER_STARTED.into()))?);
        let (.., kind, next) =
            NO_START.into_iter().find(|(begin, end, ..)| why.starts_with(begin) && why.ends_with(end))?;
        Some(Failure::new(kind, sentence(&format!("{NOT_STARTED}{why}")), next).before_start())
    }
}

impl Kept {
    fn take(&mut self, data: &[u8], stderr: bool) {
        let kept = if stderr { &mut self.stderr } else { &mut self.stdout };
        let room = (MOST_COLLECTED - kept.len()).min(data.len());
        kept.extend_from_slice(&data[..room]);
        self.truncated |= room < data.len();
    }

    /// What the command wrote and how it ended, as far as it has and anybody knows.
    pub(crate) fn value(&self, ended: Result<Option<&Exit>, &Failure>) -> Map<String, Value> {
        let mut value = self.fields();
        let exit = ended.ok().flatten();
        value.insert("exit_code".to_owned(), json!(exit.and_then(|exit| exit.exit_code)));
        if let Some(error) = ended.err().and_then(Failure::value) {
            value.insert("error".to_owned(), error);
        }
        value
    }

    /// Both outputs as text, or in base64 if one of them is none.
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

    /// Bytes as text. What was cut may end within a character, which is left out.
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

/// Shows what the command writes from `offset` on, until it ends.
pub(crate) async fn follow(process: &Process, offset: u64, sink: &mut Sink, output: &Output) -> Result<Exit> {
    let mut events = process.attach(offset);
    while let Some(event) = events.next().await {
        match event? {
            Event::Output { data, stderr, .. } => sink.take(&data, stderr)?,
            Event::Hole { from, until } => sink.miss(until - from, output),
            Event::Exit(exit) => return Ok(exit),
        }
    }
    Err(Failure::new(
        ErrorKind::Unavailable,
        "The sandbox ended before the command did.",
        "See what became of it with `sandpod list`.",
    ))
}

/// Sends our stdin to the command until either ends. Abort it when the command has ended.
pub(crate) fn send_input(process: Process, output: Output) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut chunk = vec![0; INPUT_CHUNK];
        loop {
            let length = stdin.read(&mut chunk).await.unwrap_or_default();
            // A command that doesn't read is no mistake of ours: its end says how it went.
            let sent = match length {
                0 => process.close_stdin().await,
                _ => process.write(chunk[..length].to_vec()).await,
            };
            if length > 0 && sent.as_ref().is_err_and(is_without_input) {
                output.note("it takes no input: `sandpod exec --detach --stdin` starts one that does");
            }
            if length == 0 || sent.is_err() {
                return;
            }
        }
    })
}

/// Whether the command was started without an input, or its input has an end already.
fn is_without_input(error: &CallError) -> bool {
    matches!(error, CallError::Failure(failure) if failure.code() == ErrorCode::InvalidArgument)
}

/// The exit code that stands for the command's own.
pub(crate) fn exit_code(exit: &Exit) -> u8 {
    exit.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(stdout: &[u8], truncated: bool) -> Map<String, Value> {
        Kept { stdout: stdout.to_vec(), stderr: b"e".to_vec(), truncated }.fields()
    }

    #[test]
    fn what_is_no_text_is_in_base64_and_says_so() {
        let text = kept("é".as_bytes(), false);
        assert_eq!((&text["encoding"], &text["stdout"]), (&json!("utf-8"), &json!("é")));
        let binary = kept(b"\xff\0", false);
        assert_eq!((&binary["encoding"], &binary["stdout"]), (&json!("base64"), &json!("/wA=")));
        assert_eq!(binary["stderr"], json!("ZQ=="), "both are in the same encoding");
    }

    #[test]
    fn text_that_was_cut_within_a_character_is_still_text() {
        let cut = &"aé".as_bytes()[..2];
        assert_eq!(kept(cut, true)["stdout"], json!("a"));
        assert_eq!(kept(cut, false)["encoding"], json!("base64"));
    }
}
