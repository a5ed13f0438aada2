//! Commands that were started and go on whoever follows them.

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

use super::execute::{CONDEMNED, NEVER_STARTED, TIMED_OUT};
use super::history::History;
use super::input::Input;
use super::launch::{Launch, no_streams};
use super::room::Room;
use super::running::{Children, Running};
use super::streams::{Ends, Output, Streams};
use super::terminal::Terminal;
use super::tree;
use crate::watchdog::{Watchdog, Watched};

/// Ended processes that are kept, for those who ask late.
const MAX_ENDED: usize = 64;
/// Of them, those that are kept however much they wrote.
const MIN_ENDED: usize = 4;

/// Output that no follower has yet, where it waits for them; less than the history holds.
const PACED_BYTES: u64 = 128 << 10;

/// What a follower sees.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<ProcessEvent, Status>> + Send>>;

/// All started processes by name.
pub(crate) struct Table {
    processes: Mutex<Processes>,
    room: Arc<Room>,
}

#[derive(Default)]
struct Processes {
    by_number: BTreeMap<u64, Arc<Started>>,
    last: u64,
}

/// A started process: its output, its end, and the ways to reach it.
pub(crate) struct Started {
    state: watch::Sender<State>,
    signals: mpsc::Sender<(Signal, oneshot::Sender<()>)>,
    input: Option<Input>,
    /// None when it has none, or has ended.
    terminal: Mutex<Option<Terminal>>,
    in_terminal: bool,
    command: String,
    begin: SystemTime,
    /// None if it never ran.
    warden: Option<Pid>,
}

/// A process that runs, for the one who looks after it.
struct Care {
    launch: Launch,
    running: Running,
    watched: Watched,
    readers: JoinSet<()>,
    signalled: mpsc::Receiver<(Signal, oneshot::Sender<()>)>,
}

struct State {
    history: History,
    exit: Option<Exit>,
    /// Output waits for followers.
    paced: bool,
    /// The offset up to which some follower has it.
    taken: u64,
    /// Readers that wait for a follower.
    held: usize,
}

impl State {
    fn new(room: Arc<Room>, paced: bool) -> Self {
        Self { history: History::new(room), exit: None, paced, taken: 0, held: 0 }
    }

    fn has_room(&self) -> bool {
        !self.paced || self.history.end() - self.taken <= PACED_BYTES
    }
}

