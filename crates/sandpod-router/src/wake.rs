//! Wakes suspended sandboxes: the first request resumes the `Sandbox`, and all requests for it wait for the Pod.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandpod_kube::agent_sandbox::Sandbox;
use sandpod_kube::kube::api::{Patch, PatchParams};
use sandpod_kube::kube::{Api, Client, Error};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::registry::{Lookup, Registry};
use crate::route::{Route, route};
use crate::target::{SandboxRef, Target};

/// The longest time of the call that resumes a sandbox.
const PATCH_LIMIT: Duration = Duration::from_secs(10);
/// The pauses between attempts to resume a sandbox. They double, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Resumes sandboxes.
#[derive(Clone)]
pub struct Wake {
    client: Client,
    limit: Duration,
    /// The sandboxes that a task resumes. A token is cancelled when the API server refuses.
    waking: Arc<Mutex<HashMap<SandboxRef, CancellationToken>>>,
}

impl Wake {
    /// Holds a request for at most `limit`.
    #[must_use]
    pub fn new(client: Client, limit: Duration) -> Self {
        Self { client, limit, waking: Arc::default() }
    }

    /// Resumes the sandbox and waits for its Pod. While one request resumes it, others only wait.
    ///
    /// Past the limit the request is refused, and the sandbox goes on starting for the next one. If the API server refuses to
    /// resume it, requests are refused at once.
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
            let refused = self.resume_once(sandbox, registry);
            tokio::select! {
                // A task that gave up is followed by another.
                _ = timeout_at(end.min(Instant::now() + LONGEST_PAUSE), changes.changed()) => {}
                () = refused.cancelled() => {
                    metrics.note_wake(started.elapsed(), false);
                    return Err(Refusal::suspended(&target.name.to_string()));
                }
            }
            if Instant::now() >= end {
                metrics.note_wake(started.elapsed(), false);
                return Err(Refusal::starting(&target.name.to_string()));
            }
        }
    }

    /// Starts a task that resumes the sandbox if it is suspended, unless there is one. The token that it returns is
    /// cancelled when the API server refuses.
    fn resume_once(&self, sandbox: &SandboxRef, registry: &Arc<Registry>) -> CancellationToken {
        if !matches!(registry.find(sandbox), Lookup::Suspended) {
            return CancellationToken::new();
        }
        let refused = match self.lock().entry(sandbox.clone()) {
            Entry::Occupied(entry) => return entry.get().clone(),
            Entry::Vacant(entry) => entry.insert(CancellationToken::new()).clone(),
        };
        let (wake, sandbox, registry) = (self.clone(), sandbox.clone(), registry.clone());
        let result = refused.clone();
        tokio::spawn(async move {
            if wake.resume_with_retries(&sandbox, &registry).await.is_err() {
                refused.cancel();
            }
            wake.lock().remove(&sandbox);
        });
        result
    }

    /// Resumes the sandbox, and waits until the watch shows it. Gives up at the limit, and fails if the API server refuses.
    async fn resume_with_retries(&self, sandbox: &SandboxRef, registry: &Registry) -> Result<(), Error> {
        let end = Instant::now() + self.limit;
        let mut pause = FIRST_PAUSE;
        while matches!(registry.find(sandbox), Lookup::Suspended) {
            let changes = registry.changes();
            match timeout(PATCH_LIMIT, self.resume(sandbox)).await {
                Ok(Ok(())) => {
                    // The next request may not resume it again before the watch shows that it runs.
                    self.until_resumed(sandbox, registry, changes).await;
                    break;
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, %sandbox, "a sandbox was not resumed");
                    if matches!(&error, Error::Api(status) if matches!(status.code, 403 | 404)) {
                        return Err(error);
                    }
                }
                Err(_) => {
                    tracing::warn!(%sandbox, "the API server did not answer in time to resume a sandbox");
                }
            }
            if Instant::now() + pause >= end {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
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

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxRef, CancellationToken>> {
        self.waking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
