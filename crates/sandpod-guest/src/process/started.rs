//! Commands that were started and go on whoever follows them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{self, Stream};
use rustix::process::Signal;
use sandpod_protocol::v1::process_event::Event;
use sandpod_protocol::v1::{ErrorCode, Exit, ProcessEvent};
use sandpod_protocol::{Failure, limits};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tonic::Status;

use super::execute::{NEVER_STARTED, TIMED_OUT};
use super::history::History;
use super::launch::Launch;
use super::running::{Children, Running};
use super::warden::{NotStarted, Setting, Step};

/// Ended processes that are kept, for those who ask late.
const MAX_ENDED: usize = 64;

/// Output that no follower has yet, where it waits for them; less than the history holds.
const PACED_BYTES: u64 = 128 << 10;

/// What a follower sees.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<ProcessEvent, Status>> + Send>>;

/// All started processes by name.
#[derive(Default)]
pub(crate) struct Table(Mutex<Processes>);

#[derive(Default)]
struct Processes {
    by_number: BTreeMap<u64, Arc<Started>>,
    last: u64,
}

/// A started process: its output, its end, and the way to signal it.
pub(crate) struct Started {
    state: watch::Sender<State>,
    signals: mpsc::Sender<(Signal, oneshot::Sender<()>)>,
}

#[derive(Default)]
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
    fn has_room(&self) -> bool {
        !self.paced || self.history.end() - self.taken <= PACED_BYTES
    }
}

impl Table {
    /// Starts a command; one that cannot be started is a process that ended at once.
    pub(crate) fn start(
        &self,
        launch: Launch,
        paced: bool,
        slot: OwnedSemaphorePermit,
        children: &Arc<Children>,
    ) -> String {
        let (signals, signalled) = mpsc::channel(1);
        let state = watch::Sender::new(State { paced, ..State::default() });
        let started = Arc::new(Started { state, signals });
        match spawn(&launch, children) {
            Ok((running, stdout, stderr)) => {
                let slot = Arc::new(slot);
                let mut readers = JoinSet::new();
                readers.spawn(started.clone().read(stdout, false, slot.clone()));
                readers.spawn(started.clone().read(stderr, true, slot));
                tokio::spawn(started.clone().look_after(launch, running, readers, signalled));
            }
            Err(why) => {
                let exit = started.never_started(&launch, &why);
                started.finish(exit);
            }
        }
        self.insert(started)
    }

    /// Finds a process by its name.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Started>, Failure> {
        let number = name.strip_prefix('p').and_then(|number| number.parse().ok());
        let processes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        number.and_then(|number: u64| processes.by_number.get(&number).cloned()).ok_or_else(|| {
            let message = format!("there is no process {name:?}: it was never started, or ended long ago");
            Failure::new(ErrorCode::NotFound, message)
        })
    }

    fn insert(&self, started: Arc<Started>) -> String {
        let mut processes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        processes.last += 1;
        let number = processes.last;
        processes.by_number.insert(number, started);
        let ended =
            processes.by_number.iter().filter(|(_, process)| process.has_ended()).map(|(number, _)| *number);
        let ended: Vec<_> = ended.collect();
        for number in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            processes.by_number.remove(number);
        }
        format!("p{number}")
    }
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
    fn never_started(&self, launch: &Launch, why: &NotStarted) -> Exit {
        self.push(launch.explain(why).as_bytes(), true);
        Exit { exit_code: NEVER_STARTED, ..Exit::default() }
    }

    fn finish(&self, exit: Exit) {
        self.state.send_modify(|state| state.exit = Some(exit));
    }

    /// Reads one output to its end. What comes after the end of the process is read and dropped, so
    /// that a child in the background can go on; it takes the place of the process until then.
    async fn read(self: Arc<Self>, mut pipe: Receiver, stderr: bool, _slot: Arc<OwnedSemaphorePermit>) {
        let mut buffer = vec![0; 8 << 10];
        while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
            self.wait_for_room().await;
            self.push(&buffer[..read], stderr);
        }
    }

    /// Waits for the process and passes signals on; holds it until it is gone.
    async fn look_after(
        self: Arc<Self>,
        launch: Launch,
        mut running: Running,
        mut readers: JoinSet<()>,
        mut signalled: mpsc::Receiver<(Signal, oneshot::Sender<()>)>,
    ) {
        let time_is_up = super::execute::sleep(launch.timeout);
        tokio::pin!(time_is_up);
        let exit = loop {
            tokio::select! {
                ended = running.wait() => break match ended {
                    Ok(exit_code) => Exit { exit_code, ..Exit::default() },
                    Err(why) => self.never_started(&launch, &why),
                },
                () = &mut time_is_up => {
                    running.kill().await;
                    break Exit { exit_code: TIMED_OUT, timed_out: true, ..Exit::default() };
                }
                Some((signal, done)) = signalled.recv() => {
                    running.signal(signal).await;
                    // Who asked may have left meanwhile.
                    let _ = done.send(());
                }
            }
        };
        drop(running);
        while tokio::time::timeout(limits::OUTPUT_GRACE, all(&mut readers)).await.is_err() {
            // Readers that wait for a follower have more to come; others wait for a child in the background.
            if self.state.borrow().held == 0 {
                break;
            }
        }
        self.finish(exit);
        readers.detach_all();
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

fn spawn(launch: &Launch, children: &Arc<Children>) -> Result<(Running, Receiver, Receiver), NotStarted> {
    let failed = |error| NotStarted::new(Step::Files, error);
    let (stdout, stdout_end) = io::pipe().map_err(failed)?;
    let (stderr, stderr_end) = io::pipe().map_err(failed)?;
    let stdout = Receiver::from_owned_fd(OwnedFd::from(stdout)).map_err(failed)?;
    let stderr = Receiver::from_owned_fd(OwnedFd::from(stderr)).map_err(failed)?;
    let running = launch.start(Setting::without_input(stdout_end.into(), stderr_end.into())?, children)?;
    Ok((running, stdout, stderr))
}
