//! What an image has in writable places, copied before the sandbox starts: their volumes would hide it.
//!
//! It runs in a container of the same image in which those volumes are mounted elsewhere. A file that can't be copied
//! is reported and never keeps a sandbox from starting.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

/// Where the kubelet reads what a container says at its end.
pub const LAST_WORDS: &str = "/dev/termination-log";
/// Of so many files that can't be copied the names are reported.
const MAX_NAMED: usize = 10;
/// So much of each name: the kubelet keeps 4096 bytes.
const MAX_NAME_CHARS: usize = 200;
/// The bits of a mode that mean something for another owner.
const KEPT_MODE: u32 = 0o1777;

/// Copies what is in each of `places` to the same path below `into`, and says in its first line which of them, counted
/// from 0, had something: `filled 0 2`. The next lines name what could not be copied.
///
/// It works once for a state directory: what a sandbox has changed since stays when its Pod is started again.
pub fn seed(into: &Path, places: &[PathBuf], state_dir: &Path) -> io::Result<String> {
    let done = state_dir.join("seeded");
    if let Ok(report) = fs::read_to_string(&done) {
        return Ok(report);
    }
    let mut report = "filled".to_owned();
    let mut failures = Failures::default();
    for (number, place) in places.iter().enumerate() {
        let target = into.join(place.strip_prefix("/").unwrap_or(place));
        if copy_contents(place, &target, &mut failures) {
            let _ = write!(report, " {number}");
        }
    }
    failures.describe(&mut report);
    fs::create_dir_all(state_dir)?;
    fs::write(done, &report)?;
    Ok(report)
}

/// What could not be copied.
#[derive(Default)]
struct Failures {
    named: Vec<String>,
    count: usize,
}

impl Failures {
    fn add(&mut self, path: &Path, error: &io::Error) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            let name: String = path.to_string_lossy().chars().take(MAX_NAME_CHARS).collect();
            self.named.push(format!("{name:?}: {error}"));
        }
    }

    fn describe(&self, report: &mut String) {
        for named in &self.named {
            let _ = write!(report, "\nnot copied: {named}");
        }
        if self.count > self.named.len() {
            let _ = write!(report, "\nnot copied: {} more", self.count - self.named.len());
        }
    }
}

/// Whether there was anything.
fn copy_contents(from: &Path, to: &Path, failures: &mut Failures) -> bool {
    let mut copied = Copied::default();
    let mut any = false;
    // What is mounted below a place is not the image's.
    for entry in WalkDir::new(from).min_depth(1).same_file_system(true) {
        let done = match &entry {
            Ok(entry) => {
                any = true;
                let target = to.join(entry.path().strip_prefix(from).unwrap_or(entry.path()));
                copied.copy(entry, &target).map_err(|error| (entry.path(), error))
            }
            Err(error) if is_missing(error, from) => Ok(()),
            Err(error) => {
                let cause = error.io_error().map_or(io::ErrorKind::Other, io::Error::kind);
                Err((error.path().unwrap_or(from), cause.into()))
            }
        };
        if let Err((path, error)) = done {
            failures.add(path, &error);
        }
    }
    copied.finish();
    any
}

fn is_missing(error: &walkdir::Error, place: &Path) -> bool {
    let kind = error.io_error().map(io::Error::kind);
    let absent = matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory));
    absent && error.path() == Some(place)
}

/// What was copied so far.
#[derive(Default)]
struct Copied {
    /// Files with several names, by device and number.
    linked: HashMap<(u64, u64), PathBuf>,
    /// Directories get their modes and times last: a read-only one must be filled first.
    dirs: Vec<(PathBuf, Metadata)>,
}

impl Copied {
    fn copy(&mut self, entry: &DirEntry, to: &Path) -> io::Result<()> {
        let (from, metadata) = (entry.path(), entry.metadata()?);
        if metadata.is_dir() {
            if !to.is_dir() {
                fs::create_dir(to)?;
            }
            self.dirs.push((to.to_owned(), metadata));
            return Ok(());
        }
        // Of an earlier try that was interrupted.
        let _ = fs::remove_file(to);
        if metadata.is_symlink() {
            return symlink(fs::read_link(from)?, to);
        }
        if !metadata.is_file() {
            return Err(io::Error::other("it is neither a file nor a directory nor a link"));
        }
        if metadata.nlink() == 1 {
            return copy_file(from, to, &metadata);
        }
        if let Some(first) = self.linked.get(&(metadata.dev(), metadata.ino())) {
            return fs::hard_link(first, to);
        }
        self.linked.insert((metadata.dev(), metadata.ino()), to.to_owned());
        copy_file(from, to, &metadata)
    }

    fn finish(self) {
        for (dir, metadata) in self.dirs.into_iter().rev() {
            // A volume's own root belongs to the node, and stays as it is.
            let _ = set_mode_and_times(&dir, &metadata);
        }
    }
}

