//! The guest's program: `serve` in a sandbox, `pipe` to reach it from outside.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use sandpod_guest::{Doors, Guest, Options, Orders, Stock, pipe, serve};

const USAGE: &str = "usage: sandpod-guest serve [--listen ADDRESS] [--stock-apis[=RUNTIME,GRPC,REST]] \
                     [-- COMMAND...] | pipe | --version";
/// Where the guest keeps its state unless `SANDPOD_STATE_DIR` says where.
const STATE_DIR: &str = "/tmp/.sandpod-guest";
/// It never did what it was started for.
const NEVER_STARTED: u8 = 125;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let done = match words[..] {
        ["serve", ..] => run(&arguments[1..]),
        ["pipe"] => pipe::join(),
        ["--version"] => writeln!(io::stdout(), "sandpod-guest {}", env!("CARGO_PKG_VERSION")),
        _ => Err(usage()),
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

fn run(arguments: &[OsString]) -> io::Result<()> {
    let (doors, command) = doors(arguments)?;
    let state_dir = std::env::var_os("SANDPOD_STATE_DIR").unwrap_or_else(|| STATE_DIR.into());
    let orders = Orders::take()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let guest = Guest::new(Options::new(state_dir).with_own_env().with_own_token()?)?;
        serve::serve(guest, command, doors, orders).await
    });
    // Work that still blocks a thread ends with the process.
    runtime.shutdown_background();
    result
}

/// What to listen on besides the guest's own socket, and the words after `--`.
fn doors(arguments: &[OsString]) -> io::Result<(Doors, &[OsString])> {
    let mut doors = Doors::default();
    let mut rest = arguments;
    while let [word, after @ ..] = rest {
        rest = after;
        match (word.to_str().unwrap_or_default(), after) {
            ("--", command) => return Ok((doors, command)),
            ("--listen", [address, after @ ..]) => {
                doors.stream =
                    Some(address.to_str().and_then(|address| address.parse().ok()).ok_or_else(usage)?);
                rest = after;
            }
            ("--stock-apis", _) => doors.stock = Some(Stock::from_env()),
            (word, _) => {
                let addresses = word.strip_prefix("--stock-apis=").and_then(|text| text.parse().ok());
                doors.stock = Some(Stock { addresses: addresses.ok_or_else(usage)?, ..Stock::from_env() });
            }
        }
    }
    Ok((doors, &[]))
}

fn usage() -> io::Error {
    io::Error::other(USAGE)
}
