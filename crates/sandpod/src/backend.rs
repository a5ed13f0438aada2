//! Backends, which provision sandboxes and open streams to their guests. They do not run commands or touch files: that
//! is implemented once, above [`Provider`](crate::Provider).
//!
//! [`raw`] creates Pods, [`agent_sandbox`] creates claims, and [`local`] creates namespaces on this machine.
//! `kubernetes` holds the code that the first two share. Each backend provisions a [`Place`] and returns it as
//! [`Provisioned`], with a [`Rollback`] that deletes it unless the sandbox is handed out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::Dialer;

pub(crate) use self::kubernetes::anchor::POLICY_SHA256;
pub use self::kubernetes::delivery::GuestDelivery;
pub use self::kubernetes::guest::install_guest;
pub(crate) use self::kubernetes::outage::outlast;
pub(crate) use self::rollback::Rollback;
pub(crate) use self::slots::slot;
use crate::provider::PoolStatus;
use crate::{Error, ErrorKind, Result, SandboxId};

pub(crate) mod agent_sandbox;
mod kubernetes;
pub(crate) mod local;
pub(crate) mod raw;
mod rollback;
mod slots;

/// The life cycle of sandboxes in one mode. Every future may be dropped at any time: objects that it has created are
/// deleted.
pub(crate) trait Backend: Send + Sync + 'static {
    /// Creates the sandbox `id`, or attaches to it if it exists.
    fn create<'a>(&'a self, id: &'a SandboxId, wanted: &'a CreateSpec) -> BoxFuture<'a, Result<Provisioned>>;

    /// Attaches to the sandbox `id`, if it exists.
    fn attach<'a>(&'a self, id: &'a SandboxId, on_lost: OnLost)
    -> BoxFuture<'a, Result<Option<Provisioned>>>;

    /// Attaches to a claim that sandpod did not create. It is neither changed nor deleted.
    fn adopt<'a>(&'a self, _name: &'a SandboxId) -> BoxFuture<'a, Result<Provisioned>> {
        async { Err(only_agent_sandbox("Only claims of mode='agent-sandbox' can be adopted.")) }.boxed()
    }

    /// Deletes the Pod of the sandbox `id` and keeps its volumes, until it is resumed. Returns when the Pod is gone.
    /// Without `force` a sandbox whose workspace would be lost is refused.
    fn suspend<'a>(&'a self, _id: &'a SandboxId, _force: bool) -> BoxFuture<'a, Result<()>> {
        async { Err(only_agent_sandbox("Only sandboxes of mode='agent-sandbox' can be suspended.")) }.boxed()
    }

    /// Gives a suspended sandbox a new Pod. A sandbox that had its own policy needs one again.
    fn resume<'a>(&'a self, _id: &'a SandboxId, _has_policy: bool) -> BoxFuture<'a, Result<Provisioned>> {
        async { Err(only_agent_sandbox("Only sandboxes of mode='agent-sandbox' can be resumed.")) }.boxed()
    }

    /// Returns for how long creating a sandbox retries through an outage of the API server.
    fn outage_limit(&self) -> Duration {
        Duration::ZERO
    }

    /// Records that the guest in `place` is bound. Its lifetime begins, and no rollback deletes it from now on.
    fn record_bound<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>>;

    /// Records that the loss before `place` was reported to a caller. Does nothing if there is a later generation.
    fn record_reported<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>>;

    /// Decides whether this caller sets up `place`, which takes at most `limit`. Waits while another caller does so.
    fn begin_setup<'a>(&'a self, place: &'a Place, limit: Duration) -> BoxFuture<'a, Result<Setup>>;

    /// Records that the sandbox is used now. A missing sandbox is no error.
    fn record_activity<'a>(&'a self, id: &'a SandboxId, uid: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Returns the record of the sandbox `id`, if it exists.
    fn find<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Record>>>;

    /// Returns one page of the sandboxes with these labels.
    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page>>;

    /// Deletes the sandbox `id` with all its objects. With `wait` it returns when they are gone.
    fn delete<'a>(&'a self, id: &'a SandboxId, wait: bool) -> BoxFuture<'a, Result<()>>;

    /// Deletes a sandbox if it has not changed since it was read. Returns false if it has changed or is gone.
    fn delete_unchanged<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<bool>>;

    /// Changes the lifetime, counted from [`Record::created_at`]. Returns false if the sandbox has changed since it
    /// was read.
    fn set_ttl<'a>(&'a self, record: &'a Record, ttl: Duration) -> BoxFuture<'a, Result<bool>>;

    /// Deletes the objects that all sandboxes share and returns their names. Fails while there is a sandbox.
    fn delete_shared_objects(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Returns how many Pods of the warm pool are ready and in use. Without a pool all counts are 0.
    fn pool_status(&self) -> BoxFuture<'_, Result<PoolStatus>> {
        async { Ok(PoolStatus::default()) }.boxed()
    }

    /// Deletes pools whose Lease was not renewed for `max_idle`, or ten minutes, and returns the Pods that went with
    /// them.
    fn remove_abandoned_pools(&self, _max_idle: Option<Duration>) -> BoxFuture<'_, Result<Vec<SandboxId>>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Stops background work. Sandboxes and pools stay.
    fn close(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

fn only_agent_sandbox(message: &str) -> Error {
    Error::new(ErrorKind::Unsupported, message, "Use agent-sandbox mode for that.")
}

/// The properties of a new sandbox. An existing sandbox is not changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CreateSpec {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_ttl: Option<Duration>,
    /// Whether the guest is bound to a policy other than the configuration's.
    pub(crate) own_policy: bool,
    pub(crate) on_lost: OnLost,
}

