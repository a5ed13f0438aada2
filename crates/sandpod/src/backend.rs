//! What makes places for sandboxes and opens streams to them. It knows nothing of commands or files; all else is
//! written once, in [`Provider`](crate::Provider).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::Dialer;

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

/// The life of places of one kind. Every future may be dropped at any time; what was being made then is taken back.
pub(crate) trait Backend: Send + Sync + 'static {
    /// Makes the sandbox `id`, or attaches to it if it is there.
    fn create<'a>(&'a self, id: &'a SandboxId, wanted: &'a CreateSpec) -> BoxFuture<'a, Result<Provisioned>>;

    /// Attaches to the sandbox `id`, if it is there.
    fn attach<'a>(&'a self, id: &'a SandboxId, on_lost: OnLost)
    -> BoxFuture<'a, Result<Option<Provisioned>>>;

    /// Attaches to a claim that somebody else made and keeps: it is neither changed nor deleted.
    fn adopt<'a>(&'a self, _name: &'a SandboxId) -> BoxFuture<'a, Result<Provisioned>> {
        async { Err(only_agent_sandbox("Only claims of mode='agent-sandbox' can be adopted.")) }.boxed()
    }

    /// Ends the place of the sandbox `id`, whose volumes stay, until it is resumed. It returns when the place is gone.
    /// Without `force` one whose workspace would be lost is refused.
    fn suspend<'a>(&'a self, _id: &'a SandboxId, _force: bool) -> BoxFuture<'a, Result<()>> {
        async { Err(only_agent_sandbox("Only sandboxes of mode='agent-sandbox' can be suspended.")) }.boxed()
    }

    /// Gives the sandbox `id` a place again, if it is suspended. One that had a policy of its own needs one.
    fn resume<'a>(&'a self, _id: &'a SandboxId, _has_policy: bool) -> BoxFuture<'a, Result<Provisioned>> {
        async { Err(only_agent_sandbox("Only sandboxes of mode='agent-sandbox' can be resumed.")) }.boxed()
    }

    /// How long making a sandbox outlasts an outage of the API server.
    fn outage_limit(&self) -> Duration {
        Duration::ZERO
    }

    /// Notes that the guest in `place` is bound: its time begins, and nobody takes it back who only failed to make it.
    fn record_bound<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>>;

    /// Records that a caller knows of the loss before `place`; nothing to do if there is a later place by now.
    fn record_reported<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<()>>;

    /// Whose turn it is to set `place` up, which takes at most `limit`. While it is another's, this waits.
    fn begin_setup<'a>(&'a self, place: &'a Place, limit: Duration) -> BoxFuture<'a, Result<Setup>>;

    /// Notes that the sandbox is used. It is not an error if it is gone.
    fn record_activity<'a>(&'a self, id: &'a SandboxId, claim: &'a str) -> BoxFuture<'a, Result<()>>;

    /// What is known of the sandbox `id`, if it is there.
    fn find<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Record>>>;

    /// One page of all sandboxes with these labels.
    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page>>;

    /// Deletes the sandbox `id` with all that it has. With `wait` it returns when all is gone.
    fn delete<'a>(&'a self, id: &'a SandboxId, wait: bool) -> BoxFuture<'a, Result<()>>;

    /// Deletes a sandbox exactly as it was read; false if it has changed since, or somebody else deleted it.
    fn delete_unchanged<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<bool>>;

    /// Changes the time that a sandbox has from its [`Record::created_at`] on; false if it has changed since it was read.
    fn set_ttl<'a>(&'a self, record: &'a Record, ttl: Duration) -> BoxFuture<'a, Result<bool>>;

    /// Removes what all sandboxes share, and says what it was; an error while there is a sandbox.
    fn delete_shared_objects(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// How the warm pool is filled; without one there is nothing in it.
    fn pool_status(&self) -> BoxFuture<'_, Result<PoolStatus>> {
        async { Ok(PoolStatus::default()) }.boxed()
    }

    /// Removes the pools that nobody has kept for `max_idle`, or long, and says which places went.
    fn remove_abandoned_pools(&self, _max_idle: Option<Duration>) -> BoxFuture<'_, Result<Vec<SandboxId>>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Stops what is done in the background. Sandboxes and pools stay.
    fn close(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

fn only_agent_sandbox(message: &str) -> Error {
    Error::new(ErrorKind::Unsupported, message, "Use agent-sandbox mode for that.")
}

/// What a new sandbox is made with; one that is there already is not changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct CreateSpec {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_ttl: Option<Duration>,
    /// The guest is bound to a policy that is not the configuration's.
    pub(crate) own_policy: bool,
    pub(crate) on_lost: OnLost,
}

