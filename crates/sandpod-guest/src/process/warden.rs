//! A warden stands between the guest and each command, so that nothing the command starts gets away.
//!
//! It is a bare copy of the guest without its files, that takes in every process of the command that
//! loses its parent, and ends with the command's exit code when the command ends. What the command
//! leaves in the background then falls to the guest. While the command runs, all that it started is
//! below its warden, also what left its session or lost its parents: neither a name, a session nor
//! an environment variable could say that of a process that would rather not be found.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, WaitOptions};

use crate::policy::Restriction;

/// Puts a warden before a command, which inherits some files and is held by `restriction`; with `terminal`
/// its standard input becomes its controlling terminal.
#[expect(unsafe_code, reason = "only a hook between fork and exec can place a process there")]
pub(crate) fn stand_before(
    command: &mut Command,
    inherited: Vec<OwnedFd>,
    terminal: bool,
    restriction: Arc<Restriction>,
) {
    let hook = move || {
        split()?;
        set_blocked_signals(libc::sigemptyset);
        close_on_exec();
        for file in &inherited {
            rustix::io::fcntl_setfd(file, FdFlags::empty())?;
        }
        if terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(restriction.enter()?)
    };
    // SAFETY: the hook only makes system calls: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(hook) };
}

/// Returns in the command only; the process that the guest has forked becomes the warden.
fn split() -> io::Result<()> {
    let session = rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(session))?;
    match fork()? {
        Some(command) => watch(command),
        None => rustix::process::setsid().map(drop).map_err(io::Error::from),
    }
}

/// Forks by the bare system call: what libc would do besides is for programs that go on after it.
#[expect(unsafe_code, reason = "no safe fork exists")]
fn fork() -> io::Result<Option<Pid>> {
    const NONE: libc::c_long = 0;
    // SAFETY: without flags but the signal this is fork; the child has a copy of everything. Both sides
    // make system calls only until they exec or exit.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(libc::SIGCHLD), NONE, NONE, NONE, NONE) };
    match i32::try_from(pid) {
        Ok(pid) if pid >= 0 => Ok(Pid::from_raw(pid)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for the command, and for whatever falls to the warden meanwhile.
fn watch(command: Pid) -> ! {
    set_blocked_signals(libc::sigfillset);
    close_files();
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                let code =
                    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
                if let Some(code) = code {
                    exit(code);
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => exit(255),
        }
    }
}

/// Holds back all signals, or none. None but those that nobody can refuse ends a warden, nor runs the guest's
/// handlers in it; and what the guest holds back for itself is not the command's.
#[expect(unsafe_code, reason = "signal masks have no safe interface")]
fn set_blocked_signals(fill: unsafe extern "C" fn(*mut libc::sigset_t) -> libc::c_int) {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: both ways to fill it write the whole set before sigprocmask reads it.
    unsafe {
        fill(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// A warden that held the command's output, or the guest's streams, would keep them open.
#[expect(unsafe_code, reason = "files that somebody else owns are closed")]
fn close_files() {
    /// For kernels that cannot close a range.
    const FILES: libc::c_int = 65_536;
    // SAFETY: this copy of the guest uses none of its files again.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
            for file in 0..FILES {
                libc::close(file);
            }
        }
    }
}

/// The guest opens all its files so that no command gets them, but it may itself have been given some.
#[expect(unsafe_code, reason = "files that somebody else owns are marked")]
fn close_on_exec() {
    // SAFETY: no file is closed before exec. A kernel that doesn't know the flag leaves them as they are.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

#[expect(unsafe_code, reason = "the guest's exit handlers are not for the warden")]
fn exit(code: i32) -> ! {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(code) }
}
