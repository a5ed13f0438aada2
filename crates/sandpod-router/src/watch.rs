//! Keeps the [`Registry`] current by a watch of the Pods of sandboxes, and one of the `Sandbox` objects.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use sandpod_kube::agent_sandbox::Sandbox;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::{ApiResource, DynamicObject};
use sandpod_kube::kube::runtime::watcher::{self, Event};
use sandpod_kube::kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::observe::{PodState, SandboxState};
use crate::registry::Registry;

/// On every Pod of a `Sandbox`.
const SANDBOX_PODS: &str = "agents.x-k8s.io/sandbox-name-hash";
/// The pauses between attempts to list. They double, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A change that a watch reports.
enum Change<T> {
    /// A complete list.
    Listed(Vec<T>),
    Applied(T),
    Deleted(T),
    /// The watch failed. A complete list follows as soon as the API server answers again.
    Failed,
}

/// Watches the sandboxes of one namespace, or of all, and never returns.
pub async fn follow(client: Client, namespace: Option<&str>, registry: Arc<Registry>) {
    let resource = ApiResource::erase::<Sandbox>(&());
    let pods: Api<Pod>;
    let sandboxes: Api<DynamicObject>;
    if let Some(namespace) = namespace {
        pods = Api::namespaced(client.clone(), namespace);
        sandboxes = Api::namespaced_with(client, namespace, &resource);
    } else {
        pods = Api::all(client.clone());
        sandboxes = Api::all_with(client, &resource);
    }
    let labelled = watcher::Config::default().labels(SANDBOX_PODS);
    let pods = follow_one(pods, labelled, PodState::of, |change| match change {
        Change::Listed(pods) => registry.replace_pods(&pods),
        Change::Applied(pod) => registry.apply_pod(&pod),
        Change::Deleted(pod) => registry.delete_pod(&pod),
        Change::Failed => registry.set_pods_outdated(),
    });
    let sandboxes =
        follow_one(sandboxes, watcher::Config::default(), SandboxState::of, |change| match change {
            Change::Listed(sandboxes) => registry.replace_sandboxes(sandboxes),
            Change::Applied(sandbox) => registry.apply_sandbox(sandbox),
            Change::Deleted(sandbox) => registry.delete_sandbox(&sandbox),
            Change::Failed => registry.set_sandboxes_outdated(),
        });
    tokio::join!(pods, sandboxes);
}

/// Watches one kind of object. Each failure begins with a new list, because only a list shows that nothing was missed.
async fn follow_one<K, T>(
    api: Api<K>,
    config: watcher::Config,
    read: fn(&K) -> Option<T>,
    report: impl Fn(Change<T>),
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut pause = FIRST_PAUSE;
    loop {
        let mut events = pin!(watcher::watcher(api.clone(), config.clone()));
        let mut listed = Vec::new();
        let error = loop {
            match events.try_next().await {
                Err(error) => break Some(error.to_string()),
                Ok(None) => break None,
                Ok(Some(Event::Init)) => listed.clear(),
                Ok(Some(Event::InitApply(object))) => listed.extend(read(&object)),
                Ok(Some(Event::InitDone)) => {
                    report(Change::Listed(std::mem::take(&mut listed)));
                    pause = FIRST_PAUSE;
                }
                Ok(Some(Event::Apply(object))) => read(&object).map_or((), |it| report(Change::Applied(it))),
                Ok(Some(Event::Delete(object))) => read(&object).map_or((), |it| report(Change::Deleted(it))),
            }
        };
        report(Change::Failed);
        tracing::warn!(error, "a watch failed and starts again with a list");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
