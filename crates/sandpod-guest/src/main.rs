//! The guest's program: `serve` in a sandbox, `pipe` to reach it from outside, `seed` to fill its writable places before.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use sandpod_guest::{Doors, Options, Stock, Without, local, pipe, seed, serve};

/// musl's own gives memory back to the kernel and takes it again with each call.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

const USAGE: &str = "usage: sandpod-guest serve [--ends-container] [--unbound] [--listen ADDRESS] [--websocket[=ADDRESS]] \
                     [--stock-apis[=RUNTIME,GRPC,REST]] [-- COMMAND...] | pipe | local | seed DIRECTORY PLACE... | --version";
/// Where routers look for a sandbox unless they are told otherwise.
const WEBSOCKET: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8888);
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
        // While there is one thread: namespaces can't be entered by more.
        ["local"] => return local::run(),
        ["seed", _, ..] => fill(&arguments[1], &arguments[2..]),
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
    let (mut ends_container, mut needs_bind, mut arguments) = (false, true, arguments);
    while let [first, rest @ ..] = arguments {
        match first.to_str() {
            Some("--ends-container") => ends_container = true,
            Some("--unbound") => needs_bind = false,
            _ => break,
        }
        arguments = rest;
    }
    let (doors, command) = doors(arguments)?;
    let state_dir = state_dir();
    let without = std::env::var("SANDPOD_WITHOUT").unwrap_or_default().parse::<Without>();
    let without = without.map_err(|why| io::Error::other(format!("SANDPOD_WITHOUT: {why}")))?;
    let options = Options::new(state_dir).with_own_env().with_own_token()?;
    serve::run(Options { without, ends_container, needs_bind, ..options }, command, doors)
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

/// What to listen on besides the guest's own socket, and the words after `--`.
fn doors(arguments: &[OsString]) -> io::Result<(Doors, &[OsString])> {
    let mut doors = Doors::default();
    let mut rest = arguments;
    while let [word, after @ ..] = rest {
        rest = after;
        match (word.to_str().unwrap_or_default(), after) {
            ("--", command) => return Ok((doors, command)),
            ("--listen", [address, after @ ..]) => {
                let address = address.to_str().and_then(|address| address.parse().ok());
                doors.stream = Some(address.ok_or_else(usage)?);
                rest = after;
            }
            ("--stock-apis", _) => doors.stock = Some(Stock::from_env()),
            ("--websocket", _) => doors.websocket = Some(WEBSOCKET),
            (word, _) => match word.split_once('=') {
                Some(("--websocket", address)) => {
                    doors.websocket = Some(address.parse().map_err(|_| usage())?);
                }
                Some(("--stock-apis", addresses)) => {
                    let addresses = addresses.parse().map_err(|_| usage())?;
                    doors.stock = Some(Stock { addresses, ..Stock::from_env() });
                }
                _ => return Err(usage()),
            },
        }
    }
    Ok((doors, &[]))
}

fn usage() -> io::Error {
    io::Error::other(USAGE)
}
