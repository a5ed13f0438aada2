//! The terminal that we run in.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use sandpod::TerminalSize;

/// Of a terminal that doesn't say.
const USUAL_COLUMNS: usize = 80;

/// The terminal's own settings, once they were changed: also a panic gives them back.
static BEFORE: OnceLock<Termios> = OnceLock::new();

/// It passes every key on now.
static IS_RAW: AtomicBool = AtomicBool::new(false);

/// A terminal that passes every key on, until this is dropped.
pub(crate) struct RawTerminal(());

impl RawTerminal {
    /// Takes the terminal on stdin.
    pub(crate) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        if BEFORE.set(before).is_ok() {
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

/// Whether all that is shown is up to a program in a sandbox.
pub(crate) fn is_raw() -> bool {
    IS_RAW.load(Ordering::Relaxed)
}

fn restore() {
    IS_RAW.store(false, Ordering::Relaxed);
    if let Some(before) = BEFORE.get() {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, before); // It may be gone.
    }
}

/// Whether a person types and reads here.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Whether we may read stdin: a terminal stops whoever reads from it in the background.
pub(crate) fn may_read() -> bool {
    tcgetpgrp(io::stdin()).map_or(true, |foreground| foreground == getpgrp())
}

/// How many columns stderr has, where progress is shown.
pub(crate) fn columns() -> usize {
    let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { USUAL_COLUMNS } else { columns }
}

/// How large it is; nothing if it doesn't say.
pub(crate) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    Some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
}