/// The action of [`Provider::get_or_create`](crate::Provider::get_or_create) on a sandbox whose Pod, or local guest,
/// is lost.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnLost {
    /// Provision the sandbox again under the same id, with the next generation. Files that are not on volumes are
    /// lost, and the first call reports that.
    #[default]
    Recreate,
    /// Return an error of kind [`ErrorKind::NotFound`].
    Error,
}

/// A place whose guest is ready to be bound.
pub(crate) struct Provisioned {
    pub(crate) place: Place,
    /// Opens streams to the guest.
    pub(crate) dialer: Box<dyn Dialer>,
    /// Deletes the place unless it is disarmed.
    pub(crate) rollback: Rollback,
}

/// Where one generation of a sandbox runs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: SandboxId,
    /// Identifies the sandbox: no two sandboxes have the same value, not even under one id.
    pub(crate) uid: String,
    /// The number of places that the sandbox has had.
    pub(crate) generation: u32,
    /// The Pod or the directory, for messages.
    pub(crate) name: String,
    /// A sentence that names the command to read the guest's log.
    pub(crate) hint: String,
    /// The time to live that was recorded when the sandbox was created.
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_ttl: Option<Duration>,
    /// Whether its guest was bound before.
    pub(crate) bound: bool,
    /// The recorded time of the last use. None if nothing may be written on the anchor.
    pub(crate) used_at: Option<SystemTime>,
    /// SHA-256 of the token that opens the guest over the network from Bind on. None if no token is set, or it stays.
    pub(crate) token_sha256: Option<[u8; 32]>,
    /// SHA-256 of the policy that the guest is bound to: as recorded, and to be recorded by [`Backend::record_bound`].
    pub(crate) policy_sha256: Option<PolicyHash>,
    /// Changes that [`Backend::record_bound`] writes on the anchor.
    pub(crate) annotations: Vec<AnnotationChange>,
    /// The directories to use in a place that was not made for our guest.
    pub(crate) dirs: Option<Dirs>,
    /// The loss of an earlier generation that was not reported to a caller.
    pub(crate) lost: Option<Lost>,
}

/// The loss of files that callers had used.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Lost {
    /// The directories on volumes, whose files were kept.
    pub(crate) kept: Vec<String>,
}

/// The directories of commands in a place that was not made for our guest.
#[derive(Clone, Debug)]
pub(crate) struct Dirs {
    /// The directory in which commands start. If empty, the stock runtime decides.
    pub(crate) working_dir: String,
    /// The home directory. None: the usual one, which a stock runtime may replace.
    pub(crate) home: Option<String>,
}

/// SHA-256 of a policy, as the guest returns it from Bind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PolicyHash(pub(crate) [u8; 32]);

impl PolicyHash {
    /// Returns the text of an annotation.
    pub(crate) fn to_hex(self) -> String {
        HEXLOWER.encode(&self.0)
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok().map(Self)
    }
}

/// An annotation to write on an anchor. None removes it.
pub(crate) type AnnotationChange = (&'static str, Option<String>);

/// The task of a caller that has a new place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setup {
    /// The caller sets the place up within its limit, and then calls [`Backend::record_bound`].
    Ours,
    /// The caller has nothing to do: another caller has set the place up.
    Done,
}

/// A selection of sandboxes to list.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) limit: u32,
    /// The cursor of the previous page.
    pub(crate) cursor: Option<String>,
}

/// Some sandboxes, and the cursor of the next page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) records: Vec<Record>,
    pub(crate) cursor: Option<String>,
}

/// The record of a sandbox. It is read without a call to the guest.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) generation: u32,
    /// The time at which its current place was created.
    pub(crate) made_at: Option<SystemTime>,
    /// The time at which it was handed out. None while it is being created.
    pub(crate) created_at: Option<SystemTime>,
    pub(crate) last_activity: Option<SystemTime>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_ttl: Option<Duration>,
    pub(crate) place_state: PlaceState,
    /// The delivery of the guest, and why no better delivery was possible. None if that is unknown or there is only
    /// one delivery.
    pub(crate) guest: Option<(GuestDelivery, Option<String>)>,
    /// The properties of its present place, as far as they are known.
    pub(crate) facts: Facts,
    /// Changes with every change of the sandbox.
    pub(crate) version: String,
}

/// The properties of a sandbox's place that its record or Pod shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The network: `none`, `open`, or that of this machine as `host`. None if it is decided elsewhere.
    pub(crate) network: Option<&'static str>,
    /// The limits, by resource.
    pub(crate) limits: BTreeMap<String, String>,
    /// The directory of its state on this machine.
    pub(crate) state_dir: Option<PathBuf>,
}

/// The state of a sandbox's place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PlaceState {
    /// It exists or is being created.
    Alive,
    /// It waits in a warm pool.
    Warm,
    /// It has no Pod until it is resumed. Its volumes stay.
    Suspended,
    /// Its guest has exited because its lifetime was over.
    Ended,
    /// It is gone, or failed.
    Lost,
}
