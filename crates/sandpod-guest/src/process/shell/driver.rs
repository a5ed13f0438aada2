//! The script around a line of a shell session.
//!
//! It brings back what the guest cannot give a process from outside, runs the line from a file, so that `$0`,
//! `$#` and the standard input are as without a session, and prints the state of the shell at its end into
//! another file: from a trap, so that `exit`, `set -e` and syntax errors come to it, too, and once more
//! after the line, which may have a trap of its own. No output of it is to be seen, also with `set -x`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::MemfdFlags;

use super::State;

/// Numbers from here on are no file's that a line names itself.
const FIRST_FILE: i32 = 700;

pub(super) struct Driver {
    pub(super) script: String,
    pub(super) inherited: Vec<OwnedFd>,
    /// What the shell says of itself at the end.
    pub(super) said: File,
}

impl Driver {
    pub(super) fn new(state: Option<&State>, line: &str) -> io::Result<Self> {
        let (mut script, mut inherited) = (String::new(), Vec::new());
        let mut start_with = String::new();
        if let Some(state) = state {
            let _ = writeln!(script, "umask {:04o}", state.umask);
            if !state.functions.is_empty() {
                let functions = hand_over(&file(&[&state.functions])?)?;
                let _ = writeln!(script, ". /proc/self/fd/{}", functions.as_raw_fd());
                inherited.push(functions);
            }
            if !state.options.is_empty() {
                start_with = format!("set -o {}; ", state.options.join(" -o "));
            }
        }
        let said = file(&[])?;
        let saying = hand_over(&said)?;
        let line = hand_over(&file(&[start_with.as_bytes(), line.as_bytes()])?)?;
        script.push_str(&keep(saying.as_raw_fd(), line.as_raw_fd()));
        inherited.extend([saying, line]);
        Ok(Self { script, inherited, said })
    }
}

/// `command` is there because a line may give a builtin's name to a function of its own; `>|` because of `set -C`.
fn keep(said: i32, line: i32) -> String {
    format!(
        r#"__sandpod_keep() {{
    __sandpod_status=$?
    if [ -z "${{__sandpod_kept-}}" ]; then
        __sandpod_kept=1
        {{
            command pwd
            command printf '\000'
            command umask
            command printf '\000'
            command set +o
            command printf '\000'
            command export -p
            command printf '\000'
            if command -v typeset >/dev/null; then (unset -f __sandpod_keep; typeset -f) fi
            command printf '\000end\000'
        }} >| /proc/self/fd/{said}
    fi
    return $__sandpod_status
}}
trap '{{ __sandpod_keep; }} 2>/dev/null' EXIT
. /proc/self/fd/{line}
{{ __sandpod_keep && :; }} 2>/dev/null
"#
    )
}

/// A file in memory.
fn file(parts: &[&[u8]]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("shell", MemfdFlags::CLOEXEC)?);
    parts.iter().try_for_each(|part| file.write_all(part))?;
    Ok(file)
}

/// The same file under a high number, where that is allowed.
fn hand_over(file: &File) -> io::Result<OwnedFd> {
    let high = rustix::io::fcntl_dupfd_cloexec(file, FIRST_FILE);
    Ok(high.or_else(|_| rustix::io::fcntl_dupfd_cloexec(file, 3))?)
}
