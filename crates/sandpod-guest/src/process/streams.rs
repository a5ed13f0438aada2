//! The streams of a command: its own ends of them, and the guest's.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use rustix::termios::Winsize;
use sandpod_protocol::v1::StartRequest;
use tokio::io::AsyncRead;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::input::Input;
use super::terminal::Terminal;

/// What a command is started with; several may be one.
pub(crate) struct Streams {
    pub(crate) stdin: Arc<OwnedFd>,
    pub(crate) stdout: Arc<OwnedFd>,
    pub(crate) stderr: Arc<OwnedFd>,
    /// Makes the standard input the command's controlling terminal.
    pub(crate) terminal: bool,
}

/// The guest's ends.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) outputs: Vec<Output>,
    pub(crate) input: Option<Input>,
    pub(crate) terminal: Option<Terminal>,
}

/// One output that is read.
pub(crate) struct Output {
    pub(crate) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) stderr: bool,
}

impl Streams {
    /// The streams that a Start asks for.
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
        let (stdout, both) = output(false)?;
        let mut outputs = vec![both];
        let stderr = if combined {
            stdout.clone()
        } else {
            let (stderr, errors) = output(true)?;
            outputs.push(errors);
            stderr
        };
        let (stdin, input) =
            if with_input { input().map(|(stdin, input)| (stdin, Some(input)))? } else { (nothing()?, None) };
        let streams = Self { stdin, stdout, stderr, terminal: false };
        Ok((streams, Ends { outputs, input, terminal: None }))
    }
}

/// An empty standard input. All commands share one.
pub(crate) fn nothing() -> io::Result<Arc<OwnedFd>> {
    static NOTHING: OnceLock<Arc<OwnedFd>> = OnceLock::new();
    if let Some(nothing) = NOTHING.get() {
        return Ok(nothing.clone());
    }
    let opened = Arc::new(std::fs::File::open("/dev/null")?.into());
    Ok(NOTHING.get_or_init(|| opened).clone())
}

/// A pipe that a command writes into.
pub(super) fn pipe() -> io::Result<(Receiver, Arc<OwnedFd>)> {
    let (reader, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    // It is known to be one, and to be read from.
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
