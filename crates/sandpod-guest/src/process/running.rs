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
use super::supervisor::{self, NotStarted, Program, SharedState};
use super::tree;

/// Wait option that includes supervisors, which send no signal when they end.
pub(crate) const EVERY_CHILD: u32 = libc::__WALL.cast_unsigned();

/// Interval at which a starting command is checked for its exec.
const EXEC_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// A program that has not started after this number of checks is on a file system that does not respond.
const MAX_EXEC_POLLS: usize = 500;
/// Bounds of the growing interval at which a kill is repeated, and the number of repetitions: 2 s in all.
const FIRST_KILL_INTERVAL: Duration = Duration::from_millis(2);
const LAST_KILL_INTERVAL: Duration = Duration::from_millis(64);
const MAX_KILLS: usize = 35;

/// The guest's children that a task waits for. All others are orphans that were reparented to it.
#[derive(Default)]
pub(crate) struct Children {
    known: Mutex<HashSet<Pid>>,
    /// Read-locked while a process is started and not yet in `known`; write-locked by the reaper.
    starting: RwLock<()>,
    reaped: Notify,
}

impl Children {
    /// Starts a program below a supervisor.
    pub(crate) fn start(self: &Arc<Self>, program: Program, streams: Streams) -> Result<Running, NotStarted> {
        let _until_known = self.starting.read().unwrap_or_else(PoisonError::into_inner);
        let (pid, shared) = supervisor::start(program, streams)?;
        self.known().insert(pid);
        Ok(Running { pid, end: ExitWatch::of(pid), shared: Some(shared), code: None, children: self.clone() })
    }

    /// Calls `reap` for each process that no task waits for. No process is started meanwhile.
    pub(crate) fn reap_unknown(&self, processes: impl IntoIterator<Item = Pid>, reap: impl Fn(Pid)) {
        let _no_start = self.starting.write().unwrap_or_else(PoisonError::into_inner);
        let known = self.known();
        processes.into_iter().filter(|pid| !known.contains(pid)).for_each(reap);
    }

    /// Resolves when a child has been waited for.
    pub(crate) async fn reaped(&self) {
        self.reaped.notified().await;
    }

    fn known(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command that runs, or has ended and was not waited for yet.
pub(crate) struct Running {
    /// The process number of its supervisor.
    pid: Pid,
    end: ExitWatch,
    shared: Option<Box<SharedState>>,
    code: Option<i32>,
    children: Arc<Children>,
}

impl Running {
    /// Returns the process number of its supervisor, which is not reused before [`Self::wait`] has returned.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for the end and returns the exit code, or why the command never ran. Cancel-safe.
    pub(crate) async fn wait(&mut self) -> Result<i32, NotStarted> {
        if self.code.is_none() {
            self.end.ended().await;
        }
        let code = *self.code.get_or_insert_with(|| exit_code(self.pid));
        self.shared.as_ref().and_then(|shared| shared.failure()).map_or(Ok(code), Err)
    }

    /// Sends a signal to the command and all its descendants.
    pub(crate) async fn signal(&self, signal: Signal) {
        self.wait_for_exec().await;
        tree::signal_below(self.pid, signal);
    }

    /// Kills the command and all its descendants, and waits until none is left. If the kernel does not end one in time,
    /// the supervisor stays until it does.
    pub(crate) async fn kill(&mut self) {
        self.wait_for_exec().await;
        if let Some(shared) = &self.shared {
            shared.request_kill();
        }
        let mut interval = FIRST_KILL_INTERVAL;
        for _ in 0..MAX_KILLS {
            tree::signal_below(self.pid, Signal::KILL);
            // The command may have stopped its supervisor.
            let _ = rustix::process::kill_process(self.pid, Signal::CONT);
            // An error is an end too.
            if tokio::time::timeout(interval, self.wait()).await.is_ok() {
                return;
            }
            interval = LAST_KILL_INTERVAL.min(interval * 2);
        }
    }

    /// Waits until the program was executed: before that, a signal may have no process to go to.
    async fn wait_for_exec(&self) {
        for _ in 0..MAX_EXEC_POLLS {
            if self.has_executed() {
                return;
            }
            tokio::time::sleep(EXEC_POLL_INTERVAL).await;
        }
    }

    /// Waits until the program was executed, and returns whether it was, as far as is known.
    pub(crate) async fn executes(&self) -> bool {
        self.wait_for_exec().await;
        self.shared.as_ref().is_none_or(|shared| shared.failure().is_none())
    }

    fn has_executed(&self) -> bool {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = ended | WaitIdOptions::from_bits_retain(EVERY_CHILD);
        self.code.is_some()
            || self.shared.as_ref().is_none_or(|shared| shared.is_released())
            || !matches!(rustix::process::waitid(WaitId::Pid(self.pid), ended), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let is_unused = |shared: &SharedState| self.code.is_some() && shared.is_released();
        if let Some(shared) = self.shared.take().filter(|shared| !is_unused(shared)) {
            // The memory may still be in use: by a supervisor that was not waited for, or by a command whose
            // supervisor was killed before the program was executed.
            Box::leak(shared);
        }
        self.children.known().remove(&self.pid);
        self.children.reaped.notify_one();
    }
}

/// Waits for the end of a child without reaping it.
enum ExitWatch {
    File(AsyncFd<OwnedFd>),
    /// For kernels without pidfds.
    Thread(JoinHandle<()>),
}

impl ExitWatch {
    #[expect(
        unsafe_code,
        reason = "the descriptor must stay open while it is registered, which no type guarantees"
    )]
    fn of(pid: Pid) -> Self {
        let file = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        // SAFETY: the `AsyncFd` owns the descriptor, which is therefore open while it is registered.
        let watch = |file| unsafe { AsyncFd::register_with_interest(file, Interest::READABLE) };
        let file = file.and_then(|file| watch(file).ok());
        file.map_or_else(|| Self::with_thread(pid), Self::File)
    }

    fn with_thread(pid: Pid) -> Self {
        let options =
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::from_bits_retain(EVERY_CHILD);
        Self::Thread(tokio::task::spawn_blocking(move || {
            while matches!(rustix::process::waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
        }))
    }

    async fn ended(&mut self) {
        match self {
            // On an error, the wait that follows blocks until the end.
            Self::File(file) => drop(file.readable().await),
            Self::Thread(thread) => drop(thread.await),
        }
    }
}

/// Reaps a child that has ended, and returns its exit code.
fn exit_code(pid: Pid) -> i32 {
    let status = loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::from_bits_retain(EVERY_CHILD)) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    // No other code waits for this child, so its status is available.
    status.ok().flatten().and_then(|(_, status)| shell_exit_code(status)).unwrap_or(255)
}

/// Returns the exit code as a shell reports it: 128 plus the number for a signal.
pub(super) fn shell_exit_code(status: WaitStatus) -> Option<i32> {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_child_is_noticed_without_pidfds() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        ExitWatch::with_thread(pid).ended().await;
        assert!(child.try_wait().unwrap().unwrap().success());
    }
}
