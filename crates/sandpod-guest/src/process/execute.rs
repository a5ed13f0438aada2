//! A command run to its end, with both outputs as one in the order written.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandpod_protocol::limits;
use sandpod_protocol::v1::ExecuteResponse;
use sandpod_text::output::{add_line, timed_out as last_line, whole_characters};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::launch::{Launch, no_streams};
use super::running::{Children, Running};
use super::streams::{self, Streams};
use super::warden::NotStarted;
use crate::session::records::Watchers;
use crate::watchdog::Watchdog;

/// The exit code of a command that was ended by its timeout or a cancel.
pub(crate) const TIMED_OUT: i32 = 124;
/// The exit code of a command that the watchdog ended, as if the kernel had.
pub(crate) const CONDEMNED: i32 = 137;
/// The exit code of a command that was never started.
pub(crate) const NEVER_STARTED: i32 = 125;
/// How often a pipe is read at once at most: as often as it takes to empty a full one.
const AT_HAND: usize = 16;

/// Runs a command; what goes wrong with it is in the answer.
pub(crate) async fn execute(
    launch: Launch,
    slot: OwnedSemaphorePermit,
    children: &Arc<Children>,
    watchdog: &Arc<Watchdog>,
    watchers: Watchers,
) -> ExecuteResponse {
    let begin = Instant::now();
    let (mut running, mut output) = match start(&launch, children) {
        Ok(started) => started,
        Err(why) => return never_started(&why),
    };
    let mut watched = watchdog.watch(running.pid());
    let stop = pin!(stopped(launch.timeout, &watchers));
    let outcome = tokio::select! {
        ended = output.follow(&mut running) => match ended {
            Ok(code) => Outcome::Ended(code, launch.leave_shell().unwrap_or_default()),
            Err(why) => return never_started(&launch.explain(&why)),
        },
        () = stop => Outcome::Stopped(0.0),
        note = watched.condemned() => Outcome::Condemned(note),
    };
    let outcome = match outcome {
        ended @ Outcome::Ended(..) => ended,
        Outcome::Stopped(_) => Outcome::Stopped(end(&mut running, &mut output, launch.timeout, begin).await),
        Outcome::Condemned(note) => {
            end(&mut running, &mut output, None, begin).await;
            Outcome::Condemned(note)
        }
    };
    let (kept, truncated) = output.finish(slot);
    answer(kept, truncated, outcome)
}

/// How a command came to its end.
enum Outcome {
    /// By itself; with what of it was not kept.
    Ended(i32, String),
    /// By its timeout or a cancel, after so many seconds.
    Stopped(f64),
    /// By the watchdog.
    Condemned(String),
}

fn start(launch: &Launch, children: &Arc<Children>) -> Result<(Running, Output), String> {
    let explain = |error: io::Error| no_streams(&error);
    let (pipe, writer) = streams::pipe().map_err(explain)?;
    let (stdin, stdout, stderr) = (streams::nothing().map_err(explain)?, writer.clone(), writer.clone());
    let running = launch.start(Streams { stdin, stdout, stderr, terminal: false }, children)?;
    Ok((running, Output::new(pipe, writer, launch.max_output)))
}

/// Resolves when the command must end: its time is up, it was cancelled, or nobody waits for it.
async fn stopped(timeout: Option<Duration>, watchers: &Watchers) {
    tokio::select! {
        () = sleep(timeout) => {}
        () = watchers.cancelled() => {}
        () = watchers.abandoned(limits::ORPHAN_GRACE) => {}
    }
}

