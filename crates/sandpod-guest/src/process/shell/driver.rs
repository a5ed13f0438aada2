//! The script around a line of a shell session.
//!
//! It restores the state that the guest cannot set from outside, and runs the line from a file, so that `$0`, `$#` and the
//! standard input are as without a session. At the end it prints the shell's state into another file: from a trap, which
//! also runs after `exit`, `set -e` and syntax errors, and once more after the line, which may have set a trap of its
//! own. The script itself prints nothing to the command's output, even with `set -x`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::MemfdFlags;

use super::State;

/// Lowest descriptor number of the script's files, above those that lines use themselves.
const FIRST_FILE: i32 = 700;

pub(super) struct Driver {
    pub(super) script: String,
    pub(super) inherited: Vec<OwnedFd>,
    /// File into which the shell reports its final state.
    pub(super) report: File,
}

impl Driver {
    pub(super) fn new(state: Option<&State>, line: &str) -> io::Result<Self> {
        let (mut script, mut inherited) = (String::new(), Vec::new());
        let mut start_with = String::new();
        if let Some(state) = state {
            let _ = writeln!(script, "umask {:04o}", state.umask);
            if !state.functions.is_empty() {
                let functions = duplicate_high(&file(&[&state.functions])?)?;
                let _ = writeln!(script, ". /proc/self/fd/{}", functions.as_raw_fd());
                inherited.push(functions);
            }
            if !state.options.is_empty() {
                start_with = format!("set -o {}; ", state.options.join(" -o "));
            }
        }
        let report = file(&[])?;
        let report_end = duplicate_high(&report)?;
        let line = duplicate_high(&file(&[start_with.as_bytes(), line.as_bytes()])?)?;
        script.push_str(&driver_script(report_end.as_raw_fd(), line.as_raw_fd()));
        inherited.extend([report_end, line]);
        Ok(Self { script, inherited, report })
    }
}

/// The script. It uses `command` because a line may define functions with names of builtins, and `>|` because of `set -C`.
fn driver_script(report: i32, line: i32) -> String {
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
        }} >| /proc/self/fd/{report}
    fi
    return $__sandpod_status
}}
trap '{{ __sandpod_keep; }} 2>/dev/null' EXIT
. /proc/self/fd/{line}
{{ __sandpod_keep && :; }} 2>/dev/null
"#
    )
}

/// Makes a file in memory.
fn file(parts: &[&[u8]]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("shell", MemfdFlags::CLOEXEC)?);
    parts.iter().try_for_each(|part| file.write_all(part))?;
    Ok(file)
}

/// Duplicates a file to a high descriptor number, if the limit allows it.
fn duplicate_high(file: &File) -> io::Result<OwnedFd> {
    let high = rustix::io::fcntl_dupfd_cloexec(file, FIRST_FILE);
    Ok(high.or_else(|_| rustix::io::fcntl_dupfd_cloexec(file, 3))?)
}
