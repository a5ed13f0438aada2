//! An audit file: one line of JSON for each event, in a hash chain.
//!
//! Each line holds the hash of the line before it and its own, so a line that is changed, removed or moved breaks the
//! chain. Lines removed from the end do not break it: the file's head, its length and last hash, is stored beside the
//! file and reveals them. A writer of both files can forge the history; to prevent that, store heads elsewhere
//! ([`AuditHead`]).

use std::fmt::{self, Write as _};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{AuditEvent, AuditSink};
use crate::{Error, ErrorKind, Result};

/// The hash that precedes the first line.
const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// An upper bound for the length of a line.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// A file of events. Any number of processes may write to it at once: each line is written under a lock.
///
/// ```
/// use sandpod::{Audit, AuditFile, AuditOptions, verify_audit};
/// # let dir = std::env::temp_dir().join(format!("sandpod-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// # let path = dir.join("audit.jsonl");
///
/// let audit = Audit::new(AuditFile::open(&path)?, AuditOptions { strict: true, ..AuditOptions::default() })?;
/// assert_eq!(verify_audit(&path, None)?.lines, 0);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    file: File,
}

/// The end of an audit file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AuditHead {
    /// The number of lines.
    pub lines: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The hash of the last line.
    pub hash: String,
}

/// The first broken line of an audit file.
struct Broken {
    /// The line, counted from 1; one past the last if lines are missing at the end.
    line: u64,
    /// The reason.
    why: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// One line: an event, its hash, and the hash of the line before. The encoding is fixed, because the hash covers the
/// bytes of the event.
struct Line<'a> {
    previous: &'a str,
    hash: &'a str,
    /// JSON.
    event: &'a str,
}

