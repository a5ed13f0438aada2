//! The registry of thread sandboxes: one sandbox for each conversation thread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandpod_client::{ErrorCase, ErrorKind};

use super::LazyProvider;
use crate::{
    DeletionResult, Error, OnLost, Result, SandboxHandle, SandboxId, SandboxInfo, SandboxRequest, Status,
};

/// The label with the thread of a sandbox.
pub const THREAD_LABEL: &str = "thread-id";
/// The label with the scope of a sandbox.
pub const SCOPE_LABEL: &str = "scope";
/// The time in which a process deletes its sandboxes by default: Kubernetes gives a Pod 30 s to end.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(25);
/// The name of a place that no sandbox has.
const NO_PLACE: &str = "";

/// The properties of a thread's new sandbox.
#[derive(Clone, Debug, Default)]
pub struct ThreadLife {
    /// Labels beside those of the configuration.
    pub labels: BTreeMap<String, String>,
    /// Time after creation at which it is deleted. None: as configured.
    pub ttl: Option<Duration>,
    /// Time without a call after which it is deleted. None: as configured.
    pub idle_ttl: Option<Duration>,
    /// Action if the thread's sandbox is lost.
    pub on_lost: OnLost,
}

/// The part of a conversation's state that names its sandbox.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ThreadState {
    /// The sandbox's id.
    pub id: Option<String>,
    /// The sandbox's place. If a later turn finds the sandbox at another one, its files are gone.
    pub place: Option<String>,
}

/// The sandboxes of a scope's threads.
///
/// The id of a thread's sandbox follows from the scope and the thread, so every process finds the same one. A found
/// sandbox is kept until it is lost; two calls that create one for a thread at the same time get the same one. If a
/// thread gets another place than its conversation used last, the first call in it reports that the files are gone.
pub struct Threads {
    provider: Arc<LazyProvider>,
    scope: String,
    life: ThreadLife,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    known: HashMap<String, SandboxHandle>,
    /// The sandboxes that this process used, which it deletes when it shuts down.
    used: BTreeSet<SandboxId>,
    /// The place that each conversation used last, until its sandbox is found. None: an unknown place.
    earlier: HashMap<String, Option<String>>,
    /// The reason why the registry is closed, if it is.
    closed: Option<String>,
}

impl Threads {
    /// Creates an empty registry.
    pub fn new(provider: Arc<LazyProvider>, scope: impl Into<String>, life: ThreadLife) -> Self {
        Self { provider, scope: scope.into(), life, registry: Mutex::default() }
    }

    /// Returns the scope of all its sandboxes.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Returns the id of a thread's sandbox, whether it exists or not.
    #[must_use]
    pub fn id_of(&self, thread: &str) -> SandboxId {
        let known = self.registry().known.get(thread).map(|handle| handle.id.clone());
        known.unwrap_or_else(|| self.own_id(thread))
    }

    /// Returns the sandbox that this process has found for the thread.
    #[must_use]
    pub fn known(&self, thread: &str) -> Option<SandboxHandle> {
        self.registry().known.get(thread).cloned()
    }

    /// Returns the state to write into the thread's conversation, if the thread has a sandbox. The place is left out
    /// while a loss of files is not reported, so that the next process reports it.
    #[must_use]
    pub fn state(&self, thread: &str) -> Option<ThreadState> {
        let handle = self.known(thread)?;
        let place = (!handle.sandbox.has_report()).then_some(handle.place);
        Some(ThreadState { id: Some(self.provider.config().show_id(&handle.id)), place })
    }

    /// Notes the sandbox and the place that a conversation's state names.
    pub fn expect(&self, thread: &str, state: &ThreadState) {
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let mut registry = self.registry();
        if (is_given(&state.id) || is_given(&state.place)) && !registry.known.contains_key(thread) {
            registry.earlier.entry(thread.to_owned()).or_insert_with(|| state.place.clone());
        }
    }

    /// Finds or creates the thread's sandbox.
    pub async fn get(&self, thread: &str) -> Result<SandboxHandle> {
        self.registry().check_open()?;
        if let Some(known) = self.known(thread) {
            return Ok(known);
        }
        let provider = self.provider.get().await?;
        let handle = Box::pin(provider.get_or_create(self.request(thread))).await?;
        self.check_owner(thread, &provider.info(handle.id.as_str()).await?)?;
        self.keep(thread, handle)
    }

