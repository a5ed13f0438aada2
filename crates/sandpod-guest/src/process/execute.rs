//! Runs a command to its end, with both outputs combined in the order written.

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
use super::network_note::network_note;
use super::running::{Children, Running};
use super::streams::{self, Streams};
use super::supervisor::NotStarted;
use crate::session::records::CallContext;
use crate::watchdog::Watchdog;

/// Exit code of a command that was ended by its timeout or a cancel.
pub(crate) const TIMED_OUT: i32 = 124;
/// Exit code of a command that the watchdog ended: the same as after the kernel's OOM killer.
pub(crate) const ENDED_BY_WATCHDOG: i32 = 137;
/// Exit code of a command that was never started.
pub(crate) const NEVER_STARTED: i32 = 125;
/// Maximum number of consecutive reads without waiting: enough to empty a full pipe.
const MAX_READS: usize = 16;

/// Runs a command. Its failures are part of the response.
pub(crate) async fn execute(
    launch: Launch,
    slot: OwnedSemaphorePermit,
    children: &Arc<Children>,
    watchdog: &Arc<Watchdog>,
    context: CallContext,
) -> ExecuteResponse {
    let begin = Instant::now();
    let (mut running, mut output) = match start(&launch, children) {
        Ok(started) => started,
        Err(why) => return never_started(&why),
    };
    let mut watched = watchdog.watch(running.pid());
    let stop = pin!(stopped(launch.timeout, &context));
    let outcome = tokio::select! {
        ended = output.follow(&mut running) => match ended {
            Ok(code) => Outcome::Ended(code, launch.save_shell_state().unwrap_or_default()),
            Err(why) => return never_started(&launch.explain(&why)),
        },
        () = stop => Outcome::Stopped(0.0),
        note = watched.end_requested() => Outcome::EndedByWatchdog(note),
    };
    let outcome = match outcome {
        ended @ Outcome::Ended(..) => ended,
        Outcome::Stopped(_) => Outcome::Stopped(kill(&mut running, &mut output, launch.timeout, begin).await),
        Outcome::EndedByWatchdog(note) => {
            kill(&mut running, &mut output, None, begin).await;
            Outcome::EndedByWatchdog(note)
        }
    };
    let (kept, truncated) = output.finish(slot);
    answer(kept, truncated, outcome)
}

/// How a command ended.
enum Outcome {
    /// By itself, with a note about session state that was not kept.
    Ended(i32, String),
    /// By its timeout or a cancel, after this number of seconds.
    Stopped(f64),
    /// By the watchdog.
    EndedByWatchdog(String),
}

fn start(launch: &Launch, children: &Arc<Children>) -> Result<(Running, Output), String> {
    let explain = |error: io::Error| no_streams(&error);
    let (pipe, writer) = streams::pipe().map_err(explain)?;
    let (stdin, stdout, stderr) = (streams::empty_input().map_err(explain)?, writer.clone(), writer.clone());
    let running = launch.start(Streams { stdin, stdout, stderr, terminal: false }, children)?;
    Ok((running, Output::new(pipe, writer, launch.max_output)))
}

/// Resolves when the command must end: on timeout, on cancel, or if no client has waited for it for a while.
async fn stopped(timeout: Option<Duration>, context: &CallContext) {
    tokio::select! {
        () = sleep(timeout) => {}
        () = context.cancelled() => {}
        () = context.abandoned(limits::ORPHAN_GRACE) => {}
    }
}

/// Sleeps for a time, or forever without one.
pub(crate) async fn sleep(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}

/// Kills the command with all descendants, and returns the number of seconds to report.
async fn kill(running: &mut Running, output: &mut Output, timeout: Option<Duration>, begin: Instant) -> f64 {
    let ran = begin.elapsed();
    let after = timeout.filter(|timeout| *timeout <= ran);
    running.kill().await;
    output.finish_reading().await;
    after.map_or_else(|| ran.as_secs_f64().trunc(), |timeout| timeout.as_secs_f64())
}

fn answer(mut output: Vec<u8>, truncated: bool, outcome: Outcome) -> ExecuteResponse {
    let timed_out = matches!(outcome, Outcome::Stopped(_));
    let (exit_code, last_line, note) = match outcome {
        Outcome::Ended(code, note) if note.is_empty() => {
            let note = network_note(code, &output).unwrap_or_default();
            (code, Some(note.to_owned()).filter(|note| !note.is_empty()), note.to_owned())
        }
        Outcome::Ended(code, note) => (code, None, note),
        Outcome::Stopped(seconds) => (TIMED_OUT, Some(last_line(seconds)), String::new()),
        Outcome::EndedByWatchdog(note) => (ENDED_BY_WATCHDOG, Some(note.clone()), note),
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

/// The output of a command, up to a limit.
struct Output {
    pipe: Receiver,
    /// A write end of the pipe, kept until the command has ended, so that only its supervisor signals the end and not
    /// an early end of its output.
    writer_end: Option<Arc<OwnedFd>>,
    kept: Vec<u8>,
    cap: usize,
    truncated: bool,
    open: bool,
}

impl Output {
    fn new(pipe: Receiver, writer_end: Arc<OwnedFd>, cap: usize) -> Self {
        Self { pipe, writer_end: Some(writer_end), kept: Vec::new(), cap, truncated: false, open: true }
    }

    /// Reads until the command has ended and so has its output, unless a background process holds that open.
    async fn follow(&mut self, running: &mut Running) -> Result<i32, NotStarted> {
        let ended = tokio::select! {
            () = self.drain() => running.wait().await,
            ended = running.wait() => ended,
        };
        self.finish_reading().await;
        ended
    }

    /// Reads the rest after the command has ended, and for a short time what background processes write.
    async fn finish_reading(&mut self) {
        self.writer_end = None;
        self.read_available();
        if self.open {
            let _ = tokio::time::timeout(limits::OUTPUT_GRACE, self.drain()).await;
        }
    }

    /// Reads without waiting. The number of reads is limited because a background process may write continuously.
    fn read_available(&mut self) {
        for _ in 0..MAX_READS {
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

    /// Reads to the end. Cancel-safe: no data is lost if the future is dropped.
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

    /// Returns the output, and whether it was truncated. A background process that holds the pipe can go on writing
    /// and occupies the command's slot until it closes the pipe.
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
