//! The registry of thread sandboxes.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use napi::Env;
use napi::bindgen_prelude::{Object, ToNapiValue};
use napi_derive::napi;
use sandpod::agents::{self, ThreadLife};
use sandpod::{OnLost, SandboxHandle};

use crate::bridge::{Resident, promise};
use crate::options::ExecConfig;
use crate::provider::{Provider, Shared};
use crate::tree::whole;

/// The properties of threads' new sandboxes.
#[napi(object, object_to_js = false)]
pub struct Life {
    pub labels: HashMap<String, String>,
    pub ttl_seconds: Option<f64>,
    pub ttl_idle_seconds: Option<f64>,
    /// The next call replaces a lost sandbox.
    pub recreate: bool,
}

/// The part of a graph's state that names a thread's sandbox.
#[napi(object)]
#[derive(Default)]
pub struct ThreadState {
    pub sandbox_id: Option<String>,
    pub place: Option<String>,
}

impl From<ThreadState> for agents::ThreadState {
    fn from(state: ThreadState) -> Self {
        Self { id: state.sandbox_id, place: state.place }
    }
}

/// The sandboxes of a scope's threads.
#[napi]
pub struct Threads(Resident<(Arc<agents::Threads>, Shared)>);

impl Threads {
    pub(crate) fn registry(&self) -> napi::Result<Arc<agents::Threads>> {
        Ok(self.0.get()?.0.clone())
    }

    pub(crate) fn exec(&self) -> napi::Result<ExecConfig> {
        Ok(self.0.get()?.1.exec.clone())
    }

    /// Returns a promise of `work` with the registry.
    fn call<'env, T, F>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        work: impl FnOnce(Arc<agents::Threads>) -> F,
    ) -> napi::Result<Object<'env>>
    where
        F: Future<Output = sandpod::Result<T>> + Send + 'static,
        T: ToNapiValue + Send + 'static,
    {
        promise(env, call, work(self.registry()?))
    }

    /// Returns a promise of the sandbox that `work` gets from the registry.
    fn sandbox<'env, F>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        work: impl FnOnce(Arc<agents::Threads>) -> F,
    ) -> napi::Result<Object<'env>>
    where
        F: Future<Output = sandpod::Result<SandboxHandle>> + Send + 'static,
    {
        let (threads, shared) = self.0.get()?.clone();
        let work = work(threads);
        promise(env, call, async move { work.await.map(|handle| shared.sandbox(handle)) })
    }
}

#[napi]
impl Threads {
    #[napi(constructor)]
    pub fn new(provider: &Provider, scope: String, life: Life) -> napi::Result<Self> {
        let seconds = |seconds: f64| Duration::from_secs(whole(seconds));
        let life = ThreadLife {
            labels: life.labels.into_iter().collect(),
            ttl: life.ttl_seconds.map(seconds),
            idle_ttl: life.ttl_idle_seconds.map(seconds),
            on_lost: if life.recreate { OnLost::Recreate } else { OnLost::Error },
        };
        let shared = provider.shared()?;
        let threads = agents::Threads::new(shared.provider.clone(), scope, life);
        Ok(Self(Resident::new((Arc::new(threads), shared))))
    }

    /// Returns the id of a thread's sandbox, whether it exists or not.
    #[napi]
    pub fn id_of(&self, thread: String) -> napi::Result<String> {
        let (threads, shared) = self.0.get()?;
        Ok(shared.id(&threads.id_of(&thread)))
    }

    /// Returns the part of a graph's state that names the thread's sandbox.
    #[napi]
    pub fn state_of(&self, thread: String) -> napi::Result<ThreadState> {
        let state = self.registry()?.state(&thread);
        Ok(state.map(|state| ThreadState { sandbox_id: state.id, place: state.place }).unwrap_or_default())
    }

    #[napi]
    pub fn expect(&self, thread: String, earlier: ThreadState) -> napi::Result<()> {
        self.registry()?.expect(&thread, &earlier.into());
        Ok(())
    }

    #[napi]
    pub fn check<'env>(&self, env: &'env Env, thread: String) -> napi::Result<Object<'env>> {
        self.call(env, None, |threads| async move { threads.check(&thread).await })
    }

    /// Finds or creates the thread's sandbox: the one that the state names, or the thread's own.
    #[napi]
    pub fn acquire<'env>(
        &self,
        env: &'env Env,
        call: Option<u32>,
        thread: String,
        earlier: ThreadState,
    ) -> napi::Result<Object<'env>> {
        self.sandbox(
            env,
            call,
            |threads| async move { Box::pin(threads.acquire(&thread, earlier.into())).await },
        )
    }

    /// Finds or creates the thread's sandbox.
    #[napi]
    pub fn get<'env>(&self, env: &'env Env, call: Option<u32>, thread: String) -> napi::Result<Object<'env>> {
        self.sandbox(env, call, |threads| async move { Box::pin(threads.get(&thread)).await })
    }

    /// Counts a sandbox among those that this process used.
    #[napi]
    pub fn record_use(&self, sandbox_id: String) -> napi::Result<()> {
        let (threads, shared) = self.0.get()?;
        for id in shared.ids(&[sandbox_id])? {
            threads.note_used(id);
        }
        Ok(())
    }

    /// Removes the entries of deleted sandboxes.
    #[napi]
    pub fn forget(&self, deleted: Vec<String>) -> napi::Result<()> {
        let (threads, shared) = self.0.get()?;
        threads.forget(&shared.ids(&deleted)?);
        Ok(())
    }

    /// Closes the registry and returns the ids of the sandboxes that this process used.
    #[napi]
    pub fn close(&self, why: String) -> napi::Result<Vec<String>> {
        let (threads, shared) = self.0.get()?;
        Ok(threads.close(why).iter().map(|id| shared.id(id)).collect())
    }

    /// Closes the registry, deletes the sandboxes that this process used, and closes the provider. With `whole_scope`,
    /// deletes all sandboxes of the scope.
    #[napi]
    pub fn shut_down<'env>(
        &self,
        env: &'env Env,
        why: String,
        within: f64,
        whole_scope: bool,
    ) -> napi::Result<Object<'env>> {
        let within = Duration::try_from_secs_f64(within).unwrap_or(Duration::MAX);
        self.call(env, None, move |threads| async move { threads.shut_down(why, whole_scope, within).await })
    }
}
