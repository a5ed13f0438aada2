//! The directory of a local sandbox. Its name is the sandbox's id, and its existence reserves the id.
//!
//! ```text
//! sp-…/record.json  the record of the sandbox
//! sp-…/lock         locked while a guest runs; contains its process id
//! sp-…/socket       the guest's socket
//! sp-…/guest.log    the guest's log
//! sp-…/cgroups      the cgroups of the sandbox, if it has any
//! sp-…/places/      the writable directories of the sandbox
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind as Io};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown,
};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::CWD;
use rustix::io::Errno;
use sandpod_remove::NoAccess;

use super::cgroups::{self, Cgroups};
use super::limits::Limits;
use super::lock::Lock;
use super::record::Stored;
use super::state_dir;
use crate::config::{STATE_DIR, WRITABLE_DIRS};
use crate::{Error, ErrorKind, Result, SandboxId};

/// The prefix of directories that are not a sandbox yet.
const NEW: &str = ".new-";

/// The prefix of directories of deleted sandboxes.
const GONE: &str = ".gone-";

/// The longest time from creating a directory to locking it.
const LONGEST_FURNISHING: Duration = Duration::from_secs(60);

/// All local sandboxes of a user.
#[derive(Clone, Debug)]
pub(super) struct Anchors {
    dir: PathBuf,
}

impl Anchors {
    /// Returns the sandboxes in `dir`, or in the user's state directory.
    pub(super) fn new(dir: Option<PathBuf>) -> Result<Self> {
        let dir = dir.map_or_else(state_dir::find, Ok)?;
        Ok(Self { dir })
    }

    /// Creates the sandbox `id`, unless the name is taken.
    pub(super) fn take(&self, id: &SandboxId, stored: &Stored) -> Result<Option<NewSandbox>> {
        self.try_take(id, stored).map_err(|cause| self.unwritable(&cause))
    }

    fn try_take(&self, id: &SandboxId, stored: &Stored) -> io::Result<Option<NewSandbox>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let unnamed = Anchor { dir: self.dir.join(format!("{NEW}{}", nonce())) };
        DirBuilder::new().mode(0o700).create(&unnamed.dir)?;
        let taken = unnamed.fill(stored).and_then(|(lock, listener)| {
            let anchor = self.anchor(id);
            match fs::rename(&unnamed.dir, &anchor.dir) {
                Ok(()) => Ok(Some(NewSandbox { anchor, lock, listener })),
                Err(error) if matches!(error.kind(), Io::DirectoryNotEmpty | Io::AlreadyExists) => Ok(None),
                Err(error) => Err(error),
            }
        });
        if !matches!(taken, Ok(Some(_))) {
            let _ = remove_tree(&unnamed.dir);
        }
        taken
    }

    /// Returns the sandbox of that name, if it exists.
    pub(super) fn find(&self, id: &SandboxId) -> Option<Anchor> {
        Some(self.anchor(id)).filter(|anchor| anchor.dir.is_dir())
    }

    /// Returns the names of all sandboxes, sorted.
    pub(super) fn ids(&self) -> Result<Vec<SandboxId>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == Io::NotFound => return Ok(Vec::new()),
            other => other.map_err(|cause| self.unwritable(&cause))?,
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut ids: Vec<SandboxId> = names.filter_map(|name| name.parse().ok()).collect();
        ids.sort();
        Ok(ids)
    }

    /// Deletes directories of creations and deletions whose process died.
    pub(super) fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        let is_ours = |name: &[u8]| name.starts_with(NEW.as_bytes()) || name.starts_with(GONE.as_bytes());
        for entry in entries.flatten().filter(|entry| is_ours(entry.file_name().as_bytes())) {
            let leftover = Anchor { dir: entry.path() };
            if !leftover.is_locked()
                && !leftover.is_just_made()
                && let Err(error) = leftover.destroy()
            {
                tracing::warn!(dir = %leftover.dir.display(), %error, "the files of a sandbox could not be deleted");
            }
        }
    }

    fn anchor(&self, id: &SandboxId) -> Anchor {
        Anchor { dir: self.dir.join(id.as_str()) }
    }

    fn unwritable(&self, cause: &io::Error) -> Error {
        if let Some(full) = super::disk_full(&self.dir, cause) {
            return full;
        }
        Error::new(
            ErrorKind::Unavailable,
            format!("Can't keep local sandboxes in {}: {cause}.", self.dir.display()),
            "Make that directory writable, or set XDG_STATE_HOME to another one.",
        )
    }
}

/// A new sandbox, with the lock and socket for its guest.
pub(super) struct NewSandbox {
    pub(super) anchor: Anchor,
    pub(super) lock: File,
    pub(super) listener: UnixListener,
}

