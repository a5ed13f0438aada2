//! Commands that were started and run independently of their followers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use rustix::process::{Pid, Signal};
use sandpod_protocol::v1::process_event::Event;
use sandpod_protocol::v1::{self, ErrorCode, Exit, ProcessEvent, ProcessInfo, StartRequest};
use sandpod_protocol::{Failure, limits};
use tokio::io::AsyncReadExt as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tonic::Status;

use super::execute::{ENDED_BY_WATCHDOG, NEVER_STARTED, TIMED_OUT};
use super::history::History;
use super::input::Input;
use super::launch::{Launch, no_streams};
use super::network_note::{network_note, searched};
use super::output_quota::OutputQuota;
use super::running::{Children, Running};
use super::streams::{Ends, Output, Streams};
use super::terminal::Terminal;
use super::tree;
use crate::watchdog::{Watchdog, Watched};

/// Maximum number of ended processes that are kept for late followers.
const MAX_ENDED: usize = 64;
/// Number of ended processes that are kept regardless of the size of their output.
const MIN_ENDED: usize = 4;

/// Undelivered output after which a paced process has to wait for its followers; less than the history holds.
const PACED_BYTES: u64 = 128 << 10;

/// The events of a follower.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<ProcessEvent, Status>> + Send>>;

/// All started processes.
pub(crate) struct ProcessTable {
    processes: Mutex<Processes>,
    quota: Arc<OutputQuota>,
}

#[derive(Default)]
struct Processes {
    by_number: BTreeMap<u64, Arc<Started>>,
    last: u64,
}

/// A started process: its output, its end, and how to control it.
pub(crate) struct Started {
    state: watch::Sender<State>,
    signals: mpsc::Sender<(Signal, oneshot::Sender<()>)>,
    input: Option<Input>,
    /// `None` if it has none, or has ended.
    terminal: Mutex<Option<Terminal>>,
    in_terminal: bool,
    command: String,
    begin: SystemTime,
    /// `None` if it never ran.
    supervisor: Option<Pid>,
}

/// Parts of a running process that its monitor task owns.
struct Monitored {
    launch: Launch,
    running: Running,
    watched: Watched,
    readers: JoinSet<()>,
    requests: mpsc::Receiver<(Signal, oneshot::Sender<()>)>,
}

struct State {
    history: History,
    exit: Option<Exit>,
    /// Whether the program was executed.
    has_executed: bool,
    /// Whether reading waits for followers.
    paced: bool,
    /// Offset up to which some follower has the output.
    delivered: u64,
    /// Number of readers that wait for a follower.
    blocked_readers: usize,
}

impl State {
    fn new(quota: Arc<OutputQuota>, paced: bool) -> Self {
        let history = History::new(quota);
        Self { history, exit: None, has_executed: false, paced, delivered: 0, blocked_readers: 0 }
    }

    fn may_read(&self) -> bool {
        !self.paced || self.history.end() - self.delivered <= PACED_BYTES
    }
}