impl Table {
    /// No processes; what they write past what memory holds goes to files in a directory.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { processes: Mutex::default(), room: Arc::new(Room::new(dir)) }
    }

    /// Starts a command; one that cannot be started is a process that ended at once.
    pub(crate) fn start(
        &self,
        launch: Launch,
        request: &StartRequest,
        slot: OwnedSemaphorePermit,
        children: &Arc<Children>,
        watchdog: &Arc<Watchdog>,
    ) -> String {
        let (signals, signalled) = mpsc::channel(1);
        let spawned = spawn(&launch, request, children);
        let (ends, running) = match spawned {
            Ok((running, ends)) => (ends, Ok(running)),
            Err(why) => (Ends::default(), Err(why)),
        };
        let started = Arc::new(Started {
            state: watch::Sender::new(State::new(self.room.clone(), request.paced)),
            signals,
            input: ends.input,
            in_terminal: ends.terminal.is_some(),
            terminal: Mutex::new(ends.terminal),
            command: launch.summary(),
            begin: SystemTime::now(),
            warden: running.as_ref().ok().map(Running::pid),
        });
        match running {
            Ok(running) => {
                let watched = watchdog.watch(running.pid());
                let readers = started.read_all(ends.outputs, slot);
                tokio::spawn(started.clone().look_after(Care {
                    launch,
                    running,
                    watched,
                    readers,
                    signalled,
                }));
            }
            Err(why) => {
                let exit = started.never_started(&why);
                started.finish(exit);
            }
        }
        self.insert(started)
    }

    /// All processes, oldest first.
    pub(crate) fn list(&self) -> Vec<ProcessInfo> {
        let started: Vec<_> =
            self.lock().by_number.iter().map(|(number, process)| (*number, process.clone())).collect();
        let all = tree::processes();
        // The command is the first that its warden had; what lost its parents came to it later.
        let command = |warden: Pid| {
            let children = all.iter().filter(|process| process.parent == warden.as_raw_nonzero().get());
            children.map(|child| child.pid.as_raw_nonzero().get()).min()
        };
        started.iter().map(|(number, process)| process.info(&name(*number), command)).collect()
    }

    /// Finds a process by its name.
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
        processes.forget_ended(&self.room);
        name(number)
    }

    fn lock(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Processes {
    /// Forgets the oldest of the processes that have ended, where they are too many or have written much.
    fn forget_ended(&mut self, room: &Room) {
        let ended =
            self.by_number.iter().filter(|(_, process)| process.has_ended()).map(|(number, _)| *number);
        let ended: Vec<_> = ended.collect();
        for (index, number) in ended.iter().enumerate() {
            let left = ended.len() - index;
            if left <= MAX_ENDED && (left <= MIN_ENDED || !room.is_filling()) {
                return;
            }
            self.by_number.remove(number);
        }
    }
}

/// The name of a process.
fn name(number: u64) -> String {
    format!("p{number}")
}

impl Started {
    /// The output from an offset on as it comes, and the end. Unless the process is paced, a follower
    /// that is slow slows nobody down: it finds a hole where it came too late.
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
            process.note_taken(offset);
            Some((Ok(ProcessEvent { event: Some(event) }), next.map(|offset| (process, state, offset))))
        };
        Ok(Box::pin(stream::unfold(Some((self.clone(), state, from_offset)), next)))
    }

    /// Sends a signal to the process and all that it started.
    pub(crate) async fn signal(&self, number: i32) -> Result<(), Failure> {
        let signal = Signal::from_named_raw(number).ok_or_else(|| {
            Failure::new(ErrorCode::InvalidArgument, format!("there is no signal {number}"))
        })?;
        let ended = || Failure::new(ErrorCode::NotFound, "the process has ended already");
        let (done, is_done) = oneshot::channel();
        self.signals.send((signal, done)).await.map_err(|_| ended())?;
        is_done.await.map_err(|_| ended())
    }

    /// Writes to its input; answers when it has been taken.
    pub(crate) async fn input(&self, data: Bytes, end: bool) -> Result<(), Failure> {
        let input = self.input.as_ref().ok_or_else(|| {
            Failure::new(ErrorCode::InvalidArgument, "the process has an empty input: start it with one")
        })?;
        tokio::select! {
            biased;
            written = input.write(data, end), if !self.has_ended() => written,
            _ = self.ended() => Err(Failure::new(ErrorCode::NotFound, "the process has ended and took no more input")),
        }
    }

    /// Gives its terminal another size.
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
        let pid = self.warden.filter(|_| state.exit.is_none()).and_then(command);
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
        // The sender is ours, so the wait can't fail.
        state.ok().and_then(|state| state.exit.clone()).unwrap_or_default()
    }

    fn has_ended(&self) -> bool {
        self.state.borrow().exit.is_some()
    }

    fn push(&self, data: &[u8], stderr: bool) {
        self.state.send_if_modified(|state| {
            let goes_on = state.exit.is_none();
            if goes_on {
                state.history.push(data, stderr);
            }
            goes_on
        });
    }

    /// Notes that a follower has all output before `offset`, for it asks for what comes after.
    fn note_taken(&self, offset: u64) {
        self.state.send_if_modified(|state| {
            let advanced = offset > state.taken;
            state.taken = state.taken.max(offset);
            advanced && state.held > 0
        });
    }

    /// Waits until followers have most of a paced process's output; one that nobody follows any more
    /// is paced no longer.
    async fn wait_for_room(&self) {
        if self.state.borrow().has_room() {
            return;
        }
        self.state.send_modify(|state| state.held += 1);
        let mut state = self.state.subscribe();
        let followed =
            tokio::time::timeout(limits::ORPHAN_GRACE, state.wait_for(State::has_room)).await.is_ok();
        self.state.send_modify(|state| {
            state.held -= 1;
            state.paced &= followed;
        });
    }

    /// Notes why the command never ran; answers how it ended then.
    fn never_started(&self, why: &str) -> Exit {
        self.push(why.as_bytes(), true);
        Exit { exit_code: NEVER_STARTED, ..Exit::default() }
    }

    fn finish(&self, exit: Exit) {
        self.state.send_modify(|state| state.exit = Some(exit));
    }

    fn read_all(self: &Arc<Self>, outputs: Vec<Output>, slot: OwnedSemaphorePermit) -> JoinSet<()> {
        let slot = Arc::new(slot);
        outputs.into_iter().map(|output| self.clone().read(output, slot.clone())).collect()
    }

    /// Reads one output to its end. What comes after the end of the process is read and dropped, so
    /// that a child in the background can go on; it takes the place of the process until then.
    async fn read(self: Arc<Self>, mut output: Output, _slot: Arc<OwnedSemaphorePermit>) {
        let mut buffer = vec![0; 8 << 10];
        while let Ok(read @ 1..) = output.reader.read(&mut buffer).await {
            self.wait_for_room().await;
            self.push(&buffer[..read], output.stderr);
        }
    }

    /// Waits for the process and passes signals on; holds it until it is gone.
    async fn look_after(self: Arc<Self>, mut care: Care) {
        let exit = self.await_end(&mut care).await;
        let Care { running, mut readers, signalled, .. } = care;
        // A signal that comes now finds nobody, however long the output takes.
        drop((running, signalled));
        while tokio::time::timeout(limits::OUTPUT_GRACE, all(&mut readers)).await.is_err() {
            // Readers that wait for a follower have more to come; others wait for a child in the background.
            if self.state.borrow().held == 0 {
                break;
            }
        }
        self.finish(exit);
        readers.detach_all();
        *self.terminal.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(input) = &self.input {
            input.close().await;
        }
    }

    async fn await_end(&self, care: &mut Care) -> Exit {
        let Care { launch, running, watched, signalled, .. } = care;
        let time_is_up = super::execute::sleep(launch.timeout);
        tokio::pin!(time_is_up);
        loop {
            let exit = tokio::select! {
                ended = running.wait() => return match ended {
                    Ok(exit_code) => {
                        Exit { exit_code, note: launch.leave_shell().unwrap_or_default(), ..Exit::default() }
                    }
                    Err(why) => self.never_started(&launch.explain(&why)),
                },
                Some((signal, done)) = signalled.recv() => {
                    running.signal(signal).await;
                    // Who asked may have left meanwhile.
                    let _ = done.send(());
                    continue;
                }
                () = &mut time_is_up => Exit { exit_code: TIMED_OUT, timed_out: true, ..Exit::default() },
                note = watched.condemned() => Exit { exit_code: CONDEMNED, note, ..Exit::default() },
            };
            running.kill().await;
            return exit;
        }
    }
}

/// Waits for all tasks; may be dropped and called again.
async fn all(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

/// The next event at an offset, and the offset after it if there can be more.
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
