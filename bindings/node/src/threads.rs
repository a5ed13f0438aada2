//! Which sandbox belongs to which conversation thread.
//!
//! A thread's sandbox has an id that follows from the scope and the thread. Every process computes it alike, so restarts,
//! replicas and races all end at the same sandbox.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::Object;
use napi_derive::napi;
use sandpod::{Error, ErrorKind, OnLost, SandboxHandle, SandboxId, SandboxRequest, Status};

use crate::bridge::{Resident, promise};
use crate::provider::{Lazy, Provider};
use crate::sandbox::Sandbox;
use crate::tree::whole;

const THREAD_LABEL: &str = "thread-id";
const SCOPE_LABEL: &str = "scope";
/// A place that no sandbox has.
const NO_PLACE: &str = "";

/// What threads' new sandboxes have.
#[napi(object, object_to_js = false)]
pub struct Life {
    pub labels: HashMap<String, String>,
    pub ttl_seconds: Option<f64>,
    pub ttl_idle_seconds: Option<f64>,
    /// A lost sandbox is replaced by the next call.
    pub recreate: bool,
}

/// What a graph's state has of a thread's sandbox.
#[napi(object)]
pub struct ThreadState {
    pub sandbox_id: Option<String>,
    /// Nothing as long as the loss of an earlier place has not been reported.
    pub place: Option<String>,
}

/// The sandboxes of a scope's threads.
pub(crate) struct Registry {
    provider: Arc<Lazy>,
    scope: String,
    life: Life,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<String, SandboxHandle>,
    used: BTreeSet<String>,
    /// The place that a conversation used last, until its sandbox is found; nothing: some place.
    earlier: HashMap<String, Option<String>>,
    closed: Option<String>,
}

impl Registry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, thread: &str) -> Option<SandboxHandle> {
        self.state().known.get(thread).cloned()
    }

    fn id_of(&self, thread: &str) -> String {
        let own = || SandboxId::of_thread(&self.scope, thread).to_string();
        self.state().known.get(thread).map_or_else(own, |known| known.id.to_string())
    }

    /// Finds or makes a thread's sandbox.
    pub(crate) async fn get(&self, thread: &str) -> sandpod::Result<SandboxHandle> {
        self.check_open()?;
        if let Some(known) = self.known(thread) {
            return Ok(known);
        }
        let provider = self.provider.get().await?;
        let found = provider.get_or_create(self.request(thread)).await?;
        let info = provider.info(found.id.as_str()).await?;
        let (of_scope, of_thread) = (info.labels.get(SCOPE_LABEL), info.labels.get(THREAD_LABEL));
        if of_scope != Some(&self.scope) || of_thread.map(String::as_str) != Some(thread) {
            let none = String::new();
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "The sandbox {} has the id of thread '{thread}' of '{}', but belongs to thread '{}' of '{}'.",
                    info.id,
                    self.scope,
                    of_thread.unwrap_or(&none),
                    of_scope.unwrap_or(&none)
                ),
                "Delete it, or give this manager another scope.",
            ));
        }
        self.keep(thread, found)
    }

    fn request(&self, thread: &str) -> SandboxRequest {
        let mut labels: BTreeMap<_, _> = self.life.labels.clone().into_iter().collect();
        labels.insert(THREAD_LABEL.to_owned(), thread.to_owned());
        labels.insert(SCOPE_LABEL.to_owned(), self.scope.clone());
        SandboxRequest {
            id: Some(SandboxId::of_thread(&self.scope, thread).to_string()),
            create: true,
            on_lost: if self.life.recreate { OnLost::Recreate } else { OnLost::Error },
            labels,
            ttl: self.life.ttl_seconds.map(|ttl| Duration::from_secs(whole(ttl))),
            idle_ttl: self.life.ttl_idle_seconds.map(|ttl| Duration::from_secs(whole(ttl))),
            ..SandboxRequest::default()
        }
    }

    fn keep(&self, thread: &str, found: SandboxHandle) -> sandpod::Result<SandboxHandle> {
        let mut state = self.state();
        state.used.insert(found.id.to_string());
        if let Some(why) = &state.closed {
            return Err(closed(why));
        }
        let kept = state.known.entry(thread.to_owned()).or_insert(found).clone();
        if let Some(earlier) = state.earlier.remove(thread) {
            let is_other = earlier.map_or(kept.is_new, |place| kept.place != place);
            if is_other {
                kept.sandbox.report_replaced();
            }
        }
        Ok(kept)
    }

    /// Forgets a thread's sandbox whose place is gone: the next call gets another one and reports that. Without recreation
    /// it is kept, because each of its calls says that it is gone.
    pub(crate) fn lose(&self, thread: &str) {
        let mut state = self.state();
        if !self.life.recreate {
            return;
        }
        if let Some(known) = state.known.remove(thread) {
            let place = if known.sandbox.has_report() { NO_PLACE.to_owned() } else { known.place };
            state.earlier.insert(thread.to_owned(), Some(place));
        }
    }

    /// Forgets a thread's sandbox if it is gone by now.
    async fn check(&self, thread: &str) -> sandpod::Result<()> {
        let Some(known) = self.known(thread) else { return Ok(()) };
        match self.provider.get().await?.info(known.id.as_str()).await {
            Ok(info) if info.status != Status::Terminated => Ok(()),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(_) | Err(_) => {
                self.lose(thread);
                Ok(())
            }
        }
    }

    /// Notes which sandbox and place a conversation's state names: if the thread gets another place, the first call
    /// reports that the files are gone.
    fn expect(&self, thread: &str, earlier: &ThreadState) {
        let mut state = self.state();
        let is_named = earlier.sandbox_id.is_some() || earlier.place.is_some();
        if is_named && !state.known.contains_key(thread) {
            state.earlier.entry(thread.to_owned()).or_insert_with(|| earlier.place.clone());
        }
    }

    /// Finds or makes the thread's sandbox: the one that the state names, or the thread's own.
    async fn acquire(&self, thread: &str, mut earlier: ThreadState) -> sandpod::Result<SandboxHandle> {
        self.check(thread).await?;
        let own = [Some(self.id_of(thread)), Some(SandboxId::of_thread(&self.scope, thread).to_string())];
        if let Some(id) = &earlier.sandbox_id
            && !own.contains(&earlier.sandbox_id)
        {
            match self.provider.get().await?.reconnect(id).await {
                Ok(found) => {
                    self.expect(thread, &earlier);
                    self.keep(thread, found)?;
                }
                Err(error) if [ErrorKind::NotFound, ErrorKind::InvalidInput].contains(&error.kind()) => {
                    earlier.place = Some(NO_PLACE.to_owned());
                }
                Err(error) => return Err(error),
            }
        }
        self.expect(thread, &earlier);
        self.get(thread).await
    }

    fn check_open(&self) -> sandpod::Result<()> {
        self.state().closed.as_deref().map_or(Ok(()), |why| Err(closed(why)))
    }
}

