//! Sandboxes on this machine: a directory with a lock for each, and the guest in namespaces of its own.

mod anchor;
mod cgroups;
mod config;
mod guest;
mod limits;
mod lock;
mod mount;
mod quantity;
mod record;
mod state_dir;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError, Dialer};

use self::anchor::{Anchor, Anchors, NewSandbox};
pub(crate) use self::cgroups::can_limit_memory;
pub use self::config::{LocalConfig, LocalNetwork};
pub use self::guest::GuestProgram;
pub(crate) use self::guest::changed_user;
use self::guest::{StartOptions, Started};
pub use self::mount::LocalMount;
use self::record::Stored;
use super::{
    Backend, CreateSpec, Lost, OnLost, Page, Place, PlaceState, PolicyHash, Provisioned, Query, Record,
    Rollback, Setup, slot,
};
use crate::{Error, ErrorKind, Result, SandboxId};

/// The namespace that local sandboxes report.
const NAMESPACE: &str = "local";

/// How often a creation waits for a sandbox of the same name to be deleted, and the pause between.
const MAX_LOOKS: usize = 250;
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// The local sandboxes of a state directory, and how their guests are started.
#[derive(Clone)]
pub(crate) struct Local(Arc<Inner>);

struct Inner {
    anchors: Anchors,
    program: GuestProgram,
    options: StartOptions,
    /// The guests of sandboxes that end with this process.
    owned: Mutex<HashMap<SandboxId, Started>>,
}

impl Local {
    pub(crate) fn new(config: &LocalConfig) -> Result<Self> {
        let anchors = Anchors::new(config.state_dir.clone())?;
        let (program, options) = (config.program()?, config.start_options());
        Ok(Self(Arc::new(Inner { anchors, program, options, owned: Mutex::default() })))
    }

    /// Runs blocking work on the file system in a blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || work(&inner)).await.unwrap_or_else(|cause| {
            Err(Error::new(
                ErrorKind::Internal,
                format!("Work on local sandboxes failed: {cause}."),
                "Report this.",
            ))
        })
    }

    fn made(&self, id: SandboxId, found: Found) -> Provisioned {
        let Found { anchor, stored, is_new } = found;
        let rollback = if is_new { self.rollback_of(&id, &stored) } else { Rollback::none() };
        let place = Place {
            id,
            uid: stored.uid.clone(),
            generation: stored.generation,
            name: anchor.dir().display().to_string(),
            hint: "Fix that, or use a cluster.".to_owned(),
            ttl: stored.ttl(),
            idle_ttl: stored.idle_ttl(),
            bound: stored.created_at.is_some(),
            used_at: Some(stored.used_at()),
            token_sha256: None,
            policy_sha256: stored.policy_sha256.as_deref().and_then(PolicyHash::from_hex),
            annotations: Vec::new(),
            dirs: None,
            lost: stored.unreported_loss.then(Lost::default),
        };
        let dialer = LocalDialer { anchor, uid: stored.uid, generation: stored.generation };
        Provisioned { place, dialer: Box::new(dialer), rollback }
    }

    /// Deletes what was created, unless another caller has attached to it.
    fn rollback_of(&self, id: &SandboxId, stored: &Stored) -> Rollback {
        let (local, id, uid) = (self.clone(), id.clone(), stored.uid.clone());
        Rollback::new(async move {
            let is_ours_alone = move |stored: &Stored| stored.uid == uid && !stored.shared;
            let _ = local.blocking(move |inner| inner.delete_if(&id, is_ours_alone)).await;
        })
    }
}

/// A sandbox that was created or found.
struct Found {
    anchor: Anchor,
    stored: Stored,
    /// This call has created it.
    is_new: bool,
}