/// One local sandbox.
#[derive(Clone, Debug)]
pub(super) struct Anchor {
    dir: PathBuf,
}

impl Anchor {
    /// Returns the directory of the sandbox.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Reads the record, or none if the sandbox is gone. It is unreadable if the machine crashed before it was on disk,
    /// because it is not synced.
    pub(super) fn stored(&self) -> io::Result<Option<Stored>> {
        match fs::read(self.dir.join("record.json")) {
            Err(error) if error.kind() == Io::NotFound && !self.dir.exists() => Ok(None),
            record => Ok(Some(serde_json::from_slice(&record?)?)),
        }
    }

    /// Reports whether the sandbox is deleted or marked as deleted.
    pub(super) fn is_marked_deleted(&self) -> bool {
        self.stored().is_ok_and(|stored| stored.is_none_or(|stored| stored.is_marked_deleted()))
    }

    /// Changes the record.
    pub(super) fn update(&self, change: impl Fn(Stored) -> Stored) -> io::Result<Stored> {
        let changed = self.update_if(|_| true, change)?;
        changed.ok_or_else(|| io::Error::new(Io::NotFound, "the sandbox was deleted"))
    }

    /// Changes the record if it matches. Returns none if it does not.
    pub(super) fn update_if(
        &self,
        is_meant: impl Fn(&Stored) -> bool,
        change: impl Fn(Stored) -> Stored,
    ) -> io::Result<Option<Stored>> {
        let dir = match File::open(&self.dir) {
            Err(error) if error.kind() == Io::NotFound => return Ok(None),
            other => other?,
        };
        // The directory is the lock among writers.
        dir.lock()?;
        let Some(stored) = self.stored()?.filter(is_meant) else { return Ok(None) };
        let stored = change(stored).revised();
        self.write(&stored)?;
        Ok(Some(stored))
    }

    fn write(&self, stored: &Stored) -> io::Result<()> {
        let unfinished = self.dir.join(".record.json");
        fs::write(&unfinished, serde_json::to_vec_pretty(stored)?)?;
        fs::rename(unfinished, self.dir.join("record.json"))
    }

    /// Reports whether a guest runs or is being started.
    pub(super) fn is_locked(&self) -> bool {
        File::open(self.lock_path()).is_ok_and(|file| Lock(file).is_held().unwrap_or(false))
    }

