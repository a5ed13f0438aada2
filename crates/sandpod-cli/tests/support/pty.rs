//! A pseudo-terminal that runs the command.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::transcript::Stage;

/// The timeout for expected output; a prompt may wait for a Pod.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal that runs a program.
pub(crate) struct Terminal {
    screen: File,
    shown: Receiver<String>,
    /// The output that no expectation has consumed yet.
    unread: String,
    pub(crate) program: Child,
    side: OwnedFd,
}

impl Terminal {
    /// Runs a command in a new terminal of 24 lines and 80 columns.
    pub(crate) fn open(stage: &Stage, line: &str) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        resize(&master, 24, 80);
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let open = || File::options().read(true).write(true).open(&name).unwrap();
        let side = open();
        // A new process session, whose controlling terminal is stdin.
        let mut command = Command::new("setsid");
        let inner = stage.command(&format!("exec {line}"));
        command.arg("--ctty").arg(inner.get_program()).args(inner.get_args());
        command
            .env_clear()
            .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("TERM", "xterm");
        command.current_dir(inner.get_current_dir().unwrap());
        command.stdin(open()).stdout(open()).stderr(Stdio::from(open()));
        let program = command.spawn().unwrap();
        let screen = File::from(master);
        let shown = read_all(screen.try_clone().unwrap());
        Self { screen, shown, unread: String::new(), program, side: side.into() }
    }

    /// Opens a shell with a command, and waits for its prompt.
    pub(crate) fn shell(stage: &Stage, line: &str) -> Self {
        let mut terminal = Self::open(stage, line);
        terminal.shows("$ ");
        terminal.types("PS1='ready> '\r");
        terminal.shows("\r\n");
        terminal.shows("ready> ");
        terminal
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows the text, and consumes the output up to it.
    pub(crate) fn shows(&mut self, text: &str) {
        while !self.unread.contains(text) {
            let more = self.shown.recv_timeout(PATIENCE);
            let more = more.unwrap_or_else(|_| panic!("{text:?} is not shown, but: {:?}", self.unread));
            self.unread.push_str(&more);
        }
        let end = self.unread.find(text).unwrap() + text.len();
        self.unread.drain(..end);
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        resize(&self.screen, rows, columns);
    }

    /// Reports whether the terminal is in its initial mode, with echo and line editing.
    pub(crate) fn is_as_before(&self) -> bool {
        let modes = tcgetattr(&self.side).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    pub(crate) fn ends_with(&mut self, code: i32) {
        assert_eq!(self.program.wait().unwrap().code(), Some(code), "{:?}", self.unread);
        assert!(self.is_as_before());
    }
}

fn resize(terminal: impl std::os::fd::AsFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

fn read_all(mut screen: File) -> Receiver<String> {
    let (sender, shown) = channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // It fails when no process has the other side open.
        while let Ok(length) = screen.read(&mut buffer) {
            if length == 0 || sender.send(String::from_utf8_lossy(&buffer[..length]).into_owned()).is_err() {
                return;
            }
        }
    });
    shown
}