impl Found {
    /// Marks an existing sandbox as shared, so that its creator does not roll it back. None if it was rolled back
    /// already.
    fn shared(anchor: Anchor, stored: Stored) -> io::Result<Option<Self>> {
        let is_same = |now: &Stored| now.uid == stored.uid;
        let noted =
            if stored.shared { Ok(Some(stored.clone())) } else { anchor.update_if(is_same, Stored::shared) };
        let shared = match noted {
            // A caller must be able to return to a sandbox that has filled the disk.
            Err(error) if error.kind() == io::ErrorKind::StorageFull && stored.created_at.is_some() => {
                Some(stored)
            }
            noted => noted?,
        };
        Ok(shared.map(|stored| Self { anchor, stored, is_new: false }))
    }
}

impl Inner {
    fn create(&self, id: &SandboxId, wanted: &CreateSpec) -> Result<Found> {
        for _ in 0..MAX_LOOKS {
            if let Some(found) = self.try_create(id, wanted)? {
                return Ok(found);
            }
            // A sandbox of that name is being deleted.
            std::thread::sleep(LOOK_PAUSE);
        }
        Err(vanished(id))
    }

    fn try_create(&self, id: &SandboxId, wanted: &CreateSpec) -> Result<Option<Found>> {
        let exists = || self.attach(id, wanted.on_lost, |stored| stored.new_generation().wanted(wanted));
        if self.anchors.find(id).is_some() {
            return exists();
        }
        let options = self.options.resolved()?;
        let stored = Stored::new(wanted, &options);
        let loading = guest::load(&self.program, id).map_err(|cause| cannot_start(&cause))?;
        let Some(NewSandbox { anchor, lock, listener }) = self.anchors.take(id, &stored)? else {
            return exists();
        };
        match loading.start_in(&options, &anchor, &lock, &listener) {
            Ok(started) => {
                self.hold(id, started);
                Ok(Some(Found { anchor, stored, is_new: true }))
            }
            Err(cause) => {
                // The directory is ours while we hold the lock.
                let _ = anchor.remove();
                drop(lock);
                Err(cannot_start(&cause))
            }
        }
    }

