//! Routers behind a proxy that authenticates callers by a certificate, a token or a header.

use sandpod::{AgentSandboxConfig, ErrorKind};
use sandpod_testbed::authority::Authority;
use sandpod_testbed::front_door::FrontDoor;
use sandpod_testbed::proxy::FaultProxy;
use tempfile::TempDir;

use super::gateways::router_address;
use super::setup::{finish, named, namespace, provider};
use super::ways::{only, use_fully};
use crate::setup::{execute, soon};

#[tokio::test(flavor = "multi_thread")]
async fn configured_client_certificate_is_presented() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let authority = Authority::create();
    let router = router_address(&namespace).await;
    let door = FrontDoor::start(router, Some(authority.acceptor(true))).await.unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a file can be written");
        Some(path)
    };
    let (certificate, key) = authority.client();
    let mut config = AgentSandboxConfig {
        api_url: Some(format!("https://{}", door.address())),
        ca_cert: file("ca.pem", &authority.pem()),
        ..only(&namespace, "direct", &dir)
    };

    let without = provider(&namespace, config.clone()).await;
    let error = soon("failing", without.get_or_create(named("a"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(door.heads().is_empty(), "a client without a certificate was admitted");
    config.client_cert = file("client.pem", &certificate);
    config.client_key = file("client.key", &key);
    let provider = use_fully(&namespace, config).await;

    assert!(!door.heads().is_empty());
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn router_gets_its_token_also_after_the_token_file_changed() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let door = FrontDoor::start(router_address(&namespace).await, None).await.unwrap();
    let network = FaultProxy::start(door.address()).await.unwrap();
    let file = dir.path().join("router-token");
    std::fs::write(&file, "first\n").unwrap();
    door.demand("first");
    let mut config = AgentSandboxConfig {
        api_url: Some(format!("http://{}", network.address())),
        router_token_file: Some(file.clone()),
        ..only(&namespace, "direct", &dir)
    };
    let one = provider(&namespace, config.clone()).await;
    let handle =
        soon("claiming", one.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&handle, "echo first").await, "first\n");

    door.demand("second");
    let late = provider(&namespace, config.clone()).await;
    let error = soon("failing", late.reconnect("a")).await.expect_err("the token is an old one");
    assert!(error.to_string().contains("401"), "{error}");
    std::fs::write(&file, "second\n").unwrap();
    network.reset_all();
    assert_eq!(execute(&handle, "echo second").await, "second\n");
    (config.router_token_file, config.router_token) = (None, Some("second".to_owned()));
    let other = provider(&namespace, config).await;
    let again = soon("finding", other.reconnect("a")).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&again, "echo again").await, "again\n");

    one.delete("a", true).await.unwrap();
    finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_has_the_configured_headers_and_those_of_the_router() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let door = FrontDoor::start(router_address(&namespace).await, None).await.unwrap();
    let config = AgentSandboxConfig {
        api_url: Some(format!("http://{}", door.address())),
        extra_headers: [("X-Team".to_owned(), "search".to_owned())].into(),
        ..only(&namespace, "direct", &dir)
    };
    let provider = provider(&namespace, config.clone()).await;
    let handle =
        soon("claiming", provider.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));

    let head = door.heads().remove(0);
    let expected = [
        "get /sandpod/v1/stream http/1.1".to_owned(),
        "x-team: search".to_owned(),
        "x-sandbox-id: a".to_owned(),
        format!("x-sandbox-namespace: {}", namespace.name),
        "x-sandbox-port: 8888".to_owned(),
    ];
    for line in expected {
        assert!(head.lines().any(|it| it == line), "no {line:?} in {head}");
    }
    assert!(head.contains("\r\nx-sandbox-pod-ip: "), "{head}");
    assert!(!head.contains("authorization"), "what opens the guest travels inside the stream: {head}");
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

/// A router with scoped tokens rejects them in requests that name an address.
#[tokio::test(flavor = "multi_thread")]
async fn request_with_a_sandbox_token_has_no_address_header() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let door = FrontDoor::start(router_address(&namespace).await, None).await.unwrap();
    let config = AgentSandboxConfig {
        api_url: Some(format!("http://{}", door.address())),
        router_token: Some("v1.payload.signature".to_owned()),
        ..only(&namespace, "direct", &dir)
    };
    let provider = use_fully(&namespace, config).await;
    for head in door.heads() {
        assert!(head.contains("authorization: bearer v1.payload.signature"), "{head}");
        assert!(!head.contains("x-sandbox-pod-ip"), "{head}");
    }
    finish(namespace, &provider).await;
}