/// What to do with a sandbox whose place is lost.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnLost {
    /// Give it a new place under the same id, with the next generation.
    #[default]
    Recreate,
    /// Say so.
    Error,
}

/// A place that is ready for its guest to be bound.
pub(crate) struct Provisioned {
    pub(crate) place: Place,
    /// Opens streams to its guest.
    pub(crate) dialer: Box<dyn Dialer>,
    /// Takes it back, unless it is handed out.
    pub(crate) rollback: Rollback,
}

/// Where a sandbox runs.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: SandboxId,
    /// Names the claim: no two sandboxes have the same, also under one id.
    pub(crate) claim: String,
    /// Counts the places that the sandbox had.
    pub(crate) generation: u32,
    /// What people find it by.
    pub(crate) name: String,
    /// How to see what its guest says, as a sentence.
    pub(crate) hint: String,
    /// As the sandbox was made with, whoever asks for it now.
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_ttl: Option<Duration>,
    /// Somebody used it before.
    pub(crate) bound: bool,
    /// When it was used last, as its record has it; none: nothing may be written on it.
    pub(crate) used_at: Option<SystemTime>,
    /// SHA-256 of the token that is to open its guest over the network; none: nothing does, or what did before.
    pub(crate) token_sha256: Option<[u8; 32]>,
    /// SHA-256 of the policy that its guest is bound to: as recorded, and to be recorded by [`Backend::keep`].
    pub(crate) policy_sha256: Option<PolicyHash>,
    /// What is to be noted of it when it is kept.
    pub(crate) annotations: Vec<AnnotationChange>,
    /// Where commands run if the place was not made for us.
    pub(crate) dirs: Option<Dirs>,
    /// What was lost before it, if no caller knows yet.
    pub(crate) lost: Option<Lost>,
}

/// The files of a sandbox were lost after callers had used them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Lost {
    /// The directories on volumes that were kept.
    pub(crate) kept: Vec<String>,
}

/// Where commands run in a place that others made for something else.
#[derive(Clone, Debug)]
pub(crate) struct Dirs {
    /// Where they start; empty: where the runtime there starts them.
    pub(crate) working_dir: String,
    /// The home of their user; none: the usual one, which the runtime there replaces if it can't be had.
    pub(crate) home: Option<String>,
}

/// SHA-256 of a policy, as the guest returns it from Bind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PolicyHash(pub(crate) [u8; 32]);

impl PolicyHash {
    /// Its text in an annotation.
    pub(crate) fn to_hex(self) -> String {
        HEXLOWER.encode(&self.0)
    }

    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok().map(Self)
    }
}

/// What is written on a sandbox's anchor under a name; none: what is there is removed.
pub(crate) type AnnotationChange = (&'static str, Option<String>);

/// What a caller has to do for a place that is new to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Setup {
    /// Set it up within the time that was asked for, and then [`Backend::keep`] it.
    Ours,
    /// Nothing: another has done it.
    Done,
}

/// Which sandboxes.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) limit: u32,
    /// Where the last page ended.
    pub(crate) cursor: Option<String>,
}

/// Some sandboxes, and where the next ones begin.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) records: Vec<Record>,
    pub(crate) cursor: Option<String>,
}

/// What is known of a sandbox without asking its guest.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    pub(crate) claim: String,
    pub(crate) namespace: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) generation: u32,
    /// The last time that a place was made for it.
    pub(crate) made_at: Option<SystemTime>,
    /// When it was handed out; none while it is made.
    pub(crate) created_at: Option<SystemTime>,
    pub(crate) last_activity: Option<SystemTime>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) idle_ttl: Option<Duration>,
    pub(crate) place_state: PlaceState,
    /// How its guest came, and why by no better way; none where that is not known or there is only one.
    pub(crate) guest: Option<(GuestDelivery, Option<String>)>,
    /// Changes whenever the sandbox does.
    pub(crate) version: String,
}

/// What became of a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PlaceState {
    /// It is there, or on its way.
    Alive,
    /// It waits in a pool for somebody.
    Warm,
    /// It has no place until somebody resumes it, and its volumes stay.
    Suspended,
    /// Its guest ended it: its time was up.
    Ended,
    /// It is gone, or failed.
    Lost,
}
