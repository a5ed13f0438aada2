//! Connects our terminal with that of a command in a sandbox.

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

/// Ctrl-], which detaches from the command.
const DETACH_KEY: u8 = 0x1d;
/// The size of one read from the keyboard.
const KEY_BUFFER: usize = 4096;

/// The end of an interactive command.
pub(crate) enum Ended {
    /// The command ended.
    Exit(Exit),
    /// We detached; the command continues.
    Detached,
}

impl Ended {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Exit(exit) => ExitCode::from(exit_code(exit)),
            Self::Detached => ExitCode::SUCCESS,
        }
    }
}

/// Connects the two terminals until the command ends or Ctrl-] is typed. Restores our terminal settings.
pub(crate) async fn interact(
    process: &Process,
    offset: u64,
    sink: &mut Sink,
    interrupts: &mut Interrupts,
    output: &Output,
) -> Result<Ended> {
    let raw = RawTerminal::enter().map_err(|cause| Failure::local("use the terminal", &cause))?;
    let mut keys = send_keys(process.clone());
    let sizes = send_sizes(process.clone())?;
    let ended = tokio::select! {
        exit = follow(process, offset, sink, output) => exit.map(Ended::Exit),
        _ = &mut keys => Ok(Ended::Detached),
        signal = interrupts.next() => Err(Failure::interrupted(signal)),
    };
    keys.abort();
    sizes.abort();
    drop(raw);
    ended
}

/// Sends the typed keys; the task ends only when the user detaches.
fn send_keys(process: Process) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut keys = vec![0; KEY_BUFFER];
        loop {
            let length = stdin.read(&mut keys).await.unwrap_or_default();
            let typed = &keys[..length];
            let detached_at = typed.iter().position(|key| *key == DETACH_KEY);
            let sent = process.write(typed[..detached_at.unwrap_or(length)].to_vec()).await;
            if detached_at.is_some() {
                return;
            }
            if length == 0 || sent.is_err() {
                // A closed terminal also sends SIGHUP, and the end of the command comes with its output.
                return std::future::pending().await;
            }
        }
    })
}

/// Resizes the command's terminal whenever ours changes.
fn send_sizes(process: Process) -> Result<JoinHandle<()>> {
    let changes = signal(SignalKind::window_change());
    let mut changes = changes.map_err(|cause| Failure::local("listen for signals", &cause))?;
    Ok(tokio::spawn(async move {
        loop {
            if let Some(size) = size() {
                let _ = process.resize(size).await; // The command may have ended.
            }
            if changes.recv().await.is_none() {
                return;
            }
        }
    }))
}
