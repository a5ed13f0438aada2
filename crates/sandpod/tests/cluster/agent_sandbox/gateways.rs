//! Gateways with various listeners and statuses, which the test sets as their controller would.

use std::net::SocketAddr;

use sandpod::{AgentSandboxConfig, ErrorKind, GuestDelivery};
use sandpod_kube::gateway::Gateway;
use sandpod_kube::kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use sandpod_testbed::authority::Authority;
use sandpod_testbed::front_door::FrontDoor;
use sandpod_testbed::stock_runtime::StockRuntime;
use sandpod_testbed::{Namespace, from_json};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::setup::{finish, named, namespace, provider};
use super::stock;
use super::ways::{only, router, use_fully};
use crate::setup::soon;

/// The router's address.
pub(super) async fn router_address(namespace: &Namespace) -> SocketAddr {
    format!("{}:8080", router(namespace).await).parse().expect("a Pod has an address")
}

/// Creates a Gateway with this listener, and a configuration that uses only it.
async fn make_gateway(namespace: &Namespace, listener: Value, dir: &TempDir) -> AgentSandboxConfig {
    let gateway: Gateway = from_json(json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": { "name": "gateway" },
        "spec": { "gatewayClassName": "none", "listeners": [listener] },
    }));
    let made = namespace.api::<Gateway>().create(&PostParams::default(), &gateway).await;
    made.expect("the admin makes a Gateway");
    AgentSandboxConfig {
        gateway_name: Some("gateway".to_owned()),
        gateway_namespace: namespace.name.clone(),
        ..only(namespace, "gateway", dir)
    }
}

/// Sets the Gateway's status to programmed.
async fn place(namespace: &Namespace, kind: &str, value: &str) {
    let status = json!({ "status": { "addresses": [{ "type": kind, "value": value }] } });
    let gateways = namespace.api::<Gateway>();
    gateways
        .patch_status("gateway", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .expect("it has a status");
}

async fn delete_gateway(namespace: &Namespace) {
    namespace
        .api::<Gateway>()
        .delete("gateway", &DeleteParams::default())
        .await
        .expect("the admin deletes it");
}

#[tokio::test(flavor = "multi_thread")]
async fn client_connects_to_an_http_gateway_by_address_and_by_name() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let door = FrontDoor::start(router_address(&namespace).await, None).await.unwrap();
    let listener = json!({ "name": "web", "protocol": "HTTP", "port": door.address().port() });
    let config = make_gateway(&namespace, listener, &dir).await;

    place(&namespace, "IPAddress", "127.0.0.1").await;
    let provider = use_fully(&namespace, config.clone()).await;
    let by_address = door.heads().len();
    assert!(by_address > 0, "no request came through the Gateway");
    place(&namespace, "Hostname", "localhost").await;
    use_fully(&namespace, config).await;

    let named = format!("host: localhost:{}", door.address().port());
    assert!(door.heads()[by_address..].iter().all(|head| head.contains(&named)), "{:?}", door.heads());
    delete_gateway(&namespace).await;
    finish(namespace, &provider).await;
}

/// A Pod without our guest: its runtime needs only HTTP, which any Gateway forwards.
#[tokio::test(flavor = "multi_thread")]
async fn first_runtime_is_used_through_a_gateway() {
    let (namespace, dir) = (stock::legacy().await, TempDir::new().unwrap());
    let door = FrontDoor::start(router_address(&namespace).await, None).await.unwrap();
    let listener = json!({ "name": "web", "protocol": "HTTP", "port": door.address().port() });
    let mut config = make_gateway(&namespace, listener, &dir).await;
    config.guest_token_file = None;
    place(&namespace, "IPAddress", "127.0.0.1").await;

    let provider = stock::speak(&namespace, config, GuestDelivery::Legacy, StockRuntime::Legacy.dir()).await;

    let heads = door.heads();
    assert!(heads.iter().any(|head| head.starts_with("post /execute ")), "{heads:?}");
    delete_gateway(&namespace).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_https_gateway_with_a_trusted_certificate_is_reached_by_address_and_name() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let authority = Authority::create();
    let router = router_address(&namespace).await;
    let door = FrontDoor::start(router, Some(authority.acceptor(false))).await.unwrap();
    let listener = json!({
        "name": "web",
        "protocol": "HTTPS",
        "port": door.address().port(),
        "tls": { "mode": "Terminate", "certificateRefs": [{ "name": "certificate" }] },
    });
    let mut config = make_gateway(&namespace, listener, &dir).await;
    place(&namespace, "IPAddress", "127.0.0.1").await;

    let untrusting = provider(&namespace, config.clone()).await;
    let error = soon("failing", untrusting.get_or_create(named("a"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(door.heads().is_empty(), "a request went to who was not trusted");
    config.ca_cert = Some(dir.path().join("ca.pem"));
    std::fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
    use_fully(&namespace, config.clone()).await;
    place(&namespace, "Hostname", "localhost").await;
    let provider = use_fully(&namespace, config).await;

    delete_gateway(&namespace).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_without_an_address_ends_the_wait_with_a_hint() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let listener = json!({ "name": "web", "protocol": "HTTP", "port": 80 });
    let mut config = make_gateway(&namespace, listener, &dir).await;
    // Enough time for the Pod to start, and short enough for the test.
    config.startup_timeout_seconds = 40;
    let provider = provider(&namespace, config).await;

    let error = soon("failing", provider.get_or_create(named("a"))).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let said = error.to_string();
    assert!(said.starts_with("Cannot reach the sandbox-router (connection_mode='gateway')."), "{said}");
    assert!(said.contains("Ensure the Gateway has an address"), "{said}");
    delete_gateway(&namespace).await;
    finish(namespace, &provider).await;
}
