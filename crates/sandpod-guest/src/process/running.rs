//! Processes that the guest has started and waits for.

use std::collections::HashSet;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustix::process::Pid;
use tokio::process::{Child, Command};
use tokio::sync::Notify;

/// The guest's children that somebody in it waits for. All others are orphans that fell to it.
#[derive(Default)]
pub(crate) struct Children {
    known: Mutex<HashSet<Pid>>,
    /// Shared by those who start a process until it is known; the reaper excludes them.
    starting: RwLock<()>,
    left: Notify,
}

impl Children {
    /// Starts a process.
    pub(crate) fn start(self: &Arc<Self>, command: std::process::Command) -> io::Result<Running> {
        let _until_known = self.starting.read().unwrap_or_else(PoisonError::into_inner);
        let child = Command::from(command).spawn()?;
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| io::Error::other("the process has no number"))?;
        self.known().insert(pid);
        Ok(Running { child, pid, children: self.clone() })
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

/// A process that runs, or has ended and was not asked for its exit code yet.
pub(crate) struct Running {
    child: Child,
    pid: Pid,
    children: Arc<Children>,
}

impl Running {
    /// Its number, which nobody else gets until [`Self::wait`] has returned.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for its end. Nothing is lost if this future is dropped.
    pub(crate) async fn wait(&mut self) -> i32 {
        // Nobody else waits for it, so its status can be had.
        self.child.wait().await.map_or(255, exit_code)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.children.known().remove(&self.pid);
        self.children.left.notify_one();
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255)
}