    /// Reports whether another process may be about to lock the sandbox.
    fn is_just_made(&self) -> bool {
        let made = fs::metadata(&self.dir).and_then(|dir| dir.modified());
        made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age < LONGEST_FURNISHING))
    }

    /// Reports whether the guest has exited because its lifetime was over.
    pub(super) fn has_expired(&self) -> bool {
        self.place(STATE_DIR).join("expired").exists()
    }

    /// Takes the lock of a guest that has exited. None if a guest runs.
    pub(super) fn hold(&self) -> io::Result<Option<Lock>> {
        let lock = self.lock()?;
        while !lock.try_hold()? {
            if lock.is_held()? {
                return Ok(None);
            }
            // Another process only tested the lock.
        }
        // The sandbox may have been deleted and created again meanwhile.
        if self.has(&lock) { Ok(Some(lock)) } else { self.hold() }
    }

    /// Opens the lock file.
    pub(super) fn lock(&self) -> io::Result<Lock> {
        let mut file = OpenOptions::new();
        file.read(true).write(true).create(true).truncate(false).mode(0o600);
        Ok(Lock(file.open(self.lock_path())?))
    }

    /// Reports whether `lock` is the lock of this sandbox, and not of a deleted one.
    pub(super) fn has(&self, lock: &Lock) -> bool {
        let (Ok(held), Ok(found)) = (lock.0.metadata(), fs::metadata(self.lock_path())) else { return false };
        (held.dev(), held.ino()) == (found.dev(), found.ino())
    }

    fn lock_path(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// Takes the lock of a guest that has exited for the next one. None if a guest runs.
    pub(super) fn retake(&self) -> io::Result<Option<File>> {
        let Some(Lock(lock)) = self.hold()? else { return Ok(None) };
        lock.set_len(0)?;
        Ok(Some(lock))
    }

    /// Replaces the socket of a guest that has exited.
    pub(super) fn listen_again(&self) -> io::Result<UnixListener> {
        match fs::remove_file(self.dir.join("socket")) {
            Err(error) if error.kind() != Io::NotFound => Err(error),
            _ => self.listen(),
        }
    }

    /// Connects to the guest's socket.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        self.at_short_path(|path| UnixStream::connect(path))
    }

    /// Replaces the cgroups of the sandbox for a guest that is about to start, and records which limits they enforce.
    pub(super) fn make_cgroups(&self, limits: &Limits) -> io::Result<Cgroups> {
        self.remove_cgroups();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let name = format!("sandpod-{}", nonce());
        let mut cgroups = Cgroups::plan(Path::new(cgroups::ROOT), &membership, &name, limits);
        if limits.need_cgroups() {
            // Recorded before they are created, so that every process can remove them.
            fs::write(self.dir.join("cgroups"), cgroups.lines())?;
            cgroups.make();
            limits.warn_unenforced(&cgroups);
            let held = limits.held(&cgroups);
            self.update(|stored| stored.held(held.clone()))?;
        }
        Ok(cgroups)
    }

    fn remove_cgroups(&self) {
        if let Ok(lines) = fs::read_to_string(self.dir.join("cgroups")) {
            cgroups::remove(&lines);
        }
    }

    /// Returns the path of the guest's log.
    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("guest.log")
    }

    /// Returns the directory of the writable directories.
    pub(super) fn places(&self) -> PathBuf {
        self.dir.join("places")
    }

    /// Returns the writable directories as paths in the sandbox.
    pub(super) fn writable() -> impl Iterator<Item = &'static str> {
        WRITABLE_DIRS.into_iter().chain([STATE_DIR])
    }

    /// Returns where a writable directory is on the machine.
    fn place(&self, inside: &str) -> PathBuf {
        self.places().join(inside.trim_start_matches('/'))
    }

    /// Creates the writable directories and gives them to the guest's user if that is not ours.
    pub(super) fn make_places(&self, user: Option<u32>) -> io::Result<()> {
        for inside in Self::writable() {
            let place = self.place(inside);
            fs::create_dir_all(&place)?;
            let Some(user) = user else { continue };
            // All directories up to `places`: no other user could have put anything there.
            for dir in place.ancestors().take_while(|dir| dir.starts_with(self.places())) {
                give(dir, user)?;
            }
        }
        Ok(())
    }

    /// Empties the writable directories.
    pub(super) fn clear(&self) -> io::Result<()> {
        remove_tree(&self.places())?;
        DirBuilder::new().mode(0o700).create(self.places())
    }

    /// Frees the name at once, and then deletes all files of the sandbox.
    pub(super) fn remove(&self) -> io::Result<()> {
        let gone = self.dir.with_file_name(format!("{GONE}{}", nonce()));
        match fs::rename(&self.dir, &gone) {
            Err(error) if error.kind() == Io::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => Self { dir: gone }.destroy(),
        }
    }

    /// Deletes all files. No guest may run.
    fn destroy(&self) -> io::Result<()> {
        self.remove_cgroups();
        remove_tree(&self.dir)
    }

    fn fill(&self, stored: &Stored) -> io::Result<(File, UnixListener)> {
        DirBuilder::new().mode(0o700).create(self.places())?;
        self.write(stored)?;
        let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.lock_path())?;
        lock.lock()?;
        Ok((lock, self.listen()?))
    }

    fn listen(&self) -> io::Result<UnixListener> {
        self.at_short_path(|path| UnixListener::bind(path))
    }

    /// Uses a short path: the kernel takes socket addresses of at most 107 bytes, and a state directory may be deep.
    fn at_short_path<T>(&self, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let dir = File::open(&self.dir)?;
        act(Path::new(&format!("/proc/self/fd/{}/socket", dir.as_raw_fd())))
    }
}

/// Gives a directory to the user with mode 0755. A directory that the user has already keeps its mode.
fn give(dir: &Path, user: u32) -> io::Result<()> {
    if fs::metadata(dir)?.uid() != user {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        chown(dir, Some(user), Some(user))?;
    }
    Ok(())
}

fn nonce() -> String {
    format!("{:x}-{:x}", std::process::id(), fastrand::u64(..))
}

