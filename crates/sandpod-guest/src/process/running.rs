//! Processes that the guest has started and waits for.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::streams::Streams;
use super::tree;
use super::warden::{self, Ground, NotStarted, Program};

/// An option of waiting: for wardens, too, whose end no signal tells of.
pub(crate) const EVERY_CHILD: u32 = libc::__WALL.cast_unsigned();

/// A good part of what a program takes to begin.
const MOMENT: Duration = Duration::from_millis(1);
/// A program that has not begun after so many is on a file system that does not answer.
const MAX_MOMENTS: usize = 500;
/// How long the end of a command that is being killed is waited for before it is looked at again, and how often: 2 s
/// in all.
const FIRST_ROUND: Duration = Duration::from_millis(2);
const LAST_ROUND: Duration = Duration::from_millis(64);
const MAX_ROUNDS: usize = 35;

/// The guest's children that somebody in it waits for. All others are orphans that fell to it.
#[derive(Default)]
pub(crate) struct Children {
    known: Mutex<HashSet<Pid>>,
    /// Shared by those who start a process until it is known; the reaper excludes them.
    starting: RwLock<()>,
    left: Notify,
}

impl Children {
    /// Starts a program below a warden.
    pub(crate) fn start(self: &Arc<Self>, program: Program, streams: Streams) -> Result<Running, NotStarted> {
        let _until_known = self.starting.read().unwrap_or_else(PoisonError::into_inner);
        let (pid, ground) = warden::start(program, streams)?;
        self.known().insert(pid);
        Ok(Running { pid, end: End::of(pid), ground: Some(ground), code: None, children: self.clone() })
    }

    /// Calls `reap` for each process that nobody here waits for, while none is started.
    pub(crate) fn without_known(&self, processes: impl IntoIterator<Item = Pid>, reap: impl Fn(Pid)) {
        let _none_starts = self.starting.write().unwrap_or_else(PoisonError::into_inner);
        let known = self.known();
        processes.into_iter().filter(|pid| !known.contains(pid)).for_each(reap);
    }

    /// Resolves when a child has been waited for.
    pub(crate) async fn left(&self) {
        self.left.notified().await;
    }

    fn known(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command that runs, or has ended and was not asked for its exit code yet.
pub(crate) struct Running {
    /// Its warden.
    pid: Pid,
    end: End,
    ground: Option<Box<Ground>>,
    code: Option<i32>,
    children: Arc<Children>,
}

impl Running {
    /// The number of its warden, which nobody else gets until [`Self::wait`] has returned.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for its end: its exit code, or why it never ran. Nothing is lost if this future is dropped.
    pub(crate) async fn wait(&mut self) -> Result<i32, NotStarted> {
        if self.code.is_none() {
            self.end.reached().await;
        }
        let code = *self.code.get_or_insert_with(|| exit_code(self.pid));
        self.ground.as_ref().and_then(|ground| ground.failure()).map_or(Ok(code), Err)
    }

    /// Sends a signal to the command and all that it started.
    pub(crate) async fn signal(&self, signal: Signal) {
        self.begun().await;
        tree::signal_below(self.pid, signal);
    }

    /// Kills the command and all that it started, and waits until nothing of it is left. What the kernel does not end
    /// in time is left to its warden, which stays until then.
    pub(crate) async fn kill(&mut self) {
        self.begun().await;
        if let Some(ground) = &self.ground {
            ground.condemn();
        }
        let mut round = FIRST_ROUND;
        for _ in 0..MAX_ROUNDS {
            tree::signal_below(self.pid, Signal::KILL);
            // The command may have stopped it.
            let _ = rustix::process::kill_process(self.pid, Signal::CONT);
            // How it ended is known.
            if tokio::time::timeout(round, self.wait()).await.is_ok() {
                return;
            }
            round = LAST_ROUND.min(round * 2);
        }
    }

    /// Waits for the program to take over: before that there may be nobody yet to get a signal.
    async fn begun(&self) {
        for _ in 0..MAX_MOMENTS {
            if self.has_begun() {
                return;
            }
            tokio::time::sleep(MOMENT).await;
        }
    }

    fn has_begun(&self) -> bool {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = ended | WaitIdOptions::from_bits_retain(EVERY_CHILD);
        self.code.is_some()
            || self.ground.as_ref().is_none_or(|ground| ground.is_left())
            || !matches!(rustix::process::waitid(WaitId::Pid(self.pid), ended), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let is_free = |ground: &Ground| self.code.is_some() && ground.is_left();
        if let Some(ground) = self.ground.take().filter(|ground| !is_free(ground)) {
            // Somebody may still stand on it: a warden that was not waited for, or a command whose warden
            // was killed before the program took over.
            Box::leak(ground);
        }
        self.children.known().remove(&self.pid);
        self.children.left.notify_one();
    }
}

/// Tells when a child has ended, and leaves it to be waited for.
enum End {
    File(AsyncFd<OwnedFd>),
    /// For kernels without files of processes.
    Thread(JoinHandle<()>),
}

impl End {
    #[expect(unsafe_code, reason = "a file must stay open while it is watched, which no type says")]
    fn of(pid: Pid) -> Self {
        let file = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        // SAFETY: it owns the file, so the file is open for as long as it is watched.
        let watch = |file| unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) };
        let file = file.and_then(|file| watch(file).ok());
        file.map_or_else(|| Self::by_thread(pid), Self::File)
    }

    fn by_thread(pid: Pid) -> Self {
        let options =
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::from_bits_retain(EVERY_CHILD);
        Self::Thread(tokio::task::spawn_blocking(move || {
            while matches!(rustix::process::waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
        }))
    }

    async fn reached(&mut self) {
        match self {
            // If it can't be told, the wait that follows takes as long as it takes.
            Self::File(file) => drop(file.readable().await),
            Self::Thread(thread) => drop(thread.await),
        }
    }
}

/// Takes the exit code of a child that has ended.
fn exit_code(pid: Pid) -> i32 {
    let status = loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::from_bits_retain(EVERY_CHILD)) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    // Nobody else waits for it, so its status can be had.
    status.ok().flatten().and_then(|(_, status)| code_of(status)).unwrap_or(255)
}

/// The exit code as a shell has it: 128 and the number of the signal that ended it.
pub(super) fn code_of(status: WaitStatus) -> Option<i32> {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_child_is_noticed_on_kernels_without_files_of_processes_too() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        End::by_thread(pid).reached().await;
        assert!(child.try_wait().unwrap().unwrap().success());
    }
}
