//! The guest of a local sandbox, as a process of this machine.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::process::{Child, Command};

use super::anchor::Anchor;
use super::cgroups::Cgroups;
use super::limits::Limits;
use super::lock::Lock;
use super::{LocalMount, LocalNetwork};
use crate::{Result, SandboxId, guest_binaries};

/// The guest's user outside its namespaces if its creator is root.
const UNPRIVILEGED_USER: u32 = 65534;
/// The longest time that a guest may take to build its root.
const LONGEST_START: Duration = Duration::from_secs(30);
/// The interval of checks whether a guest has started or exited.
const END_PAUSE: Duration = Duration::from_micros(300);
/// Maximum size of a setup message, as in `local::setup` of `sandpod_guest`.
const MAX_SETUP_BYTES: usize = 16 << 10;
/// The most bytes that are read of a guest's log.
const MAX_LAST_WORDS: usize = 4096;

/// A program that becomes the guest of a local sandbox when it is started with these arguments.
///
/// ```
/// use sandpod::GuestProgram;
///
/// let program = GuestProgram { path: "/usr/bin/sandpod-guest".into(), args: vec!["local".to_owned()] };
/// # assert_eq!(program.args, ["local"]);
/// ```
#[derive(Clone, Debug)]
pub struct GuestProgram {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
}

impl GuestProgram {
    /// Returns the guest that was installed with this executable, beside it, or that `SANDPOD_GUEST_DIR` names. None if
    /// there is none.
    ///
    /// ```
    /// use sandpod::GuestProgram;
    ///
    /// let own = || GuestProgram { path: "/proc/self/exe".into(), args: vec!["guest".to_owned()] };
    /// let program = GuestProgram::installed()?.unwrap_or_else(own);
    /// # assert_eq!(program.args.len(), 1);
    /// # Ok::<(), sandpod::Error>(())
    /// ```
    pub fn installed() -> Result<Option<Self>> {
        Ok(guest_binaries::find_installed_guest()?.map(Self::at))
    }

    /// The guest's own program.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, args: vec!["local".to_owned()] }
    }
}

/// The options of a guest's start.
#[derive(Clone, Debug)]
pub(crate) struct StartOptions {
    /// The guest ends when its creator exits or drops the return value of [`start`].
    pub(crate) owned: bool,
    pub(crate) network: LocalNetwork,
    pub(crate) limits: Limits,
    pub(crate) mounts: Vec<LocalMount>,
}

impl StartOptions {
    /// Returns the options of a new sandbox, in whose mounts symbolic links are resolved.
    pub(super) fn resolved(&self) -> Result<Self> {
        let mounts = self.mounts.iter().map(LocalMount::resolved).collect::<Result<_>>()?;
        Ok(Self { mounts, ..self.clone() })
    }
}

/// A running guest. If it is owned, it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Started {
    _control: UnixStream,
    _process: Child,
}

/// A guest whose program is loaded and that waits for its sandbox. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Loading {
    control: UnixStream,
    process: Child,
}

/// Starts the program of the guest of sandbox `id`. Loading takes about as long as creating the sandbox, so it is done first.
pub(super) fn load(program: &GuestProgram, id: &SandboxId) -> io::Result<Loading> {
    let (control, theirs) = UnixStream::pair()?;
    // Opened here, because the guest's user may have no access to its path.
    let file = File::open(&program.path)?;
    let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    // Lists of processes show the sandbox.
    command.arg0(format!("sandpod-guest {id}"));
    // Its output before it has a log is dropped.
    command.args(&program.args).env_clear().stdin(Stdio::from(OwnedFd::from(theirs)));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // The guest changes its user itself: doing it here would copy our page tables.
    // Dropping the command closes our copy of the guest's end of the socket, so the guest notices when this process
    // dies.
    Ok(Loading { control, process: command.spawn()? })
}

impl Loading {
    /// Starts the guest in a sandbox. It holds the lock while it runs, and writes errors to its log.
    pub(super) fn start_in(
        self,
        options: &StartOptions,
        anchor: &Anchor,
        lock: &File,
        listener: &UnixListener,
    ) -> io::Result<Started> {
        let Self { control, process } = self;
        let user = changed_user();
        anchor.make_places(user)?;
        let cgroups = anchor.make_cgroups(&options.limits)?;
        // The guest creates its namespaces after it has got its setup. This cgroup is then their root.
        process.id().map_or(Ok(()), |process| cgroups.admit(process))?;
        let (places, log) = (File::open(anchor.places())?, File::create(anchor.log())?);
        let files = [listener.as_fd(), places.as_fd(), lock.as_fd(), log.as_fd()];
        send_setup(&control, &setup_message(options, user, &cgroups), files)?;
        await_start(&control, anchor)?;
        Ok(Started { _control: control, _process: process })
    }
}