/// Removes a tree of any depth, including directories whose permissions code in the sandbox has removed.
fn remove_tree(dir: &Path) -> io::Result<()> {
    match sandpod_remove::remove(CWD, dir, NoAccess::Grant) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::backend::CreateSpec;
    use crate::backend::local::LocalNetwork;
    use crate::backend::local::guest::StartOptions;

    fn anchors() -> (Anchors, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        (Anchors::new(Some(dir.path().join("deep/below"))).unwrap(), dir)
    }

    fn stored() -> Stored {
        let (network, limits) = (LocalNetwork::None, Limits::default());
        let options = StartOptions { owned: false, network, limits, mounts: Vec::new() };
        Stored::new(&CreateSpec::default(), &options)
    }

    fn id(name: &str) -> SandboxId {
        name.parse().unwrap()
    }

    #[test]
    fn only_one_sandbox_gets_a_name() {
        let (anchors, _dir) = anchors();
        let record = stored();
        let first = anchors.take(&id("a"), &record).unwrap().expect("it is free");
        assert!(anchors.take(&id("a"), &stored()).unwrap().is_none());
        assert_eq!(first.anchor.stored().unwrap().unwrap().uid, record.uid);
        assert_eq!(anchors.ids().unwrap(), [id("a")]);
    }

    #[test]
    fn only_one_of_concurrent_callers_gets_a_name() {
        let (anchors, _dir) = anchors();
        let takers: Vec<_> = (0..16)
            .map(|_| {
                let anchors = anchors.clone();
                std::thread::spawn(move || anchors.take(&id("a"), &stored()).unwrap().is_some())
            })
            .collect();
        let winners = takers.into_iter().map(|taker| taker.join().unwrap()).filter(|got| *got);
        assert_eq!(winners.count(), 1);
    }

    #[test]
    fn a_sandbox_is_alive_while_its_lock_is_held() {
        let (anchors, _dir) = anchors();
        let NewSandbox { anchor, lock, .. } = anchors.take(&id("a"), &stored()).unwrap().unwrap();
        assert!(anchor.is_locked());
        assert!(anchor.retake().unwrap().is_none());
        drop(lock);
        assert!(!anchor.is_locked());
        let retaken = anchor.retake().unwrap();
        assert!(retaken.is_some() && anchor.is_locked());
    }

    #[test]
    fn concurrent_changes_are_not_lost() {
        let (anchors, _dir) = anchors();
        let anchor = anchors.take(&id("a"), &stored()).unwrap().unwrap().anchor;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..10).for_each(|_| drop(anchor.update(Stored::used).unwrap())));
            }
        });
        assert_eq!(anchor.stored().unwrap().unwrap().version(), "81");
        let outdated = anchor.update_if(|stored| stored.version() == "80", Stored::used).unwrap();
        assert!(outdated.is_none());
    }

    #[test]
    fn a_sandbox_with_inaccessible_directories_is_removed_completely() {
        let (anchors, dir) = anchors();
        let taken = anchors.take(&id("a"), &stored()).unwrap().unwrap();
        let closed = taken.anchor.places().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join("file"), "x").unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        taken.anchor.remove().unwrap();
        assert!(anchors.find(&id("a")).is_none());
        assert_eq!(fs::read_dir(dir.path().join("deep/below")).unwrap().count(), 0);
    }

    #[test]
    fn only_directories_of_dead_processes_are_deleted() {
        let (anchors, _dir) = anchors();
        anchors.take(&id("a"), &stored()).unwrap();
        let (dead, young) = (anchors.dir.join(".new-dead"), anchors.dir.join(".new-young"));
        fs::create_dir(&dead).unwrap();
        File::open(&dead).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::create_dir(&young).unwrap();
        let living = anchors.dir.join(".new-living");
        fs::create_dir(&living).unwrap();
        let (_lock, _listener) = Anchor { dir: living.clone() }.fill(&stored()).unwrap();
        anchors.sweep();
        assert!(!dead.exists() && living.exists() && young.exists());
    }

    #[test]
    fn only_our_own_orphaned_directories_are_deleted() {
        let (anchors, _dir) = anchors();
        let (ours, theirs) = (anchors.dir.join(".gone-ours"), anchors.dir.join(".theirs"));
        for dir in [&ours, &theirs] {
            fs::create_dir_all(dir).unwrap();
            File::open(dir).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        anchors.sweep();
        assert!(!ours.exists() && theirs.exists());
    }

    #[test]
    fn testing_a_free_lock_does_not_prevent_taking_it() {
        let (anchors, _dir) = anchors();
        let NewSandbox { anchor, lock, .. } = anchors.take(&id("a"), &stored()).unwrap().unwrap();
        assert!(anchor.hold().unwrap().is_none());
        drop(lock);
        let testing = anchor.clone();
        let tests = std::thread::spawn(move || (0..20_000).filter(|_| testing.is_locked()).count());
        let (mut taken, mut refused) = (0, 0);
        while !tests.is_finished() {
            *if anchor.hold().unwrap().is_some() { &mut taken } else { &mut refused } += 1;
        }
        // A child process that another test starts has the open lock, too, until it executes its program.
        assert!(refused <= taken / 100, "{refused} refused, {taken} taken");
    }

    #[test]
    fn a_socket_in_a_deep_directory_accepts_connections() {
        let dir = tempfile::tempdir().unwrap();
        let anchors = Anchors::new(Some(dir.path().join("x".repeat(200)))).unwrap();
        let taken = anchors.take(&id("a"), &stored()).unwrap().unwrap();
        taken.anchor.connect().unwrap();
        taken.listener.accept().unwrap();
    }
}
