//! The command on a real cluster, with the rights that it prints itself. `testbed/harness` says what it needs; `kubectl` is
//! on the path.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod agent_sandbox;
mod doctor;
mod doctor_agent_sandbox;
mod life;
mod manifests;
#[path = "../support/pty.rs"]
mod pty;
mod reaper;
mod terminal;
#[path = "../support/transcript.rs"]
mod transcript;
mod transcripts;
mod ways;

use sandpod_testbed::Namespace;
use sandpod_testbed::kubeconfig::Kubeconfig;
use serde_json::json;

use crate::transcript::Stage;

/// A namespace, and a stage whose sandboxes are in it.
struct Cluster {
    namespace: Namespace,
    stage: Stage,
    _kubeconfig: Kubeconfig,
}

impl Cluster {
    /// In raw mode, with the rights for it.
    async fn new() -> Self {
        let namespace = Namespace::create().await;
        namespace.raw().await; // its rights are there
        Self::of(namespace, "sandpod-raw", "raw").await
    }

    /// In agent-sandbox mode, with the rights for it.
    async fn agent_sandbox() -> Self {
        let namespace = Namespace::create().await;
        namespace.agent_sandbox().await; // its rights are there
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

/// A stage whose `sandpod` speaks as `kubeconfig`, and whose `kubectl` may do everything.
fn stage(namespace: &str, kubeconfig: &Kubeconfig) -> Stage {
    let cache = std::env::var("XDG_CACHE_HOME")
        .unwrap_or_else(|_| format!("{}/.cache", std::env::home_dir().unwrap().display()));
    let admin = std::env::var("SANDPOD_TEST_KUBECONFIG").expect("there is a cluster to test on");
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
