//! Standard input of a started command.

use std::io::{self, ErrorKind};

use bytes::Bytes;
use sandpod_protocol::v1::ErrorCode;
use sandpod_protocol::{Failure, limits};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::net::unix::pipe::Sender;
use tokio::sync::{Mutex, Semaphore};

use super::terminal::Stream;

/// Writes that may wait for the command to read; each holds its data.
const MAX_WAITING: usize = 8;
/// The terminal's end-of-input character.
const END_OF_INPUT: [u8; 1] = [4];

/// The guest's end of a command's input.
pub(crate) struct Input {
    /// `None` once ended.
    writer: Mutex<Option<Writer>>,
    waiting: Semaphore,
}

enum Writer {
    Pipe(Sender),
    Terminal(Stream),
}

impl Input {
    pub(crate) fn of_pipe(pipe: Sender) -> Self {
        Self::new(Writer::Pipe(pipe))
    }

    pub(crate) fn of_terminal(terminal: Stream) -> Self {
        Self::new(Writer::Terminal(terminal))
    }

    fn new(writer: Writer) -> Self {
        Self { writer: Mutex::new(Some(writer)), waiting: Semaphore::new(MAX_WAITING) }
    }

    /// Writes all of `data`, as fast as the command reads, in the order of the calls.
    pub(crate) async fn write(&self, data: Bytes, end: bool) -> Result<(), Failure> {
        if data.len() > limits::MAX_INPUT_BYTES {
            let message = format!(
                "the input has {} bytes, but one call takes at most {}: write it in parts",
                data.len(),
                limits::MAX_INPUT_BYTES
            );
            return Err(Failure::new(ErrorCode::TooLarge, message));
        }
        let _permit = self.waiting.try_acquire().map_err(|_| {
            let message = format!("{MAX_WAITING} writes wait already for the process to read: wait for one");
            Failure::new(ErrorCode::Limit, message)
        })?;
        let mut writer = self.writer.lock().await;
        let ended = || Failure::new(ErrorCode::InvalidArgument, "the input of the process was ended before");
        let written = writer.as_mut().ok_or_else(ended)?.write(&data, end).await;
        if end && !matches!(*writer, Some(Writer::Terminal(_))) {
            *writer = None;
        }
        written.map_err(|error| explain(&error))
    }

    /// Closes the input after the process has ended.
    pub(crate) async fn close(&self) {
        *self.writer.lock().await = None;
    }
}

impl Writer {
    async fn write(&mut self, data: &[u8], end: bool) -> io::Result<()> {
        let writer: &mut (dyn AsyncWrite + Send + Unpin) = match self {
            Self::Pipe(pipe) => pipe,
            Self::Terminal(terminal) => terminal,
        };
        writer.write_all(data).await?;
        match self {
            Self::Terminal(terminal) if end => terminal.write_all(&END_OF_INPUT).await,
            _ => Ok(()),
        }
    }
}

fn explain(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::new(ErrorCode::NotFound, "the process reads no input any more"),
        _ => Failure::new(ErrorCode::Internal, format!("the input was not written: {error}")),
    }
}
