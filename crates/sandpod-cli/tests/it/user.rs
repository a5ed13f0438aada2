//! Users of this machine, root and an ordinary one, who run shell lines outside and inside sandboxes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output};

use tempfile::TempDir;

use super::{stderr, stdout};

/// A uid that no user of the machine has.
pub(crate) const ORDINARY: u32 = 123_456;
/// The interpreter of the system; one of a version manager is in a home directory, which sandboxes do not see.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// A user with a home directory and a copy of the command in it.
pub(crate) struct User {
    pub(crate) home: TempDir,
    uid: Option<u32>,
}

impl User {
    pub(crate) fn new(uid: Option<u32>) -> Self {
        let home = tempfile::tempdir().unwrap();
        // `cp` is another process: a child that this one forks meanwhile would inherit the copy open for writing (ETXTBSY).
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_sandpod")).arg(home.path()).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        chown(home.path(), uid, uid).unwrap();
        Self { home, uid }
    }

    /// Root and an ordinary user, or only the current user where that is not root.
    pub(crate) fn all() -> Vec<Self> {
        let ordinary = is_root().then(|| Self::new(Some(ORDINARY)));
        [Self::new(None)].into_iter().chain(ordinary).collect()
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        let path = self.home.path().join(name);
        fs::write(&path, content).unwrap();
        chown(&path, self.uid, self.uid).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("HOME", self.home.path()).env_remove("XDG_STATE_HOME").current_dir("/");
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    pub(crate) fn outside(&self, line: &str) -> Output {
        self.command("/bin/sh").args(["-c", line]).output().unwrap()
    }

    pub(crate) fn inside(&self, line: &str) -> Output {
        self.command(self.home.path().join("sandpod")).args(["run", line]).output().unwrap()
    }

    pub(crate) fn fails_inside(&self, line: &str) {
        let confined = self.inside(line);
        let printed = stdout(&confined) + &stderr(&confined);
        assert!(!confined.status.success(), "this should not work inside: {line}\n{printed}");
        for (code, why) in [
            (125, "it did not start"),
            (127, "a program that it needs is missing"),
            (255, "its sandbox ended"),
        ] {
            assert_ne!(confined.status.code(), Some(code), "{why}: {line}\n{printed}");
        }
    }

    pub(crate) fn works_outside_only(&self, line: &str) {
        let free = self.outside(line);
        assert!(free.status.success(), "this should work outside: {line}\n{}", stderr(&free));
        self.fails_inside(line);
    }
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A shell line that runs a program in Python.
pub(crate) fn python(program: &str) -> String {
    let library = "import ctypes, fcntl, os, pty, socket, struct, sys\n\
                   libc = ctypes.CDLL(None, use_errno=True)\n\
                   def call(number, *arguments):\n    \
                       ctypes.set_errno(0)\n    \
                       done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))\n    \
                       return 0 if done >= 0 else ctypes.get_errno()\n";
    format!("{PYTHON} - <<'END'\n{library}{program}\nEND\n")
}

/// A process of the user outside all sandboxes.
pub(crate) struct Victim(Child);

impl Victim {
    pub(crate) fn of(user: &User) -> Self {
        let mut sleep = user.command("/bin/sleep");
        Self(sleep.arg("1000").env("SECRET", "in the environment").spawn().unwrap())
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Reports whether it ends within two seconds.
    pub(crate) fn ends(&mut self) -> bool {
        let mut has_ended = || self.0.try_wait().unwrap().is_some();
        (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            has_ended()
        })
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
