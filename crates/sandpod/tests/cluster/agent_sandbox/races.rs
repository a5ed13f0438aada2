//! Several clients create one sandbox at once over the network: the guest's token changes when the first one binds it.

use sandpod::AgentSandboxConfig;
use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_kube::kube::api::{Patch, PatchParams};
use sandpod_testbed::Namespace;
use serde_json::json;
use tempfile::TempDir;

use super::setup::{config, fill_pool, finish, named, namespace, provider, secret_file};
use crate::setup::{execute, soon};

fn over_network(namespace: &Namespace, dir: &TempDir) -> AgentSandboxConfig {
    AgentSandboxConfig {
        connection_mode: Some("in-cluster".to_owned()),
        guest_token_file: Some(secret_file(dir)),
        ..config(namespace)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_creators_of_one_id_over_the_network_share_one_guest() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    fill_pool(&namespace, "pool", 1).await;
    let one = provider(&namespace, over_network(&namespace, &dir)).await;
    let other = provider(&namespace, over_network(&namespace, &dir)).await;

    let creating =
        (0..20).map(|number| if number % 2 == 0 { &one } else { &other }.get_or_create(named("thread-1")));
    let handles = soon("claiming", futures::future::try_join_all(creating)).await;
    let handles = handles.unwrap_or_else(|error| panic!("{error}"));

    assert!(handles.iter().all(|handle| handle.pod == handles[0].pod && handle.generation == 1));
    for handle in &handles {
        assert_eq!(execute(handle, "echo hello").await, "hello\n");
    }
    one.delete("thread-1", true).await.unwrap();
    finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_connects_although_the_previous_bind_was_not_recorded() {
    let (namespace, dir) = (namespace().await, TempDir::new().unwrap());
    let provider = provider(&namespace, over_network(&namespace, &dir)).await;
    let first = soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    execute(&first, "echo mine > file").await;
    // As if the binding had not been recorded.
    let unrecorded = json!({ "metadata": { "annotations": { "sandpod.dev/created-at": null } } });
    let claims = namespace.api::<SandboxClaim>();
    claims.patch("a", &PatchParams::default(), &Patch::Merge(&unrecorded)).await.unwrap();

    let other = super::setup::provider(&namespace, over_network(&namespace, &dir)).await;
    let second = soon("claiming", other.get_or_create(named("a"))).await;
    let second = second.unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(execute(&second, "cat file").await, "mine\n");
    assert!(other.info("a").await.unwrap().created_at.is_some(), "now it is noted");
    other.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}
