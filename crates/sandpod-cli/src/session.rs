//! A terminal here for a command that runs in a terminal there.

use std::process::ExitCode;

use sandpod::{Exit, Process};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use crate::exit::{Failure, Result};
use crate::follow::{Sink, exit_code, follow};
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::terminal::{RawTerminal, size};

/// Ctrl-], which leaves a command that goes on.
const LEAVE: u8 = 0x1d;
/// What is read from the keyboard at once.
const KEYS: usize = 4096;

/// How it ended.
pub(crate) enum Ended {
    /// The command has.
    Exit(Exit),
    /// Only we have: it goes on.
    Left,
}

impl Ended {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Exit(exit) => ExitCode::from(exit_code(exit)),
            Self::Left => ExitCode::SUCCESS,
        }
    }
}

/// Whether Ctrl-] leaves the command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Leaving {
    Allowed,
    Not,
}

/// Connects our terminal with the command's until one of them ends. Ours is afterwards as it was.
pub(crate) async fn interact(
    process: &Process,
    offset: u64,
    leaving: Leaving,
    interrupts: &mut Interrupts,
    output: &Output,
) -> Result<Ended> {
    let raw = RawTerminal::enter().map_err(|cause| Failure::local("use the terminal", &cause))?;
    let mut keys = send_keys(process.clone(), leaving);
    let sizes = send_sizes(process.clone())?;
    let mut sink = Sink::streams();
    let ended = tokio::select! {
        exit = follow(process, offset, &mut sink, output) => exit.map(Ended::Exit),
        _ = &mut keys => Ok(Ended::Left),
        signal = interrupts.next() => Err(Failure::interrupted(signal)),
    };
    keys.abort();
    sizes.abort();
    drop(raw);
    ended
}

/// Sends what is typed; ends only when the command is left.
fn send_keys(process: Process, leaving: Leaving) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut keys = vec![0; KEYS];
        loop {
            let length = stdin.read(&mut keys).await.unwrap_or_default();
            let typed = &keys[..length];
            let left = typed.iter().position(|key| *key == LEAVE).filter(|_| leaving == Leaving::Allowed);
            let sent = process.write(typed[..left.unwrap_or(length)].to_vec()).await;
            if left.is_some() {
                return;
            }
            if length == 0 || sent.is_err() {
                // A terminal that is gone sends a signal, too; a command that has ended says so itself.
                return std::future::pending().await;
            }
        }
    })
}

/// Tells the command's terminal whenever ours has another size.
fn send_sizes(process: Process) -> Result<JoinHandle<()>> {
    let changes = signal(SignalKind::window_change());
    let mut changes = changes.map_err(|cause| Failure::local("listen for signals", &cause))?;
    Ok(tokio::spawn(async move {
        loop {
            if let Some(size) = size() {
                let _ = process.resize(size).await; // It may have ended.
            }
            if changes.recv().await.is_none() {
                return;
            }
        }
    }))
}
