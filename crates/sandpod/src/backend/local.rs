//! Sandboxes on this machine: a directory with a lock for each, and the guest in namespaces of its own.

mod anchor;
mod cgroups;
mod config;
mod guest;
mod home;
mod limits;
mod quantity;
mod record;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError, Dialer};

use self::anchor::{Anchor, Anchors, Taken};
pub use self::config::{LocalConfig, LocalNetwork};
pub use self::guest::GuestProgram;
use self::guest::{Manner, Started};
use self::record::Stored;
use super::{Backend, Fate, Made, OnLost, Page, Place, Query, Record, Setup, Undo, Wanted, slot};
use crate::{Error, ErrorKind, Result, SandboxId};

/// What is said to be the namespace of local sandboxes.
const NAMESPACE: &str = "local";

/// Where local sandboxes are kept, and how their guests are started.
#[derive(Clone)]
pub(crate) struct Local(Arc<Inner>);

struct Inner {
    anchors: Anchors,
    program: GuestProgram,
    manner: Manner,
    /// What keeps the sandboxes that end with this process.
    owned: Mutex<HashMap<SandboxId, Started>>,
}

impl Local {
    pub(crate) fn new(config: &LocalConfig) -> Result<Self> {
        let anchors = Anchors::new(config.state_dir.clone())?;
        let (program, manner) = (config.program()?, config.manner());
        Ok(Self(Arc::new(Inner { anchors, program, manner, owned: Mutex::default() })))
    }

    /// Does what only waits for the file system, on a thread that may.
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

    fn made(&self, id: SandboxId, anchor: Anchor, stored: &Stored) -> Made {
        let undo = if stored.created_at.is_some() {
            // Somebody uses it.
            Undo::nothing()
        } else {
            let (local, id) = (self.clone(), id.clone());
            Undo::new(async move {
                let _ = local.blocking(move |inner| inner.delete(&id)).await;
            })
        };
        let place = Place {
            id,
            claim: stored.claim.clone(),
            generation: stored.generation,
            name: anchor.dir().display().to_string(),
            hint: "Mend that, or use a cluster.".to_owned(),
            ttl: stored.ttl(),
            idle_ttl: stored.idle_ttl(),
            bound: stored.created_at.is_some(),
            token_sha256: None,
            notes: Vec::new(),
        };
        Made { place, dialer: Box::new(LocalDialer { anchor }), undo }
    }
}

impl Inner {
    fn create(&self, id: &SandboxId, wanted: &Wanted) -> Result<(Anchor, Stored)> {
        let exists = || self.attach(id, wanted.on_lost)?.ok_or_else(|| vanished(id));
        if self.anchors.find(id).is_some() {
            return exists();
        }
        let stored = Stored::new(wanted, self.manner);
        let loading = guest::load(&self.program).map_err(|cause| cannot_start(&cause))?;
        let Some(Taken { anchor, lock, listener }) = self.anchors.take(id, &stored)? else { return exists() };
        match loading.settle(self.manner, &anchor, &lock, &listener) {
            Ok(started) => {
                self.hold(id, started);
                Ok((anchor, stored))
            }
            Err(cause) => {
                drop(lock);
                let _ = anchor.remove();
                Err(cannot_start(&cause))
            }
        }
    }

    /// A guest that crashed is started again in the same files, for the place is there. One whose time was up has ended,
    /// and what is made in its stead begins with nothing.
    fn attach(&self, id: &SandboxId, on_lost: OnLost) -> Result<Option<(Anchor, Stored)>> {
        let Some((anchor, stored)) = self.find(id) else { return Ok(None) };
        if anchor.has_expired() && on_lost == OnLost::Error {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("The time of sandbox '{id}' is up."),
                "Create another one.",
            ));
        }
        let unstarted = |cause| if anchor.dir().exists() { cannot_start(&cause) } else { vanished(id) };
        let Some((lock, listener)) = anchor.retake().map_err(unstarted)? else {
            return Ok(Some((anchor, stored)));
        };
        let stored = if anchor.has_expired() {
            anchor.clear().and_then(|()| anchor.update(Stored::begin_again))
        } else {
            Ok(stored)
        };
        let started = stored.and_then(|stored| {
            let manner = Manner { network: stored.network, limits: stored.limits, ..self.manner };
            let started = guest::load(&self.program)?.settle(manner, &anchor, &lock, &listener)?;
            Ok((started, stored))
        });
        let (started, stored) = started.map_err(unstarted)?;
        self.hold(id, started);
        Ok(Some((anchor, stored)))
    }

    fn hold(&self, id: &SandboxId, started: Started) {
        if self.manner.owned {
            self.owned.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), started);
        }
    }

    fn find(&self, id: &SandboxId) -> Option<(Anchor, Stored)> {
        let anchor = self.anchors.find(id)?;
        let stored = anchor.stored()?;
        Some((anchor, stored))
    }

    fn record(&self, id: &SandboxId) -> Option<Record> {
        let (anchor, stored) = self.find(id)?;
        let fate = match anchor.is_locked() {
            true => Fate::Alive,
            false if anchor.has_expired() => Fate::Ended,
            false => Fate::Lost,
        };
        Some(stored.record(id.clone(), NAMESPACE, fate))
    }

    /// One page, in the order of the names; the cursor is the last one.
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
        let Some(anchor) = self.anchors.find(id) else { return Ok(()) };
        let deleted = guest::end(&anchor).and_then(|()| anchor.remove());
        self.owned.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        deleted.map_err(|cause| {
            Error::new(
                ErrorKind::Unavailable,
                format!("Can't delete the local sandbox '{id}': {cause}."),
                "Try again, as the user who made it.",
            )
        })
    }

    /// Changes what is stored of a sandbox, if it is still as `is_meant` wants it.
    fn change(
        &self,
        id: &SandboxId,
        is_meant: impl Fn(&Stored) -> bool,
        change: impl Fn(Stored) -> Stored,
    ) -> Result<bool> {
        let Some((anchor, _)) = self.find(id) else { return Ok(false) };
        let changed = anchor.update_if(is_meant, change);
        changed.map(|stored| stored.is_some()).map_err(|cause| {
            Error::new(
                ErrorKind::Unavailable,
                format!("Can't write down what became of the local sandbox '{id}': {cause}."),
                "Make room on the disk, and try again.",
            )
        })
    }
}

