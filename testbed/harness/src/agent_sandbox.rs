//! Objects of agent-sandbox as the administrator of a namespace would write them: a template with the guest, and warm pools.

use sandpod_kube::agent_sandbox::{Sandbox, SandboxTemplate, SandboxWarmPool};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::{Namespace, Object, from_json, wait_for, wait_until_none};

/// The template of the pools of [`make_pool`].
pub const TEMPLATE: &str = "template";
/// The secret of the template, whose guests start with its hash.
pub const SECRET: &str = "a pool's secret";
/// The hash of the secret: `printf %s "$SECRET" | sha256sum`.
pub const SECRET_SHA256: &str = "23aef05ff02e0b9caef436989673ce98516f9ebf3cf473883f08dade38897b65";

/// The Pod of a template with the guest from these `ConfigMaps`. Clients connect by exec, or through a router with the secret.
#[must_use]
pub fn pod_spec(guest: &[String]) -> Value {
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
            "image": "sandpod.test/busybox:1",
            "command": ["/sandpod/boot", "serve", "--websocket"],
            "env": [
                { "name": "SANDPOD_STATE_DIR", "value": "/run/sandpod" },
                { "name": "SANDPOD_TOKEN_SHA256", "value": SECRET_SHA256 },
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

/// Creates a template with this Pod.
///
/// # Panics
///
/// When the cluster refuses it.
pub async fn make_template(namespace: &Namespace, name: &str, spec: Value) {
    let template: SandboxTemplate = from_json(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": { "name": name },
        "spec": { "podTemplate": { "spec": spec }, "networkPolicyManagement": "Unmanaged" },
    }));
    let created = namespace.api::<SandboxTemplate>().create(&PostParams::default(), &template).await;
    created.expect("the admin can create a template");
}

/// Creates a pool of the template.
///
/// # Panics
///
/// When the cluster refuses it.
pub async fn make_pool(namespace: &Namespace, name: &str, replicas: i32) {
    let pool: SandboxWarmPool = from_json(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxWarmPool",
        "metadata": { "name": name },
        "spec": { "replicas": replicas, "sandboxTemplateRef": { "name": TEMPLATE } },
    }));
    let created = namespace.api::<SandboxWarmPool>().create(&PostParams::default(), &pool).await;
    created.expect("the admin can create a pool");
}

/// Creates a pool of the template and waits until it is full.
///
/// # Panics
///
/// When that takes longer than [`PATIENCE`](crate::PATIENCE).
pub async fn fill_pool(namespace: &Namespace, name: &str, replicas: i32) {
    make_pool(namespace, name, replicas).await;
    wait_for(&namespace.api::<SandboxWarmPool>(), name, "fill", |pool| {
        pool.and_then(|pool| pool.status.as_ref()).is_some_and(|status| status.ready_replicas == replicas)
    })
    .await;
}

/// Deletes the pools and templates, and waits until their sandboxes and Pods are gone.
///
/// # Panics
///
/// When an object is still there after [`PATIENCE`](crate::PATIENCE).
pub async fn clear(namespace: &Namespace) {
    delete_all::<SandboxWarmPool>(namespace).await;
    wait_until_none(&namespace.api::<Sandbox>()).await;
    wait_until_none(&namespace.api::<Pod>()).await;
    delete_all::<SandboxTemplate>(namespace).await;
}

async fn delete_all<K: Object>(namespace: &Namespace) {
    let api = namespace.api::<K>();
    for object in api.list(&ListParams::default()).await.expect("the admin can list them") {
        api.delete(&object.name_any(), &DeleteParams::default()).await.expect("the admin can delete one");
    }
    wait_until_none(&api).await;
}
