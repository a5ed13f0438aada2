//! The registry of thread sandboxes.

use std::future::Future;
use std::sync::Arc;

use pyo3::prelude::*;
use sandpod::agents::{LazyProvider, ThreadLife, ThreadState};

use crate::bridge::{Call, NOTHING};
use crate::errors::{ProviderError, forked};
use crate::provider::{ids, seconds};
use crate::runtime::Resident;
use crate::sandbox::Sandbox;

/// The sandboxes of a scope's threads.
#[pyclass(frozen, module = "sandpod._native")]
pub(crate) struct Threads(Resident<Arc<sandpod::agents::Threads>>);

impl Threads {
    pub(crate) fn new(provider: Arc<LazyProvider>, scope: String, life: ThreadLife) -> Self {
        Self(Resident::new(Arc::new(sandpod::agents::Threads::new(provider, scope, life))))
    }

    fn get(&self) -> PyResult<&Arc<sandpod::agents::Threads>> {
        self.0.get().ok_or_else(|| forked("registry of threads", "Make another one here."))
    }

    /// Creates a call that runs `work` with the registry.
    fn call<T, F>(&self, work: impl FnOnce(Arc<sandpod::agents::Threads>) -> F) -> PyResult<Call>
    where
        F: Future<Output = sandpod::Result<T>> + Send + 'static,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let work = work(self.get()?.clone());
        Ok(Call::new(async { work.await.map_err(ProviderError::from) }))
    }
}

#[pymethods]
impl Threads {
    /// Returns the id of a thread's sandbox, whether it exists or not.
    fn id_of(&self, thread: &str) -> PyResult<String> {
        Ok(self.get()?.id_of(thread).to_string())
    }

    /// Returns the sandbox that this process has found for the thread, or None.
    fn known(&self, thread: &str) -> PyResult<Option<Sandbox>> {
        Ok(self.get()?.known(thread).map(Sandbox::from))
    }

    /// Returns the id and the place to write into the thread's conversation, or None if the thread has no sandbox.
    fn state(&self, thread: &str) -> PyResult<Option<(Option<String>, Option<String>)>> {
        Ok(self.get()?.state(thread).map(|state| (state.id, state.place)))
    }

    /// Records the sandbox and the place that a conversation's state names.
    fn expect(&self, thread: &str, sandbox_id: Option<String>, place: Option<String>) -> PyResult<()> {
        self.get()?.expect(thread, &ThreadState { id: sandbox_id, place });
        Ok(())
    }

    /// Finds or creates the thread's sandbox.
    fn get_or_create(&self, thread: String) -> PyResult<Call> {
        self.call(|threads| async move { Box::pin(threads.get(&thread)).await.map(Sandbox::from) })
    }

    /// Finds or creates the thread's sandbox; a sandbox that the conversation's state names is used while it exists.
    fn acquire(&self, thread: String, sandbox_id: Option<String>, place: Option<String>) -> PyResult<Call> {
        let state = ThreadState { id: sandbox_id, place };
        self.call(|threads| async move { Box::pin(threads.acquire(&thread, state)).await.map(Sandbox::from) })
    }

    /// Counts a sandbox among those that this process used.
    fn note_used(&self, sandbox_id: String) -> PyResult<()> {
        let threads = self.get()?;
        ids(vec![sandbox_id])?.into_iter().for_each(|id| threads.note_used(id));
        Ok(())
    }

    /// Removes the thread's entry if its sandbox is gone.
    fn check(&self, thread: String) -> PyResult<Call> {
        self.call(|threads| async move { threads.check(&thread).await.map(|()| NOTHING) })
    }

    /// Removes the entry of a thread whose sandbox is gone.
    fn lose(&self, thread: &str) -> PyResult<()> {
        self.get()?.lose(thread);
        Ok(())
    }

    /// Removes the entries of deleted sandboxes.
    fn forget(&self, deleted: Vec<String>) -> PyResult<()> {
        self.get()?.forget(&ids(deleted)?);
        Ok(())
    }

    /// Removes the thread's entry and returns the id of its sandbox, if any, which the caller deletes.
    fn take(&self, thread: &str) -> PyResult<Option<String>> {
        Ok(self.get()?.take(thread).map(|id| id.to_string()))
    }

    /// Closes the registry and returns the ids of the sandboxes that this process used.
    fn close(&self, why: &str) -> PyResult<Vec<String>> {
        Ok(self.get()?.close(why).iter().map(ToString::to_string).collect())
    }

    /// Deletes sandboxes. Sandboxes that are left raise an error.
    fn delete_all(&self, sandbox_ids: Vec<String>, within: f64) -> PyResult<Call> {
        let (ids, within) = (ids(sandbox_ids)?, seconds(within));
        self.call(move |threads| async move { threads.delete(ids, false, within).await.map(|()| NOTHING) })
    }

    /// Closes the registry, deletes the sandboxes that this process used, and closes the provider. With `whole_scope`,
    /// deletes all sandboxes of the scope.
    #[pyo3(signature = (why, within, *, whole_scope))]
    fn shut_down(&self, why: String, within: f64, whole_scope: bool) -> PyResult<Call> {
        self.call(move |threads| async move {
            threads.shut_down(why, whole_scope, seconds(within)).await.map(|()| NOTHING)
        })
    }
}
