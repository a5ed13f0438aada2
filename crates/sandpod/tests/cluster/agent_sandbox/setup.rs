//! A template with our guest, as the administrator of a namespace would write it.

use std::path::PathBuf;

use sandpod::{AgentSandboxConfig, Provider, SandboxRequest, install_guest};
use sandpod_kube::agent_sandbox::SandboxWarmPool;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::ListParams;
use sandpod_testbed::agent_sandbox::clear;
use sandpod_testbed::{Namespace, PATIENCE};

pub(crate) use sandpod_testbed::agent_sandbox::{SECRET, TEMPLATE, fill_pool, make_template, pod_spec};

/// A namespace with a template that has the guest in it.
pub(crate) async fn namespace() -> Namespace {
    let namespace = Namespace::create().await;
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await;
    let guest = guest.expect("the guest is installed");
    make_template(&namespace, TEMPLATE, pod_spec(&guest)).await;
    namespace
}

pub(crate) fn config(namespace: &Namespace) -> AgentSandboxConfig {
    AgentSandboxConfig {
        namespace: namespace.name.clone(),
        startup_timeout_seconds: PATIENCE.as_secs(),
        ..AgentSandboxConfig::of_template(TEMPLATE)
    }
}

/// A provider with the rights of the agent-sandbox role.
pub(crate) async fn provider(namespace: &Namespace, config: AgentSandboxConfig) -> Provider {
    let client = namespace.agent_sandbox().await;
    Provider::agent_sandbox_with_client(client, config).expect("the configuration is usable")
}

/// A file with the secret of the template's guests.
pub(crate) fn secret_file(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("secret");
    std::fs::write(&path, format!("{SECRET}\n")).expect("a file can be written");
    path
}

/// Removes the templates and pools of the test, and waits until their Pods are gone.
pub(crate) async fn finish(namespace: Namespace, provider: &Provider) {
    provider.cleanup(None).await.expect("a cleanup removes the unused pool");
    let pools = namespace.api::<SandboxWarmPool>().list(&ListParams::default()).await;
    for pool in pools.expect("pools are listed") {
        assert!(!pool.name_any().starts_with("sandpod-"), "the cleanup left our own pool");
    }
    clear(&namespace).await;
    namespace.finish().await;
}

pub(crate) fn named(id: &str) -> SandboxRequest {
    SandboxRequest::named(id)
}
