//! Clusters that serve only v1alpha1 of agent-sandbox: claims name a template and need no pool.

mod stand_in;

use std::time::Duration;

use sandpod::{AgentSandboxConfig, ErrorKind, ListOptions, Provider, SandboxRequest, Status, install_guest};
use sandpod_kube::agent_sandbox::SandboxWarmPool;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::ListParams;
use sandpod_testbed::{Namespace, wait_until_none};
use serde_json::{Value, json};

use self::stand_in::Alpha;
use super::setup::{TEMPLATE, config, named, pod_spec};
use crate::setup::{execute, soon};

/// A namespace with a template in v1alpha1.
async fn namespace() -> (Namespace, Alpha) {
    let namespace = Namespace::create().await;
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await;
    let alpha = Alpha::install(&namespace).await;
    let spec = pod_spec(&guest.expect("the guest is installed"));
    alpha.create("SandboxTemplate", TEMPLATE, json!({ "podTemplate": { "spec": spec } })).await;
    (namespace, alpha)
}

fn provider(alpha: &Alpha, config: AgentSandboxConfig) -> Provider {
    Provider::agent_sandbox_with_client(alpha.client(), config).expect("the configuration is usable")
}

async fn spec(alpha: &Alpha, claim: &str) -> Value {
    let claim = alpha.api("SandboxClaim").get(claim).await.expect("the claim is there");
    claim.data["spec"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn v1alpha1_claim_names_its_template_and_needs_no_pool() {
    let (namespace, alpha) = namespace().await;
    let one = provider(&alpha, config(&namespace));
    let request = SandboxRequest { ttl: Some(Duration::from_secs(600)), ..named("a") };

    let handle = soon("claiming", one.get_or_create(request)).await.unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(execute(&handle, "echo hello > file; cat file").await, "hello\n");
    let spec = spec(&alpha, "a").await;
    assert_eq!(spec["sandboxTemplateRef"]["name"], TEMPLATE);
    assert_eq!(spec["lifecycle"]["shutdownPolicy"], "Delete");
    assert!(spec.get("warmpool").is_none(), "{spec}");
    let pools = namespace.api::<SandboxWarmPool>().list(&ListParams::default()).await.unwrap();
    assert!(pools.items.is_empty(), "no pool is needed");

    let other = provider(&alpha, config(&namespace));
    let again = soon("finding", other.reconnect("a")).await.unwrap();
    assert_eq!(execute(&again, "cat file").await, "hello\n");
    assert_eq!(other.list(ListOptions::default()).await.unwrap().sandboxes.len(), 1);
    assert_eq!(other.info("a").await.unwrap().status, Status::Running);
    let error = other.suspend("a", true).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("v1alpha1"), "{error}");
    assert!(other.cleanup(None).await.unwrap().deleted.is_empty());

    soon("deleting", other.delete("a", true)).await.unwrap();
    assert_eq!(one.info("a").await.unwrap_err().kind(), ErrorKind::NotFound);
    wait_until_none(&namespace.api::<Pod>()).await;
    alpha.remove().await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_v1alpha1_a_named_pool_is_used_and_missing_objects_are_named() {
    let (namespace, alpha) = namespace().await;
    let pool = json!({ "replicas": 0, "sandboxTemplateRef": { "name": TEMPLATE } });
    alpha.create("SandboxWarmPool", "pool", pool).await;
    let mut of_pool = config(&namespace);
    (of_pool.template_name, of_pool.warm_pool_name) = (None, Some("pool".to_owned()));
    let provider = provider(&alpha, of_pool);

    let handle = soon("claiming", provider.get_or_create(named("a"))).await;
    let handle = handle.unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    let spec = spec(&alpha, "a").await;
    assert_eq!((&spec["sandboxTemplateRef"]["name"], &spec["warmpool"]), (&json!(TEMPLATE), &json!("pool")));
    let status = provider.pool_status().await.unwrap();
    assert_eq!((status.active, status.target), (1, 0));
    provider.delete("a", true).await.unwrap();

    let missing = AgentSandboxConfig { template_name: Some("t".to_owned()), ..config(&namespace) };
    let missing = self::provider(&alpha, missing);
    let error = missing.get_or_create(SandboxRequest::default()).await.unwrap_err();
    assert!(error.to_string().starts_with("SandboxTemplate 't' not found in namespace"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    alpha.remove().await;
    namespace.finish().await;
}
