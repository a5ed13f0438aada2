//! Copies the image's contents into the volumes of writable directories before the sandbox starts, because the volumes
//! would hide them.
//!
//! It runs in an init container of the same image, in which these volumes are mounted elsewhere. A file that cannot be
//! copied is reported and does not keep the sandbox from starting.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

/// File from which the kubelet reads a container's termination message.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// Maximum number of files that the report names as not copied.
const MAX_NAMED: usize = 10;
/// Maximum length of each name: the kubelet keeps 4096 bytes in all.
const MAX_NAME_CHARS: usize = 200;
/// Mode bits that are kept. The set-id bits are not: the copy has another owner.
const KEPT_MODE: u32 = 0o1777;

/// Copies the contents of each directory to the same path below `target`. The first line of the report lists the directories,
/// counted from 0, that had any: `filled 0 2`. The next lines name the files that could not be copied.
///
/// A second run with the same state directory copies nothing: a restarted Pod keeps the changes of its sandbox.
pub fn copy_contents(target: &Path, directories: &[PathBuf], state_dir: &Path) -> io::Result<String> {
    let done = state_dir.join("image-copied");
    if let Ok(report) = fs::read_to_string(&done) {
        return Ok(report);
    }
    let mut report = "filled".to_owned();
    let mut failures = Failures::default();
    for (number, directory) in directories.iter().enumerate() {
        let copy = target.join(directory.strip_prefix("/").unwrap_or(directory));
        if copy_directory(directory, &copy, &mut failures) {
            let _ = write!(report, " {number}");
        }
    }
    failures.describe(&mut report);
    fs::create_dir_all(state_dir)?;
    fs::write(done, &report)?;
    Ok(report)
}

/// The files that could not be copied.
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

/// Copies the contents of a directory. Returns whether there were any.
fn copy_directory(from: &Path, to: &Path, failures: &mut Failures) -> bool {
    let mut copied = Copied::default();
    let mut any = false;
    // Other file systems mounted below the directory are not part of the image.
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

fn is_missing(error: &walkdir::Error, directory: &Path) -> bool {
    let kind = error.io_error().map(io::Error::kind);
    let absent = matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory));
    absent && error.path() == Some(directory)
}

/// State of a copy.
#[derive(Default)]
struct Copied {
    /// Copies of files with several hard links, by device and inode number.
    linked: HashMap<(u64, u64), PathBuf>,
    /// Directories get their modes and times last, because a read-only one must be filled first.
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
        // A previous run that was interrupted may have left the file.
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
            // This fails for the root of a volume, which belongs to the node and stays as it is.
            let _ = set_mode_and_times(&dir, &metadata);
        }
    }
}

fn copy_file(from: &Path, to: &Path, metadata: &Metadata) -> io::Result<()> {
    fs::copy(from, to)?;
    set_mode_and_times(to, metadata)
}

/// The times matter: Python recompiles a module whose time differs from that in its compiled file.
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

    /// An empty image directory and an empty volume.
    struct Setup {
        dir: TempDir,
    }

    impl Setup {
        fn new() -> Self {
            let setup = Self { dir: tempfile::tempdir().unwrap() };
            fs::create_dir(setup.directory()).unwrap();
            fs::create_dir_all(setup.copy("")).unwrap();
            setup
        }

        fn directory(&self) -> PathBuf {
            self.dir.path().join("app")
        }

        fn root(&self) -> PathBuf {
            self.dir.path().join("target")
        }

        fn copy(&self, name: &str) -> PathBuf {
            self.root().join(self.directory().strip_prefix("/").unwrap()).join(name)
        }

        fn run(&self) -> String {
            copy_contents(&self.root(), &[self.directory()], &self.dir.path().join("state")).unwrap()
        }
    }

    #[test]
    fn files_directories_and_links_are_copied_with_modes_and_times() {
        let setup = Setup::new();
        let directory = setup.directory();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        fs::create_dir(directory.join("dir")).unwrap();
        fs::write(directory.join("dir/tool"), "#!/bin/sh").unwrap();
        fs::set_permissions(directory.join("dir/tool"), Permissions::from_mode(0o755)).unwrap();
        File::open(directory.join("dir/tool")).unwrap().set_modified(long_ago).unwrap();
        fs::hard_link(directory.join("dir/tool"), directory.join("same")).unwrap();
        symlink("nowhere", directory.join("broken")).unwrap();
        fs::set_permissions(directory.join("dir"), Permissions::from_mode(0o555)).unwrap();

        assert_eq!(setup.run(), "filled 0");

        let tool = fs::metadata(setup.copy("dir/tool")).unwrap();
        assert_eq!(tool.mode() & 0o7777, 0o755);
        assert_eq!(tool.modified().unwrap(), long_ago);
        assert_eq!(tool.ino(), fs::metadata(setup.copy("same")).unwrap().ino());
        assert_eq!(fs::read_link(setup.copy("broken")).unwrap(), Path::new("nowhere"));
        assert_eq!(fs::metadata(setup.copy("dir")).unwrap().mode() & 0o7777, 0o555);
    }

    #[test]
    fn empty_and_missing_directories_count_as_empty() {
        let setup = Setup::new();
        let directories = [setup.directory(), setup.dir.path().join("missing")];
        let report = copy_contents(&setup.root(), &directories, &setup.dir.path().join("state")).unwrap();
        assert_eq!(report, "filled");
    }

    #[test]
    fn files_that_cannot_be_copied_are_named_and_the_others_are_copied() {
        let setup = Setup::new();
        let pipe = rustix::fs::FileType::Fifo;
        for number in 0..12 {
            let path = setup.directory().join(format!("pipe{number}"));
            rustix::fs::mknodat(rustix::fs::CWD, path, pipe, 0o644.into(), 0).unwrap();
        }
        fs::write(setup.directory().join("file"), "x").unwrap();

        let report = setup.run();

        assert!(report.starts_with("filled 0\nnot copied: "), "{report}");
        assert!(report.contains("/app/pipe") && report.ends_with("\nnot copied: 2 more"), "{report}");
        assert_eq!(fs::read_to_string(setup.copy("file")).unwrap(), "x");
    }

    #[test]
    fn a_second_run_keeps_changes_and_repeats_the_report() {
        let setup = Setup::new();
        fs::write(setup.directory().join("file"), "the image's").unwrap();
        fs::write(setup.directory().join("other"), "the image's").unwrap();
        let report = setup.run();
        fs::write(setup.copy("file"), "changed").unwrap();
        fs::remove_file(setup.copy("other")).unwrap();

        assert_eq!(setup.run(), report);

        assert_eq!(fs::read_to_string(setup.copy("file")).unwrap(), "changed");
        assert!(!setup.copy("other").exists());
    }

    #[test]
    fn an_interrupted_run_is_completed() {
        let setup = Setup::new();
        fs::write(setup.directory().join("file"), "whole").unwrap();
        fs::write(setup.copy("file"), "hal").unwrap();
        fs::set_permissions(setup.copy("file"), Permissions::from_mode(0o444)).unwrap();
        setup.run();
        assert_eq!(fs::read_to_string(setup.copy("file")).unwrap(), "whole");
    }
}
