//! The stub that is a container's command: unpacks the guest from the parts beside it and becomes it.
//!
//! The parts `guest.0`, `guest.1`, … are one raw deflate stream, cut where a `ConfigMap` ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use flate2::read::DeflateDecoder;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;

/// More than any guest has.
const MAX_PARTS: usize = 100;

fn main() -> ExitCode {
    let is_pipe = std::env::args_os().nth(1).is_some_and(|word| word == "pipe");
    let done = if is_pipe { sandpod_guest::pipe::join() } else { become_guest() };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a standard error output the exit code has to do.
            let _ = writeln!(io::stderr(), "sandpod-boot: {error}");
            ExitCode::from(125)
        }
    }
}

/// Returns only if it fails.
fn become_guest() -> io::Result<()> {
    let program = std::env::current_exe()?;
    let parts = parts(program.parent().unwrap_or(Path::new("/")))?;
    let in_memory = unpack_in_memory(&parts).and_then(|guest| run(&guest));
    let Err(why) = in_memory else { return Ok(()) };
    let Some(dir) = std::env::var_os("SANDPOD_STATE_DIR") else {
        let message =
            format!("the guest cannot run from memory ({why}): set SANDPOD_STATE_DIR to a writable place");
        return Err(io::Error::new(why.kind(), message));
    };
    run(&unpack_in(Path::new(&dir), &parts)?)
}

/// The guest's parts in a directory, in their order.
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

/// An unpacked guest: where it is, and what keeps it there.
struct Unpacked {
    path: PathBuf,
    _file: Option<File>,
}

fn unpack_in_memory(parts: &[PathBuf]) -> io::Result<Unpacked> {
    let flags = MemfdFlags::CLOEXEC;
    // Kernels before 6.3 don't know EXEC; on later ones it may be needed.
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

/// Becomes the guest, with the arguments that this program has.
fn run(guest: &Unpacked) -> io::Result<()> {
    Err(Command::new(&guest.path).arg0("sandpod-guest").args(std::env::args_os().skip(1)).exec())
}
