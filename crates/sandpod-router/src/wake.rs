//! Wakes suspended sandboxes: the first request resumes the `Sandbox`, and all requests for it wait for the Pod.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandpod_kube::agent_sandbox::Sandbox;
use sandpod_kube::kube::api::{Patch, PatchParams};
use sandpod_kube::kube::{Api, Client, Error};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::registry::{Lookup, Registry};
use crate::route::{Route, route};
use crate::target::{SandboxRef, Target};

/// The longest time of the call that resumes a sandbox.
const PATCH_LIMIT: Duration = Duration::from_secs(10);

/// Resumes sandboxes.
#[derive(Clone)]
pub struct Wake {
    client: Client,
    limit: Duration,
    waking: Arc<Mutex<HashSet<SandboxRef>>>,
}

impl Wake {
    /// Holds a request for at most `limit`.
    #[must_use]
    pub fn new(client: Client, limit: Duration) -> Self {
        Self { client, limit, waking: Arc::default() }
    }

    /// Resumes the sandbox and waits for its Pod. While one request resumes it, others only wait.
    ///
    /// Past the limit the request is refused, and the sandbox goes on starting for the next one.
    pub(crate) async fn wake(
        &self,
        target: &Target,
        sandbox: &SandboxRef,
        registry: &Arc<Registry>,
        metrics: &Metrics,
    ) -> Result<Route, Refusal> {
        let started = Instant::now();
        let mut changes = registry.changes();
        let end = started + self.limit;
        loop {
            changes.borrow_and_update();
            match route(target, Some(sandbox), registry) {
                Err(refusal) if refusal.reason.is_temporary() => {}
                found => {
                    metrics.note_wake(started.elapsed(), found.is_ok());
                    return found;
                }
            }
            self.resume_once(sandbox, registry);
            if timeout_at(end, changes.changed()).await.is_err() {
                metrics.note_wake(started.elapsed(), false);
                return Err(Refusal::starting(&target.name.to_string()));
            }
        }
    }

    /// Starts a task that resumes the sandbox, unless there is one.
    fn resume_once(&self, sandbox: &SandboxRef, registry: &Arc<Registry>) {
        if !matches!(registry.find(sandbox), Lookup::Suspended) || !self.lock().insert(sandbox.clone()) {
            return;
        }
        let (wake, sandbox, registry) = (self.clone(), sandbox.clone(), registry.clone());
        tokio::spawn(async move {
            let changes = registry.changes();
            match timeout(PATCH_LIMIT, wake.resume(&sandbox)).await {
                // The next request may not resume it again before the watch shows that it runs.
                Ok(Ok(())) => wake.until_resumed(&sandbox, &registry, changes).await,
                Ok(Err(error)) => tracing::warn!(%error, %sandbox, "a sandbox was not resumed"),
                Err(_) => {
                    tracing::warn!(%sandbox, "the API server did not answer in time to resume a sandbox");
                }
            }
            wake.lock().remove(&sandbox);
        });
    }

    async fn resume(&self, sandbox: &SandboxRef) -> Result<(), Error> {
        let sandboxes: Api<Sandbox> = Api::namespaced(self.client.clone(), &sandbox.namespace);
        let running = Patch::Merge(json!({ "spec": { "operatingMode": "Running" } }));
        sandboxes.patch_metadata(&sandbox.name, &PatchParams::default(), &running).await?;
        tracing::info!(%sandbox, "resumed for a request");
        Ok(())
    }

    async fn until_resumed(
        &self,
        sandbox: &SandboxRef,
        registry: &Registry,
        mut changes: watch::Receiver<()>,
    ) {
        let shown = async {
            while matches!(registry.find(sandbox), Lookup::Suspended) && changes.changed().await.is_ok() {}
        };
        let _ = timeout(self.limit, shown).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<SandboxRef>> {
        self.waking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