    /// Attaches to a sandbox. A guest that crashed is started again with the same files. A sandbox whose lifetime is
    /// over is replaced by an empty one.
    fn attach(
        &self,
        id: &SandboxId,
        on_lost: OnLost,
        new_generation: impl Fn(Stored) -> Stored,
    ) -> Result<Option<Found>> {
        let Some((anchor, stored)) = self.find(id)? else { return Ok(None) };
        if stored.is_marked_deleted() {
            // The process that marked it deletes it, but may have died.
            self.finish_deleting(id)?;
            return Ok(None);
        }
        if anchor.has_expired() && on_lost == OnLost::Error {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("The time of sandbox '{id}' is up."),
                "Create another one.",
            ));
        }
        let unstarted = |cause| if anchor.is_marked_deleted() { vanished(id) } else { cannot_start(&cause) };
        let Some(lock) = anchor.retake().map_err(unstarted)? else {
            return Found::shared(anchor, stored).map_err(|cause| cannot_start(&cause));
        };
        let is_new = anchor.has_expired();
        let is_same = |now: &Stored| now.uid == stored.uid;
        let taken = if is_new {
            let options = self.options.resolved()?;
            // The record first: if this process dies here, the next one finds the mark and repeats this.
            let begun = anchor.update_if(is_same, |stored| new_generation(stored).in_manner(&options));
            begun.and_then(|begun| begun.map(|stored| anchor.clear().map(|()| stored)).transpose())
        } else {
            anchor.update_if(is_same, |stored| stored.kept_by(&self.options).shared())
        };
        // None: it is being deleted.
        let Some(stored) = taken.map_err(unstarted)? else { return Ok(None) };
        let (network, limits, mounts) = (stored.network, stored.limits, stored.mounts.clone());
        let options = StartOptions { owned: self.options.owned, network, limits, mounts };
        let started = guest::load(&self.program, id)
            // After the record: a client of this socket relies on it.
            .and_then(|loading| loading.start_in(&options, &anchor, &lock, &anchor.listen_again()?))
            .map_err(unstarted)?;
        self.hold(id, started);
        Ok(Some(Found { anchor, stored, is_new }))
    }

    fn hold(&self, id: &SandboxId, started: Started) {
        if self.options.owned {
            self.owned.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), started);
        }
    }

    fn find(&self, id: &SandboxId) -> Result<Option<(Anchor, Stored)>> {
        let Some(anchor) = self.anchors.find(id) else { return Ok(None) };
        let stored = anchor.stored().map_err(|cause| unreadable(id, &anchor, &cause))?;
        Ok(stored.map(|stored| (anchor, stored)))
    }

    fn record(&self, id: &SandboxId) -> Option<Record> {
        let anchor = self.anchors.find(id)?;
        let Ok(stored) = anchor.stored() else { return Some(record::unreadable(id.clone(), NAMESPACE)) };
        let stored = stored?;
        let fate = match anchor.is_locked() {
            _ if stored.is_marked_deleted() => PlaceState::Ended,
            true => PlaceState::Alive,
            false if anchor.has_expired() || stored.is_orphaned() => PlaceState::Ended,
            false => PlaceState::Lost,
        };
        Some(stored.record(id.clone(), NAMESPACE, fate, anchor.dir()))
    }

    /// Returns one page, ordered by name. The cursor is the last name.
    fn list(&self, query: &Query) -> Result<Page> {
        let after = |id: &SandboxId| query.cursor.as_deref().is_none_or(|cursor| id.as_str() > cursor);
        let ids = self.anchors.ids()?.into_iter().filter(after);
        let all = ids.filter_map(|id| self.record(&id));
        let matching =
            |record: &Record| query.labels.iter().all(|(key, value)| record.labels.get(key) == Some(value));
        let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
        let mut records: Vec<_> = all.filter(matching).take(limit.saturating_add(1)).collect();
        let more = records.len() > limit;
        records.truncate(limit);
        let cursor = records.last().filter(|_| more).map(|record| record.id.to_string());
        Ok(Page { records, cursor })
    }

    fn delete(&self, id: &SandboxId) -> Result<()> {
        self.delete_what(id, |_| true).map(drop)
    }

    /// Deletes a sandbox that is marked as deleted, and no later one of its name.
    fn finish_deleting(&self, id: &SandboxId) -> Result<()> {
        // The mark is never removed, so a lock that was opened before belongs to this sandbox.
        self.delete_stored(id, Stored::is_marked_deleted).map(drop)
    }

    /// Deletes a sandbox if its record matches. Returns false if it does not.
    fn delete_stored(&self, id: &SandboxId, is_meant: impl Fn(&Stored) -> bool) -> Result<bool> {
        // An unreadable record matches nothing.
        self.delete_what(id, |anchor| {
            anchor.stored().is_ok_and(|stored| stored.is_some_and(|stored| is_meant(&stored)))
        })
    }

    /// Deletes the sandbox of that name if `is_meant` holds after its lock was opened. Returns false if it does not.
    fn delete_what(&self, id: &SandboxId, is_meant: impl FnOnce(&Anchor) -> bool) -> Result<bool> {
        let Some(anchor) = self.anchors.find(id) else { return Ok(false) };
        let deleted = anchor.lock().and_then(|lock| {
            // While the lock is held, no other guest starts there and no other sandbox gets the name.
            let is_ours = is_meant(&anchor) && guest::end(&anchor, &lock)?;
            if is_ours {
                self.owned.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
                anchor.remove()?;
            }
            Ok(is_ours)
        });
        deleted.or_else(|cause| match cause.kind() {
            // Another process has deleted it.
            io::ErrorKind::NotFound => Ok(false),
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                format!("Can't delete the local sandbox '{id}': {cause}."),
                "Try again, as the user who made it.",
            )),
        })
    }

    /// Marks a sandbox as deleted if its record matches, and deletes it. Returns false if it does not match.
    fn delete_if(&self, id: &SandboxId, is_meant: impl Fn(&Stored) -> bool) -> Result<bool> {
        let Some(anchor) = self.anchors.find(id) else { return Ok(false) };
        // From here on no caller attaches to it.
        match anchor.update_if(&is_meant, Stored::marked_deleted) {
            Ok(None) => Ok(false),
            Ok(Some(_)) => self.finish_deleting(id).map(|()| true),
            // Even the mark does not fit on the disk; the deletion makes room.
            Err(cause) if cause.kind() == io::ErrorKind::StorageFull => self.delete_stored(id, is_meant),
            Err(cause) => Err(unwritten(id, &cause)),
        }
    }

    /// Changes the record of a sandbox if it matches.
    fn change(
        &self,
        id: &SandboxId,
        is_meant: impl Fn(&Stored) -> bool,
        change: impl Fn(Stored) -> Stored,
    ) -> Result<bool> {
        let Some(anchor) = self.anchors.find(id) else { return Ok(false) };
        let changed = anchor.update_if(is_meant, change);
        changed.map(|stored| stored.is_some()).map_err(|cause| unwritten(id, &cause))
    }
}

