//! Adopted claims of other programs: used, but neither changed nor deleted.

use sandpod::{ErrorKind, ExecuteOptions, ListOptions, SandboxRequest};
use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt as _;
use sandpod_kube::kube::api::{DeleteParams, PostParams};
use sandpod_testbed::{Namespace, from_json, wait_until_none};
use serde_json::json;
use tempfile::TempDir;

use super::setup::{config, fill_pool, finish, named, namespace, provider, secret_file};
use crate::setup::{execute, soon};

/// A claim as another program creates it.
async fn claim(namespace: &Namespace, name: &str) -> SandboxClaim {
    let claim: SandboxClaim = from_json(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": { "name": name, "labels": { "app.kubernetes.io/managed-by": "another-program" } },
        "spec": { "warmPoolRef": { "name": "pool" } },
    }));
    let made = namespace.api::<SandboxClaim>().create(&PostParams::default(), &claim).await;
    made.expect("the admin makes a claim")
}

/// The names of all labels and annotations that are ours.
fn ours(claim: &SandboxClaim) -> Vec<String> {
    let names = claim.labels().keys().chain(claim.annotations().keys());
    names.filter(|name| name.starts_with("sandpod.dev/")).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_claim_of_another_program_stays_unchanged() {
    let namespace = namespace().await;
    fill_pool(&namespace, "pool", 1).await;
    let mut config = config(&namespace);
    config.template_name = None;
    config.ttl_idle_seconds = Some(1);
    let provider = provider(&namespace, config.clone()).await;
    let error = provider.adopt("theirs").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().starts_with("SandboxClaim 'theirs' not found in namespace"), "{error}");
    let made = claim(&namespace, "theirs").await;

    let handle = soon("adopting", provider.adopt("theirs")).await.unwrap();
    assert_eq!((handle.id.as_str(), handle.generation), ("theirs", 1));
    assert_eq!(execute(&handle, "echo mine > file; pwd").await, "/workspace\n");
    let other = super::setup::provider(&namespace, config).await;
    let again = soon("adopting", other.adopt("theirs")).await.unwrap();
    assert_eq!(execute(&again, "cat file").await, "mine\n");

    assert!(provider.list(ListOptions::default()).await.unwrap().sandboxes.is_empty());
    assert_eq!(provider.delete("theirs", true).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert!(provider.cleanup(Some(std::time::Duration::ZERO)).await.unwrap().deleted.is_empty());
    provider.close().await;
    let claims = namespace.api::<SandboxClaim>();
    let now = claims.get("theirs").await.unwrap();
    assert_eq!((now.uid(), now.labels()), (made.uid(), made.labels()));
    assert!(ours(&now).is_empty() && now.spec.lifecycle.is_none(), "{now:?}");
    let error = provider.get_or_create(SandboxRequest::default()).await.unwrap_err();
    assert!(error.to_string().starts_with("template_name is required"), "{error}");

    claims.delete("theirs", &DeleteParams::default()).await.unwrap();
    wait_until_none(&claims).await;
    let pods = namespace.api::<Pod>();
    sandpod_testbed::wait_for(&pods, handle.pod.split_once('/').unwrap().1, "go", |pod| pod.is_none()).await;
    let error = handle.sandbox.execute("true", ExecuteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("Pod 'pool-"), "{error}");
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_adopt_a_claim_over_the_network_one_after_the_other() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    fill_pool(&namespace, "pool", 1).await;
    let mut config = config(&namespace);
    (config.connection_mode, config.guest_token_file) =
        (Some("in-cluster".to_owned()), Some(secret_file(&dir)));
    claim(&namespace, "theirs").await;
    for _ in 0..2 {
        let provider = provider(&namespace, config.clone()).await;
        let handle =
            soon("adopting", provider.adopt("theirs")).await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    }
    let claims = namespace.api::<SandboxClaim>();
    assert!(ours(&claims.get("theirs").await.unwrap()).is_empty());
    claims.delete("theirs", &DeleteParams::default()).await.unwrap();
    wait_until_none(&claims).await;
    let provider = provider(&namespace, config).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn adopting_our_own_sandbox_reconnects_to_it() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    let handle = soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    execute(&handle, "echo mine > file").await;
    let adopted = soon("adopting", provider.adopt("a")).await.unwrap();
    assert_eq!(execute(&adopted, "cat file").await, "mine\n");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}