    /// Finds or creates the thread's sandbox; a sandbox that the conversation's state names is used while it exists.
    pub async fn acquire(&self, thread: &str, state: ThreadState) -> Result<SandboxHandle> {
        self.check(thread).await?;
        let mut state = state;
        let named = state.id.clone().filter(|id| !id.is_empty() && !self.is_id_of(thread, id));
        if let Some(id) = named {
            match self.provider.get().await?.reconnect(&id).await {
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
                    tracing::info!(
                        "The sandbox {id} of thread {thread} is gone: the thread gets another one."
                    );
                    state.place = Some(NO_PLACE.to_owned());
                }
                found => {
                    let found = found?;
                    self.expect(thread, &state);
                    self.registry().check_open()?;
                    self.keep(thread, found)?;
                }
            }
        }
        self.expect(thread, &state);
        self.get(thread).await
    }

    /// Counts a sandbox among those that this process used.
    pub fn note_used(&self, id: SandboxId) {
        self.registry().used.insert(id);
    }

    /// Removes the thread's entry if its sandbox is gone.
    pub async fn check(&self, thread: &str) -> Result<()> {
        let Some(known) = self.known(thread) else { return Ok(()) };
        match self.provider.get().await?.info(known.id.as_str()).await {
            Ok(info) if info.status == Status::Terminated => self.lose(thread),
            Err(error) if error.kind() == ErrorKind::NotFound => self.lose(thread),
            found => drop(found?),
        }
        Ok(())
    }

    /// Removes the thread's entry, whose sandbox is gone: the next call gets another one and reports the loss. Where
    /// lost sandboxes are not replaced it is kept, because each of its calls reports the loss.
    pub fn lose(&self, thread: &str) {
        if self.life.on_lost != OnLost::Recreate {
            return;
        }
        let mut registry = self.registry();
        if let Some(known) = registry.known.remove(thread) {
            let place = if known.sandbox.has_report() { NO_PLACE.to_owned() } else { known.place };
            registry.earlier.insert(thread.to_owned(), Some(place));
        }
    }

    /// Removes the entries of deleted sandboxes.
    pub fn forget(&self, deleted: &[SandboxId]) {
        let mut registry = self.registry();
        registry.used.retain(|id| !deleted.contains(id));
        let known = registry.known.iter().filter(|(_, handle)| deleted.contains(&handle.id));
        let threads: Vec<_> = known.map(|(thread, _)| thread.clone()).collect();
        drop(registry);
        for thread in threads {
            self.lose(&thread);
        }
    }

    /// Removes the thread's entry, whose sandbox the caller deletes, and returns its id, if any.
    pub fn take(&self, thread: &str) -> Option<SandboxId> {
        let mut registry = self.registry();
        registry.earlier.remove(thread);
        let known = registry.known.remove(thread)?;
        registry.used.remove(&known.id);
        Some(known.id)
    }

    /// Closes the registry and returns the sandboxes that this process used. Later calls fail with the message `why`.
    pub fn close(&self, why: impl Into<String>) -> Vec<SandboxId> {
        let mut registry = self.registry();
        registry.closed = Some(why.into());
        registry.known.clear();
        std::mem::take(&mut registry.used).into_iter().collect()
    }

    /// Deletes sandboxes, and with `all` every other sandbox of the scope. The error names the sandboxes that are left
    /// after `within`, and they count as used again.
    pub async fn delete(&self, ids: Vec<SandboxId>, all: bool, within: Duration) -> Result<()> {
        let labels = all.then(|| BTreeMap::from([(SCOPE_LABEL.to_owned(), self.scope.clone())]));
        let result = self.provider.delete_all(ids, labels, within).await?;
        self.refuse_left(&result)
    }

    /// Closes the registry, deletes as [`delete`](Self::delete) does, and closes the provider.
    pub async fn shut_down(&self, why: impl Into<String>, all: bool, within: Duration) -> Result<()> {
        let deleted = self.delete(self.close(why), all, within).await;
        self.provider.close().await;
        deleted
    }

    fn refuse_left(&self, result: &DeletionResult) -> Result<()> {
        self.registry().used.extend(result.left.iter().map(|(id, _)| id.clone()));
        match result.error() {
            Some(error) => Err(Error::of_case(ErrorCase::NotDeleted, error.message(), error.next_step())),
            None => Ok(()),
        }
    }

    fn request(&self, thread: &str) -> SandboxRequest {
        let mut labels = self.life.labels.clone();
        labels.insert(THREAD_LABEL.to_owned(), thread.to_owned());
        labels.insert(SCOPE_LABEL.to_owned(), self.scope.clone());
        SandboxRequest {
            id: Some(self.own_id(thread).to_string()),
            create: true,
            on_lost: self.life.on_lost,
            labels,
            ttl: self.life.ttl,
            idle_ttl: self.life.idle_ttl,
            ..SandboxRequest::default()
        }
    }

    fn is_id_of(&self, thread: &str, text: &str) -> bool {
        self.provider.config().parse_id(text).is_ok_and(|id| id == self.id_of(thread))
    }

    fn own_id(&self, thread: &str) -> SandboxId {
        SandboxId::of_thread(&self.scope, thread)
    }

    fn check_owner(&self, thread: &str, info: &SandboxInfo) -> Result<()> {
        let label = |name: &str| info.labels.get(name).map(String::as_str);
        let (scope, owner) = (label(SCOPE_LABEL), label(THREAD_LABEL));
        if (scope, owner) == (Some(&self.scope), Some(thread)) {
            return Ok(());
        }
        let message = format!(
            "The sandbox {} has the id of thread '{thread}' of '{}', but belongs to thread '{}' of '{}'.",
            info.id,
            self.scope,
            owner.unwrap_or_default(),
            scope.unwrap_or_default()
        );
        Err(Error::new(ErrorKind::AlreadyExists, message, "Delete it, or give this manager another scope."))
    }

    fn keep(&self, thread: &str, handle: SandboxHandle) -> Result<SandboxHandle> {
        let mut registry = self.registry();
        registry.used.insert(handle.id.clone());
        registry.check_open()?;
        let kept = registry.known.entry(thread.to_owned()).or_insert(handle).clone();
        if let Some(earlier) = registry.earlier.remove(thread) {
            let is_replaced = earlier.map_or(kept.is_new, |earlier| earlier != kept.place);
            if is_replaced {
                kept.sandbox.report_replaced();
            }
        }
        Ok(kept)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn check_open(&self) -> Result<()> {
        match &self.closed {
            Some(why) => Err(Error::of_case(ErrorCase::Closed, why.clone(), "Create another one.")),
            None => Ok(()),
        }
    }
}