fn copy_file(from: &Path, to: &Path, metadata: &Metadata) -> io::Result<()> {
    fs::copy(from, to)?;
    set_mode_and_times(to, metadata)
}

/// The times matter: Python compiles a module anew whose time isn't the compiled one's.
fn set_mode_and_times(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let file = File::open(path)?;
    let times = FileTimes::new().set_accessed(metadata.accessed()?).set_modified(metadata.modified()?);
    file.set_times(times)?;
    file.set_permissions(Permissions::from_mode(metadata.mode() & KEPT_MODE))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use tempfile::TempDir;

    use super::*;

    /// An image's directory and a volume's, both empty.
    struct Setup {
        dir: TempDir,
    }

    impl Setup {
        fn new() -> Self {
            let setup = Self { dir: tempfile::tempdir().unwrap() };
            fs::create_dir(setup.place()).unwrap();
            fs::create_dir_all(setup.copy("")).unwrap();
            setup
        }

        fn place(&self) -> PathBuf {
            self.dir.path().join("app")
        }

        fn root(&self) -> PathBuf {
            self.dir.path().join("into")
        }

        fn copy(&self, name: &str) -> PathBuf {
            self.root().join(self.place().strip_prefix("/").unwrap()).join(name)
        }

        fn seed(&self) -> String {
            seed(&self.root(), &[self.place()], &self.dir.path().join("state")).unwrap()
        }
    }

    #[test]
    fn files_directories_and_links_are_copied_with_modes_and_times() {
        let setup = Setup::new();
        let place = setup.place();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        fs::create_dir(place.join("dir")).unwrap();
        fs::write(place.join("dir/tool"), "#!/bin/sh").unwrap();
        fs::set_permissions(place.join("dir/tool"), Permissions::from_mode(0o755)).unwrap();
        File::open(place.join("dir/tool")).unwrap().set_modified(long_ago).unwrap();
        fs::hard_link(place.join("dir/tool"), place.join("same")).unwrap();
        symlink("nowhere", place.join("broken")).unwrap();
        fs::set_permissions(place.join("dir"), Permissions::from_mode(0o555)).unwrap();

        assert_eq!(setup.seed(), "filled 0");

        let tool = fs::metadata(setup.copy("dir/tool")).unwrap();
        assert_eq!(tool.mode() & 0o7777, 0o755);
        assert_eq!(tool.modified().unwrap(), long_ago);
        assert_eq!(tool.ino(), fs::metadata(setup.copy("same")).unwrap().ino());
        assert_eq!(fs::read_link(setup.copy("broken")).unwrap(), Path::new("nowhere"));
        assert_eq!(fs::metadata(setup.copy("dir")).unwrap().mode() & 0o7777, 0o555);
    }

    #[test]
    fn an_empty_place_and_one_that_the_image_does_not_have_count_as_empty() {
        let setup = Setup::new();
        let places = [setup.place(), setup.dir.path().join("missing")];
        let report = seed(&setup.root(), &places, &setup.dir.path().join("state")).unwrap();
        assert_eq!(report, "filled");
    }

    #[test]
    fn what_cannot_be_copied_is_named_and_the_rest_is_there() {
        let setup = Setup::new();
        let pipe = rustix::fs::FileType::Fifo;
        for number in 0..12 {
            let path = setup.place().join(format!("pipe{number}"));
            rustix::fs::mknodat(rustix::fs::CWD, path, pipe, 0o644.into(), 0).unwrap();
        }
        fs::write(setup.place().join("file"), "x").unwrap();

        let report = setup.seed();

        assert!(report.starts_with("filled 0\nnot copied: "), "{report}");
        assert!(report.contains("/app/pipe") && report.ends_with("\nnot copied: 2 more"), "{report}");
        assert_eq!(fs::read_to_string(setup.copy("file")).unwrap(), "x");
    }

    #[test]
    fn a_second_run_changes_nothing_that_the_sandbox_did_and_says_the_same() {
        let setup = Setup::new();
        fs::write(setup.place().join("file"), "the image's").unwrap();
        fs::write(setup.place().join("other"), "the image's").unwrap();
        let report = setup.seed();
        fs::write(setup.copy("file"), "changed").unwrap();
        fs::remove_file(setup.copy("other")).unwrap();

        assert_eq!(setup.seed(), report);

        assert_eq!(fs::read_to_string(setup.copy("file")).unwrap(), "changed");
        assert!(!setup.copy("other").exists());
    }

    #[test]
    fn a_run_that_was_interrupted_is_made_good() {
        let setup = Setup::new();
        fs::write(setup.place().join("file"), "whole").unwrap();
        fs::write(setup.copy("file"), "hal").unwrap();
        fs::set_permissions(setup.copy("file"), Permissions::from_mode(0o444)).unwrap();
        setup.seed();
        assert_eq!(fs::read_to_string(setup.copy("file")).unwrap(), "whole");
    }
}
