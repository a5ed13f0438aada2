//! The stub that is a container's command: it unpacks the guest from the parts beside it and executes it.
//!
//! The parts `guest.0`, `guest.1`, … are one raw deflate stream, split at the size limit of a `ConfigMap`. In an init
//! container, `copy` copies the stub and the parts to a volume. In a container that already runs something else, `start`
//! starts the guest beside that; further words are its arguments.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use flate2::read::DeflateDecoder;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

/// Upper bound for the number of parts.
const MAX_PARTS: usize = 100;
/// Attempts to connect to the started guest and the interval between them: 10 s in all.
const CONNECT_ATTEMPTS: usize = 1000;
const CONNECT_INTERVAL: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let done = match words[..] {
        ["pipe"] => sandpod_guest::pipe::join(),
        ["copy", to] => copy(Path::new(to)),
        ["start", ref words @ ..] => start(words),
        _ => become_guest(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a standard error output the exit code is the only report.
            let _ = writeln!(io::stderr(), "sandpod-boot: {error}");
            ExitCode::from(125)
        }
    }
}

/// Copies this program and the guest's parts to a directory that the sandbox mounts.
fn copy(to: &Path) -> io::Result<()> {
    let program = std::env::current_exe()?;
    for file in parts(beside(&program))?.iter().chain([&program]) {
        let name = file.file_name().unwrap_or_default();
        fs::copy(file, to.join(name)).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("can't copy {} to {}: {error}", file.display(), to.display()),
            )
        })?;
    }
    Ok(())
}

/// Starts the guest beside the container's processes, unless one runs already, and returns when it listens.
fn start(words: &[&str]) -> io::Result<()> {
    let address = sandpod_guest::pipe::address()?;
    if UnixStream::connect_addr(&address).is_ok() {
        return Ok(());
    }
    let mut guest = Command::new(std::env::current_exe()?);
    guest.arg("serve").args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut guest = guest.process_group(0).spawn()?;
    for _ in 0..CONNECT_ATTEMPTS {
        if UnixStream::connect_addr(&address).is_ok() {
            return Ok(());
        }
        if let Some(end) = guest.try_wait()? {
            return Err(io::Error::other(format!("the guest did not start: it ended with {end}")));
        }
        thread::sleep(CONNECT_INTERVAL);
    }
    Err(io::Error::other("the guest was started, but does not listen"))
}

fn beside(program: &Path) -> &Path {
    program.parent().unwrap_or(Path::new("/"))
}

/// Unpacks and executes the guest. Returns only on failure.
fn become_guest() -> io::Result<()> {
    let program = std::env::current_exe()?;
    let parts = parts(beside(&program))?;
    let in_memory = unpack_in_memory(&parts).and_then(|guest| run(&guest));
    let Err(why) = in_memory else { return Ok(()) };
    let Some(dir) = std::env::var_os("SANDPOD_STATE_DIR") else {
        let message =
            format!("the guest cannot run from memory ({why}): set SANDPOD_STATE_DIR to a writable place");
        return Err(io::Error::new(why.kind(), message));
    };
    run(&unpack_in(Path::new(&dir), &parts)?)
}

/// Returns the guest's parts in a directory, in order.
fn parts(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let parts: Vec<_> = (0..MAX_PARTS)
        .map(|number| dir.join(format!("guest.{number}")))
        .take_while(|part| part.exists())
        .collect();
    if parts.is_empty() {
        return Err(io::Error::other(format!("there is no guest.0 in {}", dir.display())));
    }
    Ok(parts)
}

/// An unpacked guest: its path, and the file that keeps an in-memory one alive.
struct Unpacked {
    path: PathBuf,
    _file: Option<File>,
}

fn unpack_in_memory(parts: &[PathBuf]) -> io::Result<Unpacked> {
    let flags = MemfdFlags::CLOEXEC;
    // Kernels before 6.3 reject EXEC; later ones may require it.
    let memory = match rustix::fs::memfd_create("sandpod-guest", flags | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("sandpod-guest", flags),
        other => other,
    };
    let mut file = File::from(memory?);
    unpack(parts, &mut file)?;
    Ok(Unpacked { path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(), _file: Some(file) })
}

fn unpack_in(dir: &Path, parts: &[PathBuf]) -> io::Result<Unpacked> {
    fs::create_dir_all(dir)?;
    let (path, new) = (dir.join("guest"), dir.join("guest.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(&new)?;
    unpack(parts, &mut file)?;
    drop(file);
    fs::rename(new, &path)?;
    Ok(Unpacked { path, _file: None })
}

fn unpack(parts: &[PathBuf], to: &mut File) -> io::Result<()> {
    let mut packed: Box<dyn Read> = Box::new(io::empty());
    for part in parts {
        packed = Box::new(packed.chain(File::open(part)?));
    }
    io::copy(&mut DeflateDecoder::new(packed), to)
        .map(drop)
        .map_err(|error| io::Error::new(error.kind(), format!("the guest's parts are damaged: {error}")))
}

/// Executes the guest with the arguments of this program.
fn run(guest: &Unpacked) -> io::Result<()> {
    Err(Command::new(&guest.path).arg0("sandpod-guest").args(std::env::args_os().skip(1)).exec())
}