impl ProcessTable {
    /// Makes an empty table. Output that does not fit into memory goes to files in a directory.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { processes: Mutex::default(), quota: Arc::new(OutputQuota::new(dir)) }
    }

    /// Starts a command. One that cannot be started becomes a process that has ended.
    pub(crate) fn start(
        &self,
        launch: Launch,
        request: &StartRequest,
        slot: OwnedSemaphorePermit,
        children: &Arc<Children>,
        watchdog: &Arc<Watchdog>,
    ) -> String {
        let (signals, requests) = mpsc::channel(1);
        let spawned = spawn(&launch, request, children);
        let (ends, running) = match spawned {
            Ok((running, ends)) => (ends, Ok(running)),
            Err(why) => (Ends::default(), Err(why)),
        };
        let started = Arc::new(Started {
            state: watch::Sender::new(State::new(self.quota.clone(), request.paced)),
            signals,
            input: ends.input,
            in_terminal: ends.terminal.is_some(),
            terminal: Mutex::new(ends.terminal),
            command: launch.summary(),
            begin: SystemTime::now(),
            supervisor: running.as_ref().ok().map(Running::pid),
        });
        match running {
            Ok(running) => {
                let watched = watchdog.watch(running.pid());
                let readers = started.read_all(ends.outputs, slot);
                tokio::spawn(started.clone().monitor(Monitored {
                    launch,
                    running,
                    watched,
                    readers,
                    requests,
                }));
            }
            Err(why) => {
                let exit = started.never_started(&why);
                started.finish(exit);
            }
        }
        self.insert(started)
    }

    /// Returns all processes, oldest first.
    pub(crate) fn list(&self) -> Vec<ProcessInfo> {
        let started: Vec<_> =
            self.lock().by_number.iter().map(|(number, process)| (*number, process.clone())).collect();
        let all = tree::processes();
        // The command is its supervisor's first child; orphans were reparented to the supervisor later.
        let command = |supervisor: Pid| {
            let children = all.iter().filter(|process| process.parent == supervisor.as_raw_nonzero().get());
            children.map(|child| child.pid.as_raw_nonzero().get()).min()
        };
        started.iter().map(|(number, process)| process.info(&name(*number), command)).collect()
    }

    /// Finds a process by name.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Started>, Failure> {
        let number = name.strip_prefix('p').and_then(|number| number.parse().ok());
        number.and_then(|number: u64| self.lock().by_number.get(&number).cloned()).ok_or_else(|| {
            let message = format!("there is no process {name:?}: it was never started, or ended long ago");
            Failure::new(ErrorCode::NotFound, message)
        })
    }

    fn insert(&self, started: Arc<Started>) -> String {
        let mut processes = self.lock();
        processes.last += 1;
        let number = processes.last;
        processes.by_number.insert(number, started);
        processes.remove_ended(&self.quota);
        name(number)
    }

    fn lock(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Processes {
    /// Removes the oldest ended processes if there are too many or their output is too large.
    fn remove_ended(&mut self, quota: &OutputQuota) {
        let ended =
            self.by_number.iter().filter(|(_, process)| process.has_ended()).map(|(number, _)| *number);
        let ended: Vec<_> = ended.collect();
        for (index, number) in ended.iter().enumerate() {
            let left = ended.len() - index;
            if left <= MAX_ENDED && (left <= MIN_ENDED || !quota.is_half_used()) {
                return;
            }
            self.by_number.remove(number);
        }
    }
}

/// Returns the name of a process.
fn name(number: u64) -> String {
    format!("p{number}")
}

impl Started {
    /// Returns the output from an offset on, followed by the exit. Unless the process is paced, a slow follower does not
    /// delay it, and gets a hole for output that was dropped meanwhile.
    pub(crate) fn events(self: &Arc<Self>, from_offset: u64) -> Result<Events, Failure> {
        let state = self.state.subscribe();
        let end = state.borrow().history.end();
        if from_offset > end {
            let message =
                format!("the process has written {end} bytes, so none has the offset {from_offset}");
            return Err(Failure::new(ErrorCode::InvalidArgument, message));
        }
        let next = |follower: Option<(Arc<Self>, watch::Receiver<State>, u64)>| async move {
            let (process, mut state, offset) = follower?;
            let (event, next) = next_event(&mut state, offset).await?;
            process.record_delivered(offset);
            Some((Ok(ProcessEvent { event: Some(event) }), next.map(|offset| (process, state, offset))))
        };
        Ok(Box::pin(stream::unfold(Some((self.clone(), state, from_offset)), next)))
    }

    /// Sends a signal to the process and all its descendants.
    pub(crate) async fn signal(&self, number: i32) -> Result<(), Failure> {
        let signal = Signal::from_named_raw(number).ok_or_else(|| {
            Failure::new(ErrorCode::InvalidArgument, format!("there is no signal {number}"))
        })?;
        let ended = || Failure::new(ErrorCode::NotFound, "the process has ended already");
        let (done, is_done) = oneshot::channel();
        self.signals.send((signal, done)).await.map_err(|_| ended())?;
        is_done.await.map_err(|_| ended())
    }

    /// Writes to its input. Returns when the data has been written.
    pub(crate) async fn input(&self, data: Bytes, end: bool) -> Result<(), Failure> {
        let input = self.input.as_ref().ok_or_else(|| {
            Failure::new(
                ErrorCode::InvalidArgument,
                "the process was started without an input: start it with one",
            )
        })?;
        tokio::select! {
            biased;
            written = input.write(data, end), if !self.has_ended() => written,
            _ = self.ended() => Err(Failure::new(ErrorCode::NotFound, "the process has ended and took no more input")),
        }
    }

    /// Changes the size of its terminal.
    pub(crate) fn resize(&self, size: v1::Terminal) -> Result<(), Failure> {
        let terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        let terminal = terminal.as_ref().ok_or_else(|| {
            if self.in_terminal {
                return Failure::new(ErrorCode::NotFound, "the process has ended already");
            }
            Failure::new(ErrorCode::InvalidArgument, "the process has no terminal: start it with one")
        })?;
        terminal.resize(size).map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    }

    fn info(&self, name: &str, command: impl Fn(Pid) -> Option<i32>) -> ProcessInfo {
        let state = self.state.borrow();
        let pid = self.supervisor.filter(|_| state.exit.is_none()).and_then(command);
        let begin = self.begin.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        ProcessInfo {
            process: name.to_owned(),
            pid: pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default(),
            command: self.command.clone(),
            started_ms: i64::try_from(begin.as_millis()).unwrap_or(i64::MAX),
            exit: state.exit.clone(),
            output_end: state.history.end(),
            terminal: self.in_terminal,
        }
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> Exit {
        let mut state = self.state.subscribe();
        let state = state.wait_for(|state| state.exit.is_some()).await;
        // This cannot fail: `self` holds the sender.
        state.ok().and_then(|state| state.exit.clone()).unwrap_or_default()
    }

    /// Waits until the program was executed or the process has ended, so that a program that does not exist is known.
    pub(crate) async fn executed_or_ended(&self) {
        let mut state = self.state.subscribe();
        let begun = state.wait_for(|state| state.has_executed || state.exit.is_some());
        // A program on a file system that does not respond counts as executed later.
        let _ = tokio::time::timeout(limits::OUTPUT_GRACE, begun).await;
    }

    fn has_ended(&self) -> bool {
        self.state.borrow().exit.is_some()
    }

    fn push(&self, data: &[u8], stderr: bool) {
        self.state.send_if_modified(|state| {
            let is_running = state.exit.is_none();
            if is_running {
                state.history.push(data, stderr);
            }
            is_running
        });
    }

    /// Records that a follower has all output before `offset`, because it requests what follows.
    fn record_delivered(&self, offset: u64) {
        self.state.send_if_modified(|state| {
            let advanced = offset > state.delivered;
            state.delivered = state.delivered.max(offset);
            advanced && state.blocked_readers > 0
        });
    }

    /// Waits until followers have most of a paced process's output. Turns pacing off if none has requested any for a
    /// while.
    async fn wait_for_followers(&self) {
        if self.state.borrow().may_read() {
            return;
        }
        self.state.send_modify(|state| state.blocked_readers += 1);
        let mut state = self.state.subscribe();
        let followed =
            tokio::time::timeout(limits::ORPHAN_GRACE, state.wait_for(State::may_read)).await.is_ok();
        self.state.send_modify(|state| {
            state.blocked_readers -= 1;
            state.paced &= followed;
        });
    }

    /// Records why the command never ran as its output, and returns its exit.
    fn never_started(&self, why: &str) -> Exit {
        self.push(why.as_bytes(), true);
        Exit { exit_code: NEVER_STARTED, ..Exit::default() }
    }

    /// Adds a note to the exit of a command that failed because there is no network.
    fn with_network_note(&self, mut exit: Exit) -> Exit {
        if exit.exit_code != 0 && exit.note.is_empty() {
            let end = searched(self.state.borrow().history.pieces());
            network_note(exit.exit_code, &end).unwrap_or_default().clone_into(&mut exit.note);
        }
        exit
    }

    fn finish(&self, exit: Exit) {
        self.state.send_modify(|state| state.exit = Some(exit));
    }

    fn read_all(self: &Arc<Self>, outputs: Vec<Output>, slot: OwnedSemaphorePermit) -> JoinSet<()> {
        let slot = Arc::new(slot);
        outputs.into_iter().map(|output| self.clone().read(output, slot.clone())).collect()
    }

    /// Reads one output to its end. Data after the end of the process is read and dropped, so that a background process
    /// can continue; it occupies the process's slot until it closes the output.
    async fn read(self: Arc<Self>, mut output: Output, _slot: Arc<OwnedSemaphorePermit>) {
        let mut buffer = vec![0; 8 << 10];
        while let Ok(read @ 1..) = output.reader.read(&mut buffer).await {
            self.wait_for_followers().await;
            self.push(&buffer[..read], output.stderr);
        }
    }

    /// Waits for the process to end, forwards signals, and waits for its output.
    async fn monitor(self: Arc<Self>, mut monitored: Monitored) {
        if monitored.running.executes().await {
            self.state.send_modify(|state| state.has_executed = true);
        }
        let exit = self.wait_or_kill(&mut monitored).await;
        let Monitored { running, mut readers, requests, .. } = monitored;
        // Signals fail from here on, however long the output takes.
        drop((running, requests));
        while tokio::time::timeout(limits::OUTPUT_GRACE, all(&mut readers)).await.is_err() {
            // Readers that wait for a follower have more output; others wait for a background process.
            if self.state.borrow().blocked_readers == 0 {
                break;
            }
        }
        self.finish(self.with_network_note(exit));
        readers.detach_all();
        *self.terminal.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(input) = &self.input {
            input.close().await;
        }
    }

    async fn wait_or_kill(&self, monitored: &mut Monitored) -> Exit {
        let Monitored { launch, running, watched, requests, .. } = monitored;
        let time_is_up = super::execute::sleep(launch.timeout);
        tokio::pin!(time_is_up);
        loop {
            let exit = tokio::select! {
                ended = running.wait() => return match ended {
                    Ok(exit_code) => {
                        Exit { exit_code, note: launch.save_shell_state().unwrap_or_default(), ..Exit::default() }
                    }
                    Err(why) => self.never_started(&launch.explain(&why)),
                },
                Some((signal, done)) = requests.recv() => {
                    running.signal(signal).await;
                    // The caller may have been cancelled meanwhile.
                    let _ = done.send(());
                    continue;
                }
                () = &mut time_is_up => Exit { exit_code: TIMED_OUT, timed_out: true, ..Exit::default() },
                note = watched.end_requested() => Exit { exit_code: ENDED_BY_WATCHDOG, note, ..Exit::default() },
            };
            running.kill().await;
            return exit;
        }
    }
}

/// Waits for all tasks. Cancel-safe.
async fn all(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

/// Returns the next event at an offset, and the offset after it if there can be more.
async fn next_event(state: &mut watch::Receiver<State>, offset: u64) -> Option<(Event, Option<u64>)> {
    loop {
        {
            let state = state.borrow_and_update();
            if let Some((event, next)) = state.history.at(offset) {
                return Some((event, Some(next)));
            }
            if let Some(exit) = state.exit.clone() {
                return Some((Event::Exit(exit), None));
            }
        }
        state.changed().await.ok()?;
    }
}

fn spawn(
    launch: &Launch,
    request: &StartRequest,
    children: &Arc<Children>,
) -> Result<(Running, Ends), String> {
    let (streams, ends) = Streams::open(request).map_err(|error| no_streams(&error))?;
    Ok((launch.start(streams, children)?, ends))
}