impl Backend for Local {
    fn create<'a>(&'a self, id: &'a SandboxId, wanted: &'a Wanted) -> BoxFuture<'a, Result<Made>> {
        let (local, id, wanted) = (self.clone(), id.clone(), wanted.clone());
        // What was made when nobody waits for it any more takes itself back, as long as all is done in there.
        let creating = self.blocking(move |inner| {
            let (anchor, stored) = inner.create(&id, &wanted)?;
            Ok(local.made(id, anchor, &stored))
        });
        async move {
            let _slot = slot().await?;
            creating.await
        }
        .boxed()
    }

    fn attach<'a>(&'a self, id: &'a SandboxId, on_lost: OnLost) -> BoxFuture<'a, Result<Option<Made>>> {
        let (local, id) = (self.clone(), id.clone());
        self.blocking(move |inner| {
            let found = inner.attach(&id, on_lost)?;
            Ok(found.map(|(anchor, stored)| local.made(id, anchor, &stored)))
        })
        .boxed()
    }

    fn keep<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>> {
        let (id, claim) = (place.id.clone(), place.claim.clone());
        async move {
            let is_ours = move |stored: &Stored| stored.claim == claim;
            self.blocking(move |inner| inner.change(&id, is_ours, Stored::handed_out)).await.map(drop)
        }
        .boxed()
    }

    fn begin_setup<'a>(&'a self, _place: &'a Place, _limit: Duration) -> BoxFuture<'a, Result<Setup>> {
        // Local sandboxes have no setup script.
        async { Ok(Setup::Done) }.boxed()
    }

    fn touch<'a>(&'a self, id: &'a SandboxId, claim: &'a str) -> BoxFuture<'a, Result<()>> {
        let (id, claim) = (id.clone(), claim.to_owned());
        async move {
            let is_ours = move |stored: &Stored| stored.claim == claim;
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
        let (id, version) = (record.id.clone(), record.version.clone());
        self.blocking(move |inner| {
            // From here on it is nobody's: whoever attaches meanwhile finds another version, or nothing.
            let unchanged = move |stored: &Stored| stored.version() == version;
            Ok(inner.change(&id, unchanged, Stored::given_up)? && inner.delete(&id).is_ok())
        })
        .boxed()
    }

    fn set_ttl<'a>(&'a self, record: &'a Record, ttl: Duration) -> BoxFuture<'a, Result<bool>> {
        let (id, version) = (record.id.clone(), record.version.clone());
        self.blocking(move |inner| {
            let unchanged = move |stored: &Stored| stored.version() == version;
            inner.change(&id, unchanged, |stored| stored.with_ttl(ttl))
        })
        .boxed()
    }
}

/// Connects to the socket that the guest listens on.
struct LocalDialer {
    anchor: Anchor,
}

impl LocalDialer {
    fn connect(&self) -> io::Result<tokio::net::UnixStream> {
        let stream = self.anchor.connect()?;
        stream.set_nonblocking(true)?;
        tokio::net::UnixStream::from_std(stream)
    }

    fn explain(&self, error: &io::Error) -> DialError {
        if self.anchor.is_locked() {
            return DialError::Unreachable(format!("the local sandbox can't be reached ({error})"));
        }
        let why = guest::last_words(&self.anchor).map(|words| format!(": {words}")).unwrap_or_default();
        DialError::Gone(format!("the local sandbox has ended{why}"))
    }
}

impl Dialer for LocalDialer {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        async {
            let stream = self.connect().map_err(|error| self.explain(&error))?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        }
        .boxed()
    }
}

fn vanished(id: &SandboxId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("The local sandbox '{id}' was deleted while it was looked for."),
        "Try again.",
    )
}

fn cannot_start(cause: &io::Error) -> Error {
    Error::new(
        ErrorKind::StartFailed,
        format!("Can't make a sandbox on this machine: {cause}."),
        "Mend that, or use a cluster.",
    )
}
