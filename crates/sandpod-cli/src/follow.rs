//! Following a command in a sandbox: its output comes here, our input goes there.

use std::io::{self, Write as _};

use futures::StreamExt as _;
use sandpod::{Event, Exit, Process};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;

use crate::exit::{Failure, Result, UNKNOWN};
use crate::output::{Output, put_bytes};

/// What is kept of each output for a JSON value.
const MOST_COLLECTED: usize = 1 << 20;
/// What is read from stdin at once.
const INPUT_CHUNK: usize = 64 << 10;

/// Where output goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// As it comes, byte by byte.
    Streams,
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
        if output.is_json() { Self::Kept(Kept::default()) } else { Self::Streams }
    }

    /// Takes what was written.
    pub(crate) fn take(&mut self, data: &[u8], stderr: bool) -> Result<()> {
        match (self, stderr) {
            (Self::Streams, false) => put_bytes(data),
            (Self::Streams, true) => {
                let written = io::stderr().write_all(data);
                written.map_err(|cause| Failure::local("write to stderr", &cause))
            }
            (Self::Kept(kept), stderr) => {
                kept.take(data, stderr);
                Ok(())
            }
        }
    }
}

impl Sink {
    /// Notes that something was written that is not there any more.
    pub(crate) fn miss(&mut self, bytes: u64, output: &Output) {
        output.note(&format!("[{bytes} bytes of output are not kept any more]"));
        if let Self::Kept(kept) = self {
            kept.truncated = true;
        }
    }
}

impl Kept {
    fn take(&mut self, data: &[u8], stderr: bool) {
        let kept = if stderr { &mut self.stderr } else { &mut self.stdout };
        let room = (MOST_COLLECTED - kept.len()).min(data.len());
        kept.extend_from_slice(&data[..room]);
        self.truncated |= room < data.len();
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
        sandpod::ErrorKind::Unavailable,
        "The sandbox ended before the command did.",
        "See what became of it with `sandpod list`.",
    ))
}

/// Sends our stdin to the command until either ends. Abort it when the command has ended.
pub(crate) fn send_input(process: Process) -> JoinHandle<()> {
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
            if length == 0 || sent.is_err() {
                return;
            }
        }
    })
}

/// The exit code that stands for the command's own.
pub(crate) fn exit_code(exit: &Exit) -> u8 {
    exit.exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(UNKNOWN)
}
