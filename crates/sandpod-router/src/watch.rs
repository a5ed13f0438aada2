//! Keeps the [`Registry`] current by one watch of all Pods of sandboxes.

use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt as _;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::runtime::watcher::{self, Event};
use sandpod_kube::kube::runtime::{WatchStreamExt as _, watcher as watch};
use sandpod_kube::kube::{Api, Client};

use crate::registry::Registry;

/// On every Pod of a `Sandbox`.
const SANDBOX_PODS: &str = "agents.x-k8s.io/sandbox-name-hash";

/// Watches the Pods of one namespace, or of all, and never returns.
pub async fn follow(client: Client, namespace: Option<&str>, registry: Arc<Registry>) {
    let pods: Api<Pod> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let config = watcher::Config::default().labels(SANDBOX_PODS);
    let mut events = pin!(watch(pods, config).default_backoff());
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Err(error) => {
                tracing::warn!(%error, "the watch of sandbox Pods failed and is retried");
                registry.set_current(false);
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => listed.push(pod),
            Ok(Event::InitDone) => registry.replace(&std::mem::take(&mut listed)),
            Ok(Event::Apply(pod)) => {
                registry.set_current(true);
                registry.apply(&pod);
            }
            Ok(Event::Delete(pod)) => {
                registry.set_current(true);
                registry.delete(&pod);
            }
        }
    }
}
