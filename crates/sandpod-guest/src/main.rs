//! The guest's program: `serve` in a sandbox, `pipe` to reach it from outside.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use sandpod_guest::{Guest, Options, Orders, local, pipe, serve};

const USAGE: &str = "usage: sandpod-guest serve [-- COMMAND...] | pipe | local [--network] | --version";
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
        ["local", ..] => return local::run(),
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
    let state_dir = std::env::var_os("SANDPOD_STATE_DIR").unwrap_or_else(|| STATE_DIR.into());
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