impl Backend for Local {
    fn create<'a>(&'a self, id: &'a SandboxId, wanted: &'a CreateSpec) -> BoxFuture<'a, Result<Provisioned>> {
        let (local, id, wanted) = (self.clone(), id.clone(), wanted.clone());
        // If the caller is cancelled, the result is dropped in the blocking thread and so rolled back.
        let creating = self.blocking(move |inner| {
            let found = inner.create(&id, &wanted)?;
            Ok(local.made(id, found))
        });
        async move {
            let _slot = slot().await?;
            creating.await
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        id: &'a SandboxId,
        on_lost: OnLost,
    ) -> BoxFuture<'a, Result<Option<Provisioned>>> {
        let (local, id) = (self.clone(), id.clone());
        self.blocking(move |inner| {
            let found = inner.attach(&id, on_lost, Stored::new_generation)?;
            Ok(found.map(|found| local.made(id, found)))
        })
        .boxed()
    }

    fn record_bound<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        let (id, uid, bound) = (place.id.clone(), place.uid.clone(), place.bound);
        let policy = place.policy_sha256.map(PolicyHash::to_hex);
        async move {
            let is_ours = move |stored: &Stored| stored.uid == uid;
            self.blocking(move |inner| {
                // Nothing is written for a returning caller: the sandbox may have filled the disk.
                let kept = if bound {
                    inner.find(&id)?.is_some_and(|(_, stored)| is_ours(&stored))
                } else {
                    inner.change(&id, is_ours, |stored| stored.handed_out(policy.clone()))?
                };
                if kept { Ok(()) } else { Err(vanished(&id)) }
            })
            .await
        }
        .boxed()
    }

    fn record_reported<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        let (id, uid, generation) = (place.id.clone(), place.uid.clone(), place.generation);
        async move {
            let is_this = move |stored: &Stored| stored.uid == uid && stored.generation == generation;
            self.blocking(move |inner| inner.change(&id, is_this, Stored::reported)).await.map(drop)
        }
        .boxed()
    }

    fn begin_setup<'a>(&'a self, _place: &'a Place, _limit: Duration) -> BoxFuture<'a, Result<Setup>> {
        // Local sandboxes have no setup script.
        async { Ok(Setup::Done) }.boxed()
    }

    fn record_activity<'a>(&'a self, id: &'a SandboxId, uid: &'a str) -> BoxFuture<'a, Result<()>> {
        let (id, uid) = (id.clone(), uid.to_owned());
        async move {
            let is_ours = move |stored: &Stored| stored.uid == uid;
            self.blocking(move |inner| inner.change(&id, is_ours, Stored::used)).await.map(drop)
        }
        .boxed()
    }

    fn find<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Record>>> {
        let id = id.clone();
        self.blocking(move |inner| Ok(inner.record(&id))).boxed()
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page>> {
        let query = query.clone();
        async move {
            self.blocking(move |inner| {
                inner.anchors.sweep();
                inner.list(&query)
            })
            .await
        }
        .boxed()
    }

    fn delete<'a>(&'a self, id: &'a SandboxId, _wait: bool) -> BoxFuture<'a, Result<()>> {
        let id = id.clone();
        self.blocking(move |inner| inner.delete(&id)).boxed()
    }

    fn delete_unchanged<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<bool>> {
        let (id, is_unchanged) = (record.id.clone(), unchanged(record));
        self.blocking(move |inner| inner.delete_if(&id, is_unchanged)).boxed()
    }

    fn set_ttl<'a>(&'a self, record: &'a Record, ttl: Duration) -> BoxFuture<'a, Result<bool>> {
        let (id, is_unchanged) = (record.id.clone(), unchanged(record));
        self.blocking(move |inner| inner.change(&id, is_unchanged, |stored| stored.with_ttl(ttl))).boxed()
    }
}

