//! The terminal that we run in.

use std::io::{self, IsTerminal as _};
use std::sync::OnceLock;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sandpod::TerminalSize;

/// The terminal's own settings, once they were changed: also a panic gives them back.
static BEFORE: OnceLock<Termios> = OnceLock::new();

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
        Ok(Self(()))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(before) = BEFORE.get() {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, before); // It may be gone.
    }
}

/// Whether a person types and reads here.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// How large it is; nothing if it doesn't say.
pub(crate) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    Some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
}