fn closed(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, why, "Make another one.")
}

fn state_of(known: Option<&SandboxHandle>) -> ThreadState {
    let place = known.filter(|known| !known.sandbox.has_report()).map(|known| known.place.clone());
    ThreadState { sandbox_id: known.map(|known| known.id.to_string()), place }
}

/// The sandboxes of a scope's threads, for JavaScript.
#[napi]
pub struct Threads(Resident<Arc<Registry>>);

impl Threads {
    pub(crate) fn registry(&self) -> napi::Result<Arc<Registry>> {
        self.0.get().cloned()
    }
}

#[napi]
impl Threads {
    #[napi(constructor)]
    pub fn new(provider: &Provider, scope: String, life: Life) -> napi::Result<Self> {
        let provider = provider.lazy()?;
        let registry = Registry { provider, scope, life, state: Mutex::default() };
        Ok(Self(Resident::new(Arc::new(registry))))
    }

    /// The id of a thread's sandbox, whether it exists or not.
    #[napi]
    pub fn id_of(&self, thread: String) -> napi::Result<String> {
        Ok(self.0.get()?.id_of(&thread))
    }

    /// What a graph's state has of the thread's sandbox.
    #[napi]
    pub fn state_of(&self, thread: String) -> napi::Result<ThreadState> {
        Ok(state_of(self.0.get()?.known(&thread).as_ref()))
    }

    #[napi]
    pub fn expect(&self, thread: String, earlier: ThreadState) -> napi::Result<()> {
        self.0.get()?.expect(&thread, &earlier);
        Ok(())
    }

    #[napi]
    pub fn check<'env>(&self, env: &'env Env, thread: String) -> napi::Result<Object<'env>> {
        let registry = self.registry()?;
        promise(env, None, async move { registry.check(&thread).await })
    }

    #[napi]
    pub fn acquire<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        thread: String,
        earlier: ThreadState,
    ) -> napi::Result<Object<'env>> {
        let registry = self.registry()?;
        promise(env, call, async move { registry.acquire(&thread, earlier).await.map(Sandbox::from) })
    }

    /// Finds or makes the thread's sandbox.
    #[napi]
    pub fn get<'env>(&self, env: &'env Env, call: Option<u32>, thread: String) -> napi::Result<Object<'env>> {
        let registry = self.registry()?;
        promise(env, call, async move { registry.get(&thread).await.map(Sandbox::from) })
    }

    /// Counts a sandbox among those that this process used.
    #[napi]
    pub fn record_use(&self, sandbox_id: String) -> napi::Result<()> {
        self.0.get()?.state().used.insert(sandbox_id);
        Ok(())
    }

    /// Forgets sandboxes that were deleted.
    #[napi]
    pub fn forget(&self, deleted: Vec<String>) -> napi::Result<()> {
        let registry = self.0.get()?;
        let threads: Vec<_> = {
            let mut state = registry.state();
            state.used.retain(|id| !deleted.contains(id));
            let lost = state.known.iter().filter(|(_, known)| deleted.contains(&known.id.to_string()));
            lost.map(|(thread, _)| thread.clone()).collect()
        };
        for thread in threads {
            registry.lose(&thread);
        }
        Ok(())
    }

    /// Hands out nothing from now on; returns the ids of the sandboxes that this process used.
    #[napi]
    pub fn close(&self, why: String) -> napi::Result<Vec<String>> {
        let mut state = self.0.get()?.state();
        state.closed = Some(why);
        state.known.clear();
        Ok(std::mem::take(&mut state.used).into_iter().collect())
    }
}