impl<'a> Line<'a> {
    fn write(&self, lines: &mut String) {
        let Self { previous, hash, event } = self;
        let _ = writeln!(lines, r#"{{"previous":"{previous}","hash":"{hash}","event":{event}}}"#);
    }

    fn read(line: &'a [u8]) -> Option<Self> {
        let rest = std::str::from_utf8(line).ok()?.strip_prefix(r#"{"previous":""#)?;
        let (previous, rest) = rest.split_once(r#"","hash":""#)?;
        let (hash, rest) = rest.split_once(r#"","event":"#)?;
        Some(Self { previous, hash, event: rest.strip_suffix('}')? })
    }
}

impl AuditFile {
    /// Opens a file to append to. A new file is readable by its owner only.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path);
        let file = file.map_err(|error| {
            let message = format!("The audit file {} can't be opened: {error}.", path.display());
            Error::invalid(message, "Name a file in a directory that this process may write to.")
        })?;
        Ok(Self { path, file })
    }

    fn add(&self, events: &[AuditEvent]) -> io::Result<()> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        let added = self.add_locked(events);
        flock(&self.file, FlockOperation::Unlock)?;
        added
    }

    fn add_locked(&self, events: &[AuditEvent]) -> io::Result<()> {
        let mut head = self.current()?;
        let mut lines = String::new();
        for event in events {
            let event = serde_json::to_string(event)?;
            let hash = chained(&head.hash, &event);
            Line { previous: &head.hash, hash: &hash, event: &event }.write(&mut lines);
            (head.hash, head.lines) = (hash, head.lines + 1);
        }
        (&self.file).write_all(lines.as_bytes())?;
        head.bytes += lines.len() as u64;
        write_head(&self.path, &head)
    }

    /// Returns the end of the file, including complete lines of a writer that was killed before it wrote the head.
    fn current(&self) -> io::Result<AuditHead> {
        let known = read_head(&self.path)?.unwrap_or_default();
        let mut file = BufReader::new(&self.file);
        file.seek(SeekFrom::Start(known.bytes))?;
        let head = follow(file, known).map_err(|broken| match broken {
            Stop::Io(error) => error,
            Stop::Broken(broken) => io::Error::other(format!("it was changed by others, in {broken}")),
        })?;
        if self.file.metadata()?.len() < head.bytes {
            return Err(io::Error::other("lines at its end were removed"));
        }
        Ok(head)
    }
}

impl AuditSink for AuditFile {
    fn record(&mut self, events: &[AuditEvent]) -> std::result::Result<(), String> {
        self.add(events)
            .map_err(|error| format!("the audit file {} can't be written: {error}", self.path.display()))
    }
}

impl Default for AuditHead {
    fn default() -> Self {
        Self { lines: 0, bytes: 0, hash: NOTHING.to_owned() }
    }
}

/// Reads an audit file and returns its end, or the first line that was changed, removed, moved or cut, or that is
/// missing at the end. `expected` is a head that was stored elsewhere, which the chain must contain.
pub fn verify(path: &Path, expected: Option<&AuditHead>) -> Result<AuditHead> {
    let unreadable = |error: io::Error| {
        let message = format!("The audit file {} can't be read: {error}.", path.display());
        Error::new(ErrorKind::NotFound, message, "Check the path.")
    };
    let beside = read_head(path).map_err(unreadable)?;
    let mut marks: Vec<&AuditHead> = beside.iter().chain(expected).collect();
    marks.sort_by_key(|mark| mark.lines);
    let mut head = AuditHead::default();
    for mark in marks.into_iter().map(Some).chain([None]) {
        let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
        file.seek(SeekFrom::Start(head.bytes)).map_err(unreadable)?;
        let lines = mark.map_or(u64::MAX, |mark| mark.lines);
        head = follow_to(file, head, lines).map_err(|stop| match stop {
            Stop::Io(error) => unreadable(error),
            Stop::Broken(broken) => broken_file(path, &broken),
        })?;
        if let Some(mark) = mark.filter(|mark| **mark != head) {
            let why = if head.lines < mark.lines {
                "lines are missing from here on"
            } else {
                "it is another line than was written"
            };
            let line = if head.lines < mark.lines { head.lines + 1 } else { head.lines };
            return Err(broken_file(path, &Broken { line, why }));
        }
    }
    Ok(head)
}

enum Stop {
    Io(io::Error),
    Broken(Broken),
}

/// Follows the chain from `head` to the end.
fn follow(file: impl io::BufRead, head: AuditHead) -> std::result::Result<AuditHead, Stop> {
    follow_to(file, head, u64::MAX)
}

/// Follows the chain from `head` for at most this number of lines.
fn follow_to(
    mut file: impl io::BufRead,
    mut head: AuditHead,
    lines: u64,
) -> std::result::Result<AuditHead, Stop> {
    let mut line = Vec::new();
    while head.lines < lines {
        line.clear();
        let count = (&mut file).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(Stop::Io)?;
        if count == 0 {
            break;
        }
        let broken = |why| Stop::Broken(Broken { line: head.lines + 1, why });
        let text = line.strip_suffix(b"\n").ok_or_else(|| broken("it is cut"))?;
        let read = Line::read(text).ok_or_else(|| broken("it is not a line of an audit"))?;
        if read.previous != head.hash {
            return Err(broken("it does not follow the line before it"));
        }
        if chained(&head.hash, read.event) != read.hash {
            return Err(broken("it was changed"));
        }
        head =
            AuditHead { lines: head.lines + 1, bytes: head.bytes + count as u64, hash: read.hash.to_owned() };
    }
    Ok(head)
}

fn chained(previous: &str, event: &str) -> String {
    HEXLOWER.encode(&Sha256::new().chain_update(previous).chain_update(event).finalize())
}

fn head_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".head");
    name.into()
}