/// Waits until the guest has built its root and dropped its privileges. A guest that fails to do so exits.
fn await_start(mut control: &UnixStream, anchor: &Anchor) -> io::Result<()> {
    control.set_read_timeout(Some(LONGEST_START))?;
    // Unlike `read`, it continues after a signal such as SIGCHLD.
    match control.read_exact(&mut [0]) {
        Ok(()) => control.set_read_timeout(None),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            Err(io::Error::other("its guest does not start"))
        }
        _ => Err(io::Error::other(last_words(anchor).unwrap_or_else(|| "its guest was killed".to_owned()))),
    }
}

/// Returns the user to which a guest changes. None: it keeps that of its creator.
pub(crate) fn changed_user() -> Option<u32> {
    (rustix::process::geteuid().is_root() && is_known(UNPRIVILEGED_USER)).then_some(UNPRIVILEGED_USER)
}

/// Reports whether a user exists in our user namespace, which may contain root only.
fn is_known(user: u32) -> bool {
    let users = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let covers = |line: &str| {
        let mut numbers = line.split_whitespace().map_while(|number| number.parse::<u64>().ok());
        let (first, _, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some((first..first + count).contains(&u64::from(user)))
    };
    users.lines().filter_map(covers).any(|covered| covered)
}

/// Builds the message that `local::setup` of `sandpod_guest` parses.
fn setup_message(options: &StartOptions, user: Option<u32>, cgroups: &Cgroups) -> Vec<u8> {
    let flags = [options.owned, options.network == LocalNetwork::Host].map(u8::from);
    let tasks = options.limits.tasks.to_le_bytes();
    let user = user.unwrap_or_default().to_le_bytes();
    let places: String = Anchor::writable().flat_map(|place| [place, "\n"]).collect();
    let mounts: String = options.mounts.iter().map(LocalMount::line).collect();
    let lines = format!("{places}{}{mounts}end\n", cgroups.lines());
    [&flags[..], &tasks, &user, lines.as_bytes()].concat()
}

fn send_setup(control: &UnixStream, message: &[u8], files: [BorrowedFd<'_>; 4]) -> io::Result<()> {
    let length = message.len();
    if length > MAX_SETUP_BYTES {
        return Err(io::Error::other(format!(
            "its mounts are too many or their paths too long: they take {length} of at most {MAX_SETUP_BYTES} bytes"
        )));
    }
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let sent = sendmsg(control, &[io::IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == length { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Returns the end of the guest's log.
pub(super) fn last_words(anchor: &Anchor) -> Option<String> {
    let said = fs::read(anchor.log()).ok()?;
    let said = String::from_utf8_lossy(&said[..said.len().min(MAX_LAST_WORDS)]);
    Some(said.trim().to_owned()).filter(|said| !said.is_empty())
}

/// Ends the guest of the sandbox with this lock and all its processes, and waits until they have exited. The lock is
/// held afterwards, so that no other guest starts. Returns false if another process has deleted the sandbox.
pub(super) fn end(anchor: &Anchor, lock: &Lock) -> io::Result<bool> {
    let mut patience = LONGEST_START;
    while !lock.try_hold()? {
        if !anchor.has(lock) {
            return Ok(false);
        }
        if patience.is_zero() {
            return Err(io::Error::other("its guest does not end, or another process starts one and hangs"));
        }
        if let Some(pid) = lock.guest() {
            kill(pid, lock)?;
        }
        // Not by waiting for the lock: another process may start a guest with it first.
        std::thread::sleep(END_PAUSE);
        patience = patience.saturating_sub(END_PAUSE);
    }
    Ok(anchor.has(lock))
}

/// Kills the guest, unless it has exited. The kernel then kills all processes in its namespaces.
fn kill(pid: Pid, lock: &Lock) -> io::Result<()> {
    let killed = pidfd_open(pid, PidfdFlags::empty()).and_then(|process| {
        // The lock is held now, so the number is still the guest's process id.
        if lock.is_held().unwrap_or(false) { pidfd_send_signal(&process, Signal::KILL) } else { Ok(()) }
    });
    match killed {
        Err(Errno::SRCH) => Ok(()),
        killed => Ok(killed?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_that_is_too_long_is_not_sent() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let files = [file.as_fd(); 4];
        let error = send_setup(&ours, &vec![0; MAX_SETUP_BYTES + 1], files).unwrap_err();
        assert!(error.to_string().contains("take 16385 of at most 16384 bytes"), "{error}");
        send_setup(&ours, &vec![0; MAX_SETUP_BYTES], files).unwrap();
    }
}
