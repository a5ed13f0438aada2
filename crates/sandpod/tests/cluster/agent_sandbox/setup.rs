//! A template with our guest in it, as whoever runs a namespace would write it.

use std::path::PathBuf;

use data_encoding::HEXLOWER;
use sandpod::{AgentSandboxConfig, Provider, SandboxRequest, install_guest};
use sandpod_kube::agent_sandbox::{Sandbox, SandboxTemplate, SandboxWarmPool};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::{DeleteParams, ListParams, PostParams};
use sandpod_kube::kube::{Api, ResourceExt};
use sandpod_testbed::{Namespace, PATIENCE, from_json, wait_for, wait_until_none};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::setup::BUSYBOX;

pub(crate) const TEMPLATE: &str = "template";
/// What guests of the template start with the hash of.
pub(crate) const SECRET: &str = "a pool's secret";

/// A namespace with a template that has the guest in it.
pub(crate) async fn namespace() -> Namespace {
    let namespace = Namespace::create().await;
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await;
    let guest = guest.expect("the guest is installed");
    make_template(&namespace, TEMPLATE, pod_spec(&guest)).await;
    namespace
}

pub(crate) async fn make_template(namespace: &Namespace, name: &str, spec: Value) {
    let template: SandboxTemplate = from_json(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": { "name": name },
        "spec": { "podTemplate": { "spec": spec }, "networkPolicyManagement": "Unmanaged" },
    }));
    let made = namespace.api::<SandboxTemplate>().create(&PostParams::default(), &template).await;
    made.expect("the admin makes a template");
}

/// The Pod of a template with the guest in these `ConfigMaps`.
pub(crate) fn pod_spec(guest: &[String]) -> Value {
    let maps: Vec<_> = guest.iter().map(|name| json!({ "configMap": { "name": name } })).collect();
    json!({
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000, "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [{
            "name": "sandbox",
            "image": BUSYBOX,
            "command": ["/sandpod/boot", "serve", "--stock-apis"],
            "env": [
                { "name": "SANDPOD_STATE_DIR", "value": "/run/sandpod" },
                { "name": "SANDPOD_TOKEN_SHA256", "value": HEXLOWER.encode(&Sha256::digest(SECRET)) },
            ],
            "resources": { "requests": { "cpu": "1m", "memory": "16Mi" }, "limits": { "memory": "256Mi" } },
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            "volumeMounts": [
                { "name": "guest", "mountPath": "/sandpod", "readOnly": true },
                { "name": "state", "mountPath": "/run/sandpod" },
                { "name": "workspace", "mountPath": "/workspace" },
                { "name": "home", "mountPath": "/home/sandbox" },
            ],
        }],
        "volumes": [
            { "name": "guest", "projected": { "defaultMode": 0o555, "sources": maps } },
            { "name": "state", "emptyDir": {} },
            { "name": "workspace", "emptyDir": {} },
            { "name": "home", "emptyDir": {} },
        ],
    })
}

/// Makes a pool of the template and waits until it is full.
pub(crate) async fn fill_pool(namespace: &Namespace, name: &str, replicas: i32) {
    let pool: SandboxWarmPool = from_json(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxWarmPool",
        "metadata": { "name": name },
        "spec": { "replicas": replicas, "sandboxTemplateRef": { "name": TEMPLATE } },
    }));
    let pools = namespace.api::<SandboxWarmPool>();
    pools.create(&PostParams::default(), &pool).await.expect("the admin makes a pool");
    wait_for(&pools, name, "fill", |pool| {
        pool.and_then(|pool| pool.status.as_ref()).is_some_and(|status| status.ready_replicas == replicas)
    })
    .await;
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

/// Removes what the test set up, and sees all that was made of it go.
pub(crate) async fn finish(namespace: Namespace, provider: &Provider) {
    provider.cleanup(None).await.expect("a cleanup removes the pool that nobody uses");
    let pools = namespace.api::<SandboxWarmPool>();
    for pool in pools.list(&ListParams::default()).await.expect("pools are listed") {
        assert!(!pool.name_any().starts_with("sandpod-"), "the cleanup left our own pool");
        pools.delete(&pool.name_any(), &DeleteParams::default()).await.expect("the admin deletes a pool");
    }
    wait_until_none(&pools).await;
    wait_until_none(&namespace.api::<Sandbox>()).await;
    wait_until_none(&namespace.api::<Pod>()).await;
    let templates: Api<SandboxTemplate> = namespace.api();
    for template in templates.list(&ListParams::default()).await.expect("templates are listed") {
        templates
            .delete(&template.name_any(), &DeleteParams::default())
            .await
            .expect("the admin deletes a template");
    }
    wait_until_none(&templates).await;
    namespace.finish().await;
}

pub(crate) fn named(id: &str) -> SandboxRequest {
    SandboxRequest::named(id)
}
