//! Sandboxes on this machine: a directory with a lock for each, and the guest in namespaces of its own.

mod anchor;
mod guest;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::{ByteStream, DialError, Dialer};
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result, SandboxId};
use anchor::{Anchor, Anchors, Taken};
use guest::{Manner, Started};

pub use guest::GuestProgram;

/// Where local sandboxes are kept, and what becomes their guest.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    anchors: Anchors,
    program: GuestProgram,
}

/// What a local sandbox was made with.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Record {
    /// Milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// Whom the guest is bound to.
    pub(crate) claim: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) ttl_seconds: Option<u64>,
    pub(crate) ttl_idle_seconds: Option<u64>,
    pub(crate) network: bool,
}

/// A sandbox that is there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) record: Record,
    anchor: Anchor,
    /// What keeps it, if it is owned by this process.
    _owned: Option<Started>,
}

impl Local {
    /// Sandboxes below `state_dir`, or below the user's own state directory.
    pub(crate) fn new(state_dir: Option<PathBuf>, program: GuestProgram) -> Result<Self> {
        Ok(Self { anchors: Anchors::new(state_dir)?, program })
    }

    /// Makes a sandbox, unless there is one of that name: then it is that one. An owned one ends with its place.
    pub(crate) fn create(&self, id: &SandboxId, record: Record, owned: bool) -> Result<Place> {
        let Some(Taken { anchor, lock, listener }) = self.anchors.take(id, &record)? else {
            return self.attach(id)?.ok_or_else(|| vanished(id));
        };
        let manner = Manner { owned, network: record.network };
        match guest::start(&self.program, manner, &anchor, &lock, &listener) {
            Ok(started) => Ok(Place { record, anchor, _owned: owned.then_some(started) }),
            Err(cause) => {
                drop(lock);
                let _ = anchor.remove();
                Err(cannot_start(&cause.to_string()))
            }
        }
    }

    /// The sandbox of that name. A guest that crashed is started again, in the same files; one whose time was up stays
    /// ended.
    pub(crate) fn attach(&self, id: &SandboxId) -> Result<Option<Place>> {
        let Some((anchor, record)) = self.find(id) else { return Ok(None) };
        if anchor.has_expired() {
            return Ok(None);
        }
        let retaken = anchor.retake().map_err(|cause| cannot_start(&cause.to_string()))?;
        if let Some((lock, listener)) = retaken {
            let manner = Manner { owned: false, network: record.network };
            guest::start(&self.program, manner, &anchor, &lock, &listener)
                .map_err(|cause| cannot_start(&cause.to_string()))?;
        }
        Ok(Some(Place { record, anchor, _owned: None }))
    }

    /// All sandboxes, with whether their guest lives.
    pub(crate) fn list(&self) -> Result<Vec<(SandboxId, Record, bool)>> {
        let ids = self.anchors.ids()?;
        let found = |id: SandboxId| self.find(&id).map(|(anchor, record)| (id, record, anchor.is_locked()));
        Ok(ids.into_iter().filter_map(found).collect())
    }

    /// Ends a sandbox and removes all that it had; that there is none is no error.
    pub(crate) fn delete(&self, id: &SandboxId) -> Result<()> {
        let Some(anchor) = self.anchors.find(id) else { return Ok(()) };
        guest::end(&anchor).and_then(|()| anchor.remove()).map_err(|cause| {
            Error::new(
                ErrorKind::Unavailable,
                format!("Can't delete the local sandbox '{id}': {cause}."),
                "Try again, as the user who made it.",
            )
        })
    }

    /// Removes what processes that died left behind.
    pub(crate) fn sweep(&self) {
        self.anchors.sweep();
    }

    fn find(&self, id: &SandboxId) -> Option<(Anchor, Record)> {
        let anchor = self.anchors.find(id)?;
        let record = anchor.record()?;
        Some((anchor, record))
    }
}

impl Place {
    /// Opens streams to the guest.
    pub(crate) fn dialer(&self) -> impl Dialer + use<> {
        LocalDialer { anchor: self.anchor.clone() }
    }

    /// Why the guest does not answer, in its own words if it left some.
    pub(crate) fn why_unusable(&self, cause: &dyn std::fmt::Display) -> Error {
        cannot_start(&guest::last_words(&self.anchor).unwrap_or_else(|| cause.to_string()))
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

fn cannot_start(reason: &str) -> Error {
    Error::new(
        ErrorKind::StartFailed,
        format!("Can't make a sandbox on this machine: {}.", reason.trim_end_matches('.')),
        "Mend that, or use a cluster.",
    )
}
