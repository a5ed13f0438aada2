//! Who sandboxes are made by: root and somebody ordinary, and what they do outside and inside.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output};

use tempfile::TempDir;

use super::{stderr, stdout};

/// A number that no user of the machine has.
pub(crate) const ORDINARY: u32 = 123_456;
/// Not the one of a version manager, which lies in somebody's home.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Somebody with a home and a copy of the command.
pub(crate) struct Person {
    pub(crate) home: TempDir,
    user: Option<u32>,
}

impl Person {
    pub(crate) fn new(user: Option<u32>) -> Self {
        let home = tempfile::tempdir().unwrap();
        // By another process: what this one starts meanwhile would keep the copy open for writing, and so from running.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_sandpod")).arg(home.path()).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        chown(home.path(), user, user).unwrap();
        Self { home, user }
    }

    /// Root and somebody ordinary, or just who we are.
    pub(crate) fn all() -> Vec<Self> {
        let ordinary = is_root().then(|| Self::new(Some(ORDINARY)));
        [Self::new(None)].into_iter().chain(ordinary).collect()
    }

    pub(crate) fn file(&self, name: &str, content: &str) -> String {
        let path = self.home.path().join(name);
        fs::write(&path, content).unwrap();
        chown(&path, self.user, self.user).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("HOME", self.home.path()).env_remove("XDG_STATE_HOME").current_dir("/");
        if let Some(user) = self.user {
            command.uid(user).gid(user);
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
        let said = stdout(&confined) + &stderr(&confined);
        assert!(!confined.status.success(), "this should not work inside: {line}\n{said}");
        for (code, why) in
            [(125, "it did not even start"), (127, "what it needs is not there"), (255, "its sandbox ended")]
        {
            assert_ne!(confined.status.code(), Some(code), "{why}: {line}\n{said}");
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

/// A line for the shell that runs a program in Python.
pub(crate) fn python(program: &str) -> String {
    let library = "import ctypes, fcntl, os, pty, socket, struct, sys\n\
                   libc = ctypes.CDLL(None, use_errno=True)\n\
                   def call(number, *arguments):\n    \
                       ctypes.set_errno(0)\n    \
                       done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))\n    \
                       return 0 if done >= 0 else ctypes.get_errno()\n";
    format!("{PYTHON} - <<'END'\n{library}{program}\nEND\n")
}

/// A process of the machine's that belongs to the person.
pub(crate) struct Victim(Child);

impl Victim {
    pub(crate) fn of(person: &Person) -> Self {
        let mut sleep = person.command("/bin/sleep");
        Self(sleep.arg("1000").env("SECRET", "in the environment").spawn().unwrap())
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it ends by itself, soon.
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
