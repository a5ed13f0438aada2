//! The guest's program: `serve` runs in a sandbox, `pipe` connects to it from outside, `local` sets up a sandbox on
//! this machine, and `copy-image` fills writable volumes before the sandbox starts.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use sandpod_guest::{DisabledKernelFeatures, ListenOptions, Options, StockApis, image, local, pipe, serve};

/// musl's own allocator returns memory to the kernel and requests it again with each call.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

const USAGE: &str = "usage: sandpod-guest serve [--ends-container] [--unbound] [--listen ADDRESS] [--websocket[=ADDRESS]] \
                     [--stock-apis[=RUNTIME,GRPC,REST]] [-- COMMAND...] | pipe | local | copy-image TARGET DIRECTORY... | --version";
/// Default address of the WebSocket: agent-sandbox's routers connect to port 8888 by default.
const WEBSOCKET: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8888);
/// Default directory of the guest's state, unless `SANDPOD_STATE_DIR` is set.
const STATE_DIR: &str = "/tmp/.sandpod-guest";
/// Exit code for a command that was never started.
const NEVER_STARTED: u8 = 125;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let done = match words[..] {
        ["serve", ..] => run(&arguments[1..]),
        ["pipe"] => pipe::join(),
        // Must run while the process has one thread: only then can it enter namespaces.
        ["local"] => return local::run(),
        ["copy-image", _, ..] => copy_image(&arguments[1], &arguments[2..]),
        ["--version"] => writeln!(io::stdout(), "sandpod-guest {}", env!("CARGO_PKG_VERSION")),
        _ => Err(usage()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a standard error output the exit code is the only report.
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
    let (listen, command) = listen_options(arguments)?;
    let state_dir = state_dir();
    let disabled_kernel_features = std::env::var("SANDPOD_DISABLED_KERNEL_FEATURES")
        .unwrap_or_default()
        .parse::<DisabledKernelFeatures>();
    let disabled_kernel_features = disabled_kernel_features
        .map_err(|why| io::Error::other(format!("SANDPOD_DISABLED_KERNEL_FEATURES: {why}")))?;
    let options = Options::new(state_dir).with_own_env().with_own_token()?;
    serve::run(Options { disabled_kernel_features, ends_container, needs_bind, ..options }, command, listen)
}

/// Copies the image's contents, and reports to the container's log and to the termination message, which the client reads.
fn copy_image(target: &OsString, directories: &[OsString]) -> io::Result<()> {
    let directories: Vec<_> = directories.iter().map(PathBuf::from).collect();
    let report = image::copy_contents(target.as_ref(), &directories, state_dir().as_ref())?;
    writeln!(io::stdout(), "{report}")?;
    std::fs::write(image::TERMINATION_LOG, report)
}

fn state_dir() -> OsString {
    std::env::var_os("SANDPOD_STATE_DIR").unwrap_or_else(|| STATE_DIR.into())
}

/// Parses the addresses to listen on, and returns them with the words after `--`.
fn listen_options(arguments: &[OsString]) -> io::Result<(ListenOptions, &[OsString])> {
    let mut listen = ListenOptions::default();
    let mut rest = arguments;
    while let [word, after @ ..] = rest {
        rest = after;
        match (word.to_str().unwrap_or_default(), after) {
            ("--", command) => return Ok((listen, command)),
            ("--listen", [address, after @ ..]) => {
                let address = address.to_str().and_then(|address| address.parse().ok());
                listen.stream = Some(address.ok_or_else(usage)?);
                rest = after;
            }
            ("--stock-apis", _) => listen.stock = Some(StockApis::from_env()),
            ("--websocket", _) => listen.websocket = Some(WEBSOCKET),
            (word, _) => match word.split_once('=') {
                Some(("--websocket", address)) => {
                    listen.websocket = Some(address.parse().map_err(|_| usage())?);
                }
                Some(("--stock-apis", addresses)) => {
                    let addresses = addresses.parse().map_err(|_| usage())?;
                    listen.stock = Some(StockApis { addresses, ..StockApis::from_env() });
                }
                _ => return Err(usage()),
            },
        }
    }
    Ok((listen, &[]))
}

fn usage() -> io::Error {
    io::Error::other(USAGE)
}
