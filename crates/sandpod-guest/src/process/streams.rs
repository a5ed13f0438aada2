//! The streams of a command: its own ends of them, and the guest's.

use std::io;
use std::os::fd::OwnedFd;

use rustix::termios::Winsize;
use sandpod_protocol::v1::StartRequest;
use tokio::io::AsyncRead;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::input::Input;
use super::terminal::Terminal;

/// What a command is started with.
pub(crate) struct Streams {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
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
        let (stdout, stderr) = (stdin.try_clone()?, stdin.try_clone()?);
        let output = Output { reader: Box::new(terminal.stream()?), stderr: false };
        let input = Some(Input::of_terminal(terminal.stream()?));
        let streams = Self { stdin, stdout, stderr, terminal: true };
        Ok((streams, Ends { outputs: vec![output], input, terminal: Some(terminal) }))
    }

    fn in_pipes(with_input: bool, combined: bool) -> io::Result<(Self, Ends)> {
        let (stdout, both) = output(false)?;
        let mut outputs = vec![both];
        let stderr = if combined {
            stdout.try_clone()?
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

/// An empty standard input.
pub(crate) fn nothing() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/dev/null")?.into())
}

fn output(stderr: bool) -> io::Result<(OwnedFd, Output)> {
    let (reader, writer) = io::pipe()?;
    let reader = Box::new(Receiver::from_owned_fd(OwnedFd::from(reader))?);
    Ok((writer.into(), Output { reader, stderr }))
}

fn input() -> io::Result<(OwnedFd, Input)> {
    let (reader, writer) = io::pipe()?;
    let writer = Sender::from_owned_fd(OwnedFd::from(writer))?;
    Ok((reader.into(), Input::of_pipe(writer)))
}
