//! The streams of a command: its own ends, and those of the guest.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use rustix::termios::Winsize;
use sandpod_protocol::v1::StartRequest;
use tokio::io::AsyncRead;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::input::Input;
use super::terminal::Terminal;

/// The standard streams of a command. Several may be the same.
pub(crate) struct Streams {
    pub(crate) stdin: Arc<OwnedFd>,
    pub(crate) stdout: Arc<OwnedFd>,
    pub(crate) stderr: Arc<OwnedFd>,
    /// Whether the standard input becomes the command's controlling terminal.
    pub(crate) terminal: bool,
}

/// The guest's ends of a command's streams.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) outputs: Vec<Output>,
    pub(crate) input: Option<Input>,
    pub(crate) terminal: Option<Terminal>,
}

/// One output of a command.
pub(crate) struct Output {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) stderr: bool,
}

impl Streams {
    /// Opens the streams that a Start request asks for.
    pub(crate) fn open(request: &StartRequest) -> io::Result<(Self, Ends)> {
        match request.terminal {
            Some(size) => Self::in_terminal(Terminal::size(size)),
            None => Self::in_pipes(request.stdin, request.combined),
        }
    }

    fn in_terminal(size: Winsize) -> io::Result<(Self, Ends)> {
        let (terminal, stdin) = Terminal::open(size)?;
        let stdin = Arc::new(stdin);
        let (stdout, stderr) = (stdin.clone(), stdin.clone());
        let output = Output { reader: Box::new(terminal.stream()?), stderr: false };
        let input = Some(Input::of_terminal(terminal.stream()?));
        let streams = Self { stdin, stdout, stderr, terminal: true };
        Ok((streams, Ends { outputs: vec![output], input, terminal: Some(terminal) }))
    }

    fn in_pipes(with_input: bool, combined: bool) -> io::Result<(Self, Ends)> {
        let (stdout, output_reader) = output(false)?;
        let mut outputs = vec![output_reader];
        let stderr = if combined {
            stdout.clone()
        } else {
            let (stderr, errors) = output(true)?;
            outputs.push(errors);
            stderr
        };
        let (stdin, input) = if with_input {
            input().map(|(stdin, input)| (stdin, Some(input)))?
        } else {
            (empty_input()?, None)
        };
        let streams = Self { stdin, stdout, stderr, terminal: false };
        Ok((streams, Ends { outputs, input, terminal: None }))
    }
}

/// Returns an empty standard input, which all commands share.
pub(crate) fn empty_input() -> io::Result<Arc<OwnedFd>> {
    static EMPTY: OnceLock<Arc<OwnedFd>> = OnceLock::new();
    if let Some(empty_input) = EMPTY.get() {
        return Ok(empty_input.clone());
    }
    let opened = Arc::new(std::fs::File::open("/dev/null")?.into());
    Ok(EMPTY.get_or_init(|| opened).clone())
}

/// Opens a pipe for a command's output.
pub(super) fn pipe() -> io::Result<(Receiver, Arc<OwnedFd>)> {
    let (reader, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    // The checked conversion is not needed: this is the read end of a pipe.
    Ok((Receiver::from_owned_fd_unchecked(reader.into())?, Arc::new(writer.into())))
}

fn output(stderr: bool) -> io::Result<(Arc<OwnedFd>, Output)> {
    let (reader, writer) = pipe()?;
    Ok((writer, Output { reader: Box::new(reader), stderr }))
}

fn input() -> io::Result<(Arc<OwnedFd>, Input)> {
    let (reader, writer) = io::pipe()?;
    let writer = Sender::from_owned_fd(OwnedFd::from(writer))?;
    Ok((Arc::new(reader.into()), Input::of_pipe(writer)))
}