fn read_head(path: &Path) -> io::Result<Option<AuditHead>> {
    match fs::read(head_path(path)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn write_head(path: &Path, head: &AuditHead) -> io::Result<()> {
    let path = head_path(path);
    let new = path.with_extension("head.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(head)?)?;
    fs::rename(new, path)
}

fn broken_file(path: &Path, broken: &Broken) -> Error {
    Error::new(
        ErrorKind::Denied,
        format!("The audit file {} is not what was written, {broken}.", path.display()),
        "Keep it as it is and find out who changed it.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Operation;

    /// Writes a file of ten events.
    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("audit.jsonl");
        let mut file = AuditFile::open(&path).unwrap();
        for number in 0..10 {
            file.record(&[event(number)]).unwrap();
        }
        path
    }

    fn event(number: u32) -> AuditEvent {
        AuditEvent::intent(Operation::Write, "sp-1", vec![format!("/file-{number}")])
    }

    /// Returns the error of `verify` after a change of the lines.
    fn tampered(change: impl FnOnce(&mut Vec<String>)) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let mut lines: Vec<_> =
            fs::read_to_string(&path).unwrap().split_inclusive('\n').map(str::to_owned).collect();
        change(&mut lines);
        fs::write(&path, lines.concat()).unwrap();
        verify(&path, None).unwrap_err().to_string()
    }

    #[test]
    fn chain_is_valid_and_continues_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let head = verify(&path, None).unwrap();
        assert_eq!(head.lines, 10);
        AuditFile::open(&path).unwrap().record(&[event(10), event(11)]).unwrap();
        assert_eq!(verify(&path, Some(&head)).unwrap().lines, 12);
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn changed_line_is_found() {
        let error = tampered(|lines| lines[4] = lines[4].replace("file-4", "file-x"));
        assert!(error.contains("line 5: it was changed"), "{error}");
    }

    #[test]
    fn removed_line_is_found() {
        let error = tampered(|lines| drop(lines.remove(4)));
        assert!(error.contains("line 5: it does not follow"), "{error}");
    }

    #[test]
    fn reordered_lines_are_found() {
        let error = tampered(|lines| lines.swap(4, 5));
        assert!(error.contains("line 5: it does not follow"), "{error}");
    }

    #[test]
    fn inserted_line_is_found() {
        let error = tampered(|lines| lines.insert(4, lines[3].clone()));
        assert!(error.contains("line 5: it does not follow"), "{error}");
    }

    #[test]
    fn missing_lines_at_the_end_and_a_cut_line_are_found() {
        let error = tampered(|lines| lines.truncate(7));
        assert!(error.contains("line 8: lines are missing"), "{error}");
        let error = tampered(|lines| lines[9].truncate(20));
        assert!(error.contains("line 10: it is cut"), "{error}");
        let error = tampered(Vec::clear);
        assert!(error.contains("line 1: lines are missing"), "{error}");
    }

    #[test]
    fn forged_history_is_found_with_a_head_stored_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let head = verify(&written(dir.path()), None).unwrap();
        let other = tempfile::tempdir().unwrap();
        let forged = written(other.path());
        assert!(verify(&forged, None).is_ok());
        assert!(verify(&forged, Some(&head)).is_err());
    }

    #[test]
    fn changed_file_is_not_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        let error = AuditFile::open(&path).unwrap().record(&[event(10)]).unwrap_err();
        assert!(error.contains("removed"), "{error}");
        fs::write(&path, format!("{text}{{}}\n")).unwrap();
        let error = AuditFile::open(&path).unwrap().record(&[event(10)]).unwrap_err();
        assert!(error.contains("changed by others"), "{error}");
    }

    #[test]
    fn writer_killed_before_it_wrote_the_head_breaks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let older = fs::read(head_path(&path)).unwrap();
        AuditFile::open(&path).unwrap().record(&[event(10)]).unwrap();
        fs::write(head_path(&path), older).unwrap();
        AuditFile::open(&path).unwrap().record(&[event(11)]).unwrap();
        assert_eq!(verify(&path, None).unwrap().lines, 12);
    }

    #[test]
    fn concurrent_writers_keep_the_chain_valid() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut file = AuditFile::open(&path).unwrap();
                    (0..20).for_each(|number| file.record(&[event(number)]).unwrap());
                });
            }
        });
        assert_eq!(verify(&path, None).unwrap().lines, 170);
    }
}
