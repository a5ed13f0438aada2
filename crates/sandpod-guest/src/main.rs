//! The guest's program: `serve` in a sandbox, `pipe` to reach it from outside, `seed` to fill its writable places before.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use sandpod_guest::{Guest, Options, Orders, local, pipe, seed, serve};

const USAGE: &str =
    "usage: sandpod-guest serve [-- COMMAND...] | pipe | local | seed DIRECTORY PLACE... | --version";
/// Where the guest keeps its state unless `SANDPOD_STATE_DIR` says where.
const STATE_DIR: &str = "/tmp/.sandpod-guest";
/// It never did what it was started for.
const NEVER_STARTED: u8 = 125;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let done = match words[..] {
        ["serve"] => run(&[]),
        ["serve", "--", ..] => run(&arguments[2..]),
        ["pipe"] => pipe::join(),
        // While there is one thread: namespaces can't be entered by more.
        ["local"] => return local::run(),
        ["seed", _, ..] => fill(&arguments[1], &arguments[2..]),
        ["--version"] => writeln!(io::stdout(), "sandpod-guest {}", env!("CARGO_PKG_VERSION")),
        _ => Err(io::Error::other(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a standard error output the exit code has to do.
            let _ = writeln!(io::stderr(), "sandpod-guest: {error}");
            ExitCode::from(NEVER_STARTED)
        }
    }
}

fn run(command: &[OsString]) -> io::Result<()> {
    let state_dir = state_dir();
    let orders = Orders::take()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let guest = Guest::new(Options::new(state_dir).with_own_env())?;
        serve::serve(guest, command, orders).await
    });
    // Work that still blocks a thread ends with the process.
    runtime.shutdown_background();
    result
}

/// Says what it did twice: in the container's log for people, and at its end for the client.
fn fill(into: &OsString, places: &[OsString]) -> io::Result<()> {
    let places: Vec<_> = places.iter().map(PathBuf::from).collect();
    let report = seed::seed(into.as_ref(), &places, state_dir().as_ref())?;
    writeln!(io::stdout(), "{report}")?;
    std::fs::write(seed::LAST_WORDS, report)
}

fn state_dir() -> OsString {
    std::env::var_os("SANDPOD_STATE_DIR").unwrap_or_else(|| STATE_DIR.into())
}