/// Connects to the socket of the guest of one place. A later place of the same name is refused.
struct LocalDialer {
    anchor: Anchor,
    uid: String,
    generation: u32,
}

impl LocalDialer {
    fn connect(&self) -> io::Result<tokio::net::UnixStream> {
        let stream = self.anchor.connect()?;
        stream.set_nonblocking(true)?;
        tokio::net::UnixStream::from_std(stream)
    }

    /// Checks, after connecting, that the name still belongs to this place.
    fn check(&self) -> Result<(), DialError> {
        let unreadable = |cause| DialError::Unreachable(format!("its record can't be read ({cause})"));
        let stored = self.anchor.stored().map_err(unreadable)?;
        let is_ours = |stored: &Stored| stored.uid == self.uid && stored.generation == self.generation;
        if stored.as_ref().is_some_and(is_ours) {
            return Ok(());
        }
        Err(DialError::Gone("the local sandbox was deleted, or has ended".to_owned()))
    }

    fn explain(&self, error: &io::Error) -> DialError {
        if self.anchor.is_locked() {
            return DialError::Unreachable(format!("the local sandbox can't be reached ({error})"));
        }
        if self.anchor.has_expired() {
            return DialError::Gone("its time is up".to_owned());
        }
        let why = guest::last_words(&self.anchor).map(|words| format!(": {words}")).unwrap_or_default();
        DialError::Gone(format!("the local sandbox has ended{why}"))
    }
}

impl Dialer for LocalDialer {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        async {
            let stream = self.connect().map_err(|error| self.explain(&error))?;
            self.check()?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        }
        .boxed()
    }
}

/// Whether the record is as it was read. Revisions start at one for each sandbox, so both values are compared.
fn unchanged(record: &Record) -> impl Fn(&Stored) -> bool + use<> {
    let (uid, version) = (record.uid.clone(), record.version.clone());
    move |stored| stored.uid == uid && stored.version() == version
}

fn vanished(id: &SandboxId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("The local sandbox '{id}' was deleted during this call."),
        "Try again.",
    )
}

fn unreadable(id: &SandboxId, anchor: &Anchor, cause: &io::Error) -> Error {
    Error::new(
        ErrorKind::StartFailed,
        format!("The record of the local sandbox '{id}' can't be read: {cause}."),
        format!("Copy the files that you need from {}, and delete the sandbox.", anchor.places().display()),
    )
}

fn unwritten(id: &SandboxId, cause: &io::Error) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("Can't write the record of the local sandbox '{id}': {cause}."),
        "Make room on the disk, and try again.",
    )
}

/// Returns the error for a full disk, if that is the cause.
fn disk_full(dir: &Path, cause: &io::Error) -> Option<Error> {
    if !matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return None;
    }
    let message = format!("Can't keep local sandboxes in {}: {cause}.", dir.display());
    let next = "Free space on that disk, or set XDG_STATE_HOME to a directory on another one.";
    Some(Error::new(ErrorKind::QuotaExceeded, message, next))
}

fn cannot_start(cause: &io::Error) -> Error {
    Error::new(
        ErrorKind::StartFailed,
        format!("Can't make a sandbox on this machine: {cause}."),
        "Fix that, or use a cluster.",
    )
}
