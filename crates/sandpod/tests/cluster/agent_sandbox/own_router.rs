//! A router outside of the default namespaces: the test's own, which it may restart.

use std::time::Duration;

use sandpod::{AgentSandboxConfig, ExecuteOptions, Provider};
use sandpod_kube::k8s_openapi::api::apps::v1::Deployment;
use sandpod_kube::k8s_openapi::api::core::v1::{Pod, Service};
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{DeleteParams, ListParams, PostParams};
use sandpod_testbed::{Namespace, from_json, wait_for, wait_until_none};
use serde_json::json;
use tempfile::TempDir;

use super::setup::{finish, named, namespace};
use super::ways::only;
use crate::setup::{execute, soon};

const ROUTER: &str = "my-router";

/// Starts a router in the test's namespace, and returns a configuration that uses only it.
async fn start_router(namespace: &Namespace, dir: &TempDir) -> AgentSandboxConfig {
    let labels = json!({ "app": ROUTER });
    let service: Service = from_json(json!({
        "metadata": { "name": ROUTER },
        "spec": { "selector": labels, "ports": [{ "port": 80, "targetPort": "http" }] },
    }));
    let deployment: Deployment = from_json(json!({
        "metadata": { "name": ROUTER },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 1,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "containers": [{
                        "name": "router",
                        "image": "sandpod.test/sandbox-router:1",
                        // It has no right to list Pods, and uses the address in the request.
                        "command": ["/sandbox-router", "--cache-enabled=false"],
                        "ports": [{ "name": "http", "containerPort": 8080 }],
                        "readinessProbe": { "httpGet": { "path": "/readyz", "port": 8081 }, "periodSeconds": 1 },
                        "securityContext": {
                            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                        },
                    }],
                },
            },
        },
    }));
    namespace.api().create(&PostParams::default(), &service).await.expect("the admin makes a Service");
    namespace.api().create(&PostParams::default(), &deployment).await.expect("the admin makes a Deployment");
    wait_until_ready(namespace).await;
    AgentSandboxConfig {
        router_namespace: Some(namespace.name.clone()),
        router_service: ROUTER.to_owned(),
        ..only(namespace, "tunnel", dir)
    }
}

async fn wait_until_ready(namespace: &Namespace) {
    wait_for::<Deployment>(&namespace.api(), ROUTER, "be available", |deployment| {
        let status = deployment.and_then(|deployment| deployment.status.as_ref());
        status.is_some_and(|status| status.available_replicas == Some(1))
    })
    .await;
}

async fn stop_router(namespace: &Namespace) {
    let how = DeleteParams::background();
    namespace.api::<Deployment>().delete(ROUTER, &how).await.expect("the admin deletes the Deployment");
    namespace.api::<Service>().delete(ROUTER, &how).await.expect("the admin deletes the Service");
    wait_until_none(&namespace.api::<Pod>()).await;
}

/// Deletes the router's Pod, and returns when the next one is ready.
async fn restart(namespace: &Namespace) {
    let pods = namespace.api::<Pod>();
    let found =
        pods.list(&ListParams::default().labels(&format!("app={ROUTER}"))).await.expect("it is listed");
    let pod = found.items.first().expect("the router runs").name_any();
    pods.delete(&pod, &DeleteParams::default().grace_period(0)).await.expect("the admin deletes it");
    wait_for(&pods, &pod, "be gone", |pod| pod.is_none()).await;
    wait_until_ready(namespace).await;
}

fn provider(namespace: &Namespace, config: AgentSandboxConfig) -> Provider {
    // The test is not about access to the router.
    Provider::agent_sandbox_with_client(namespace.admin.clone(), config).expect("the configuration is usable")
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_router_is_used() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let config = start_router(&namespace, &dir).await;
    let other = provider(&namespace, config.clone());
    let handle =
        soon("claiming", other.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    assert_eq!(other.info("a").await.unwrap().connection.as_deref(), Some("tunnel"));

    let nowhere = AgentSandboxConfig { router_namespace: Some("default".to_owned()), ..config };
    let error =
        soon("failing", provider(&namespace, nowhere).reconnect("a")).await.expect_err("none is there");
    let said = error.to_string();
    assert!(said.contains("Service 'my-router' not found in namespace 'default'."), "{said}");

    other.delete("a", true).await.unwrap();
    stop_router(&namespace).await;
    finish(namespace, &other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_run_during_a_restart_of_the_router_succeed() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let provider = provider(&namespace, start_router(&namespace, &dir).await);
    let handle =
        soon("claiming", provider.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));
    let long = {
        let sandbox = handle.sandbox.clone();
        // The test lets it end after the restart.
        let line =
            "echo begun >> begun; until test -e restarted; do sleep 0.1; done; echo ended; wc -l < begun";
        let options = ExecuteOptions { timeout: Some(Duration::from_secs(100)), ..ExecuteOptions::default() };
        tokio::spawn(async move { sandbox.execute(line, options).await })
    };
    soon("beginning", async { while execute(&handle, "cat begun").await != "begun\n" {} }).await;

    restart(&namespace).await;

    assert_eq!(execute(&handle, "touch restarted; echo through").await, "through\n");
    let ended = soon("ending", long).await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((&ended.output[..], ended.exit_code), (&b"ended\n1\n"[..], Some(0)), "{ended:?}");
    provider.delete("a", true).await.unwrap();
    stop_router(&namespace).await;
    finish(namespace, &provider).await;
}
