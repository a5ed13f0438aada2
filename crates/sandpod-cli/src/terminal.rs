//! The terminal of this process.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use sandpod::TerminalSize;

/// The width of a terminal that does not report one.
const DEFAULT_COLUMNS: usize = 80;

/// The settings before raw mode; a panic restores them, too.
static SAVED: OnceLock<Termios> = OnceLock::new();

/// The terminal is in raw mode.
static IS_RAW: AtomicBool = AtomicBool::new(false);

/// Raw mode of the terminal, until this is dropped.
pub(crate) struct RawTerminal(());

impl RawTerminal {
    /// Switches the terminal on stdin to raw mode.
    pub(crate) fn enter() -> io::Result<Self> {
        let saved = tcgetattr(io::stdin())?;
        let mut raw = saved.clone();
        raw.make_raw();
        if SAVED.set(saved).is_ok() {
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                hook(panic);
            }));
        }
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        IS_RAW.store(true, Ordering::Relaxed);
        Ok(Self(()))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Reports whether a program in a sandbox controls the terminal.
pub(crate) fn is_raw() -> bool {
    IS_RAW.load(Ordering::Relaxed)
}

fn restore() {
    IS_RAW.store(false, Ordering::Relaxed);
    if let Some(saved) = SAVED.get() {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, saved); // The terminal may be closed.
    }
}

/// Reports whether stdin and stdout are a terminal.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Reports whether we may read stdin: a terminal stops a background process that reads from it.
pub(crate) fn can_read_stdin() -> bool {
    tcgetpgrp(io::stdin()).map_or(true, |foreground| foreground == getpgrp())
}

/// The columns of stderr, where progress is drawn.
pub(crate) fn columns() -> usize {
    let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { DEFAULT_COLUMNS } else { columns }
}

/// The size of the terminal, if it reports one.
pub(crate) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    Some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
}
