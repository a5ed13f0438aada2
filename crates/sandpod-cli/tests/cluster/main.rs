//! The command on a real cluster, with the RBAC objects that it prints. `testbed/harness` documents the requirements; `kubectl`
//! must be on the PATH.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod agent_sandbox;
mod chart;
mod connection_modes;
mod doctor;
mod doctor_agent_sandbox;
#[path = "../support/document.rs"]
mod document;
mod documents;
mod life;
mod manifests;
#[path = "../support/pty.rs"]
mod pty;
mod reaper;
mod released;
mod terminal;
#[path = "../support/transcript.rs"]
mod transcript;
mod transcripts;

use sandpod_testbed::Namespace;
use sandpod_testbed::kubeconfig::Kubeconfig;
use serde_json::json;

use crate::transcript::Stage;

/// A namespace, and a stage that creates sandboxes in it.
struct Cluster {
    namespace: Namespace,
    stage: Stage,
    _kubeconfig: Kubeconfig,
}

impl Cluster {
    /// Raw mode, with its RBAC objects.
    async fn new() -> Self {
        let namespace = Namespace::create().await;
        namespace.raw().await; // creates its RBAC objects
        Self::of(namespace, "sandpod-raw", "raw").await
    }

    /// Agent-sandbox mode, with its RBAC objects.
    async fn agent_sandbox() -> Self {
        let namespace = Namespace::create().await;
        namespace.agent_sandbox().await; // creates its RBAC objects
        Self::of(namespace, "sandpod-agent-sandbox", "agent-sandbox").await
    }

    async fn of(namespace: Namespace, account: &str, mode: &str) -> Self {
        let token = namespace.token(account, None).await;
        let kubeconfig = Kubeconfig::of(json!({ "token": token }));
        let stage = stage(&namespace.name, &kubeconfig).with("SANDPOD_MODE", mode);
        Self { namespace, stage, _kubeconfig: kubeconfig }
    }

    async fn finish(self) {
        self.namespace.finish().await;
    }
}

/// A stage where `sandpod` uses `kubeconfig` and `kubectl` is an administrator.
fn stage(namespace: &str, kubeconfig: &Kubeconfig) -> Stage {
    let cache = std::env::var("XDG_CACHE_HOME")
        .unwrap_or_else(|_| format!("{}/.cache", std::env::home_dir().unwrap().display()));
    let admin = std::env::var("SANDPOD_TEST_KUBECONFIG").expect("SANDPOD_TEST_KUBECONFIG names a cluster");
    Stage::new()
        .with("SANDPOD_MODE", "raw")
        .with("SANDPOD_NAMESPACE", namespace)
        .with("SANDPOD_KUBECONFIG", kubeconfig.save().to_str().unwrap())
        .with("SANDPOD_IMAGE", "sandpod.test/python:1")
        .with("XDG_CACHE_HOME", cache)
        .with("KUBECONFIG", admin)
        .with("NS", namespace)
        .naming(namespace, "agents")
}