/// Sleeps for a time, or for ever.
pub(crate) async fn sleep(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

/// Kills all that the command started; answers after how many seconds.
async fn end(running: &mut Running, output: &mut Output, timeout: Option<Duration>, begin: Instant) -> f64 {
    let ran = begin.elapsed();
    let after = timeout.filter(|timeout| *timeout <= ran);
    running.kill().await;
    output.end().await;
    after.map_or_else(|| ran.as_secs_f64().trunc(), |timeout| timeout.as_secs_f64())
}

fn answer(mut output: Vec<u8>, truncated: bool, outcome: Outcome) -> ExecuteResponse {
    let timed_out = matches!(outcome, Outcome::Stopped(_));
    let (exit_code, last_line, note) = match outcome {
        Outcome::Ended(code, note) => (code, None, note),
        Outcome::Stopped(seconds) => (TIMED_OUT, Some(last_line(seconds)), String::new()),
        Outcome::Condemned(note) => (CONDEMNED, Some(note.clone()), note),
    };
    if let Some(line) = last_line {
        add_line(&mut output, &line);
    }
    ExecuteResponse { output: output.into(), exit_code, truncated, timed_out, note }
}

fn never_started(why: &str) -> ExecuteResponse {
    ExecuteResponse {
        output: Bytes::copy_from_slice(why.as_bytes()),
        exit_code: NEVER_STARTED,
        ..ExecuteResponse::default()
    }
}

/// What a command writes, as much of it as is kept.
struct Output {
    pipe: Receiver,
    /// An end to write to, kept until the command has ended: that is then told once, by its warden, and not by the end
    /// of its output before.
    held: Option<Arc<OwnedFd>>,
    kept: Vec<u8>,
    cap: usize,
    truncated: bool,
    open: bool,
}

impl Output {
    fn new(pipe: Receiver, held: Arc<OwnedFd>, cap: usize) -> Self {
        Self { pipe, held: Some(held), kept: Vec::new(), cap, truncated: false, open: true }
    }

    /// Reads until the command has ended and its output too, or is held open by a child of it.
    async fn follow(&mut self, running: &mut Running) -> Result<i32, NotStarted> {
        let ended = tokio::select! {
            () = self.drain() => running.wait().await,
            ended = running.wait() => ended,
        };
        self.end().await;
        ended
    }

    /// Reads what a command that has ended left, and a little longer what its children write.
    async fn end(&mut self) {
        self.held = None;
        self.read_at_hand();
        if self.open {
            let _ = tokio::time::timeout(limits::OUTPUT_GRACE, self.drain()).await;
        }
    }

    /// Reads without waiting, and not for ever if somebody still writes.
    fn read_at_hand(&mut self) {
        for _ in 0..AT_HAND {
            let mut part = [MaybeUninit::uninit(); 4096];
            match rustix::io::read(&self.pipe, &mut part) {
                Ok(([], _)) => {
                    self.open = false;
                    return;
                }
                Ok((part, _)) => {
                    let room = part.len().min(self.cap - self.kept.len());
                    self.kept.extend_from_slice(&part[..room]);
                    self.truncated |= room < part.len();
                }
                Err(_) => return,
            }
        }
    }

    /// Reads to the end; nothing that was read is lost if this future is dropped.
    async fn drain(&mut self) {
        while self.open {
            let room = self.cap - self.kept.len();
            let read = if room > 0 {
                (&mut self.pipe).take(room as u64).read_buf(&mut self.kept).await
            } else {
                let mut rest = [0; 4096];
                let read = self.pipe.read(&mut rest).await;
                self.truncated |= read.as_ref().is_ok_and(|read| *read > 0);
                read
            };
            self.open = read.is_ok_and(|read| read > 0);
        }
    }

    /// What was kept, and whether there was more. A child that still holds the pipe can go on writing
    /// into it; it takes the command's place among those that run.
    fn finish(mut self, slot: OwnedSemaphorePermit) -> (Vec<u8>, bool) {
        let mut kept = std::mem::take(&mut self.kept);
        if self.truncated {
            kept.truncate(whole_characters(&kept));
        }
        let truncated = self.truncated;
        if self.open {
            self.cap = 0;
            tokio::spawn(async move {
                self.drain().await;
                drop(slot);
            });
        }
        (kept, truncated)
    }
}
