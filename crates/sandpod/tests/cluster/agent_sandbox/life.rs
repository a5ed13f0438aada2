//! The life of a sandbox whose anchor is a claim: creation, expiry, recreation, deletion.

use std::time::{Duration, SystemTime};

use sandpod::{ErrorKind, ListOptions, OnLost, SandboxRequest, Status};
use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use sandpod_testbed::{wait_for, wait_until_none};
use serde_json::json;

use super::setup::{config, fill_pool, finish, named, namespace, provider};
use crate::setup::{execute, soon};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_of_a_template_is_claimed_used_found_again_and_deleted() {
    let namespace = namespace().await;
    let mut config = config(&namespace);
    config.default_labels = [("team".to_owned(), "search".to_owned())].into();
    config.env = [("A".to_owned(), "of the configuration".to_owned())].into();
    let provider = provider(&namespace, config.clone()).await;
    let request = SandboxRequest {
        labels: [("thread-id".to_owned(), "user@example.com/1".to_owned())].into(),
        ttl: Some(seconds(600)),
        idle_ttl: Some(seconds(300)),
        env: [("B".to_owned(), "of this call".to_owned())].into(),
        ..SandboxRequest::default()
    };

    let handle = soon("claiming", provider.get_or_create(request)).await.unwrap();

    assert_eq!(
        execute(&handle, "echo $A, $B; pwd").await,
        "of the configuration, of this call\n/workspace\n"
    );
    let info = provider.info(handle.id.as_str()).await.unwrap();
    assert_eq!(info.thread_id.as_deref(), Some("user@example.com/1"));
    assert_eq!(info.labels["team"], "search");
    assert_eq!((info.status, info.generation), (Status::Running, 1));
    assert_eq!((info.connection.as_deref(), info.connection_reason), (Some("exec"), None));
    let left = info.expires_at.unwrap().duration_since(SystemTime::now()).unwrap();
    assert!((seconds(250)..=seconds(330)).contains(&left), "{left:?}");
    let claim = namespace.api::<SandboxClaim>().get(handle.id.as_str()).await.unwrap();
    let lifecycle = claim.spec.lifecycle.clone().unwrap();
    assert_eq!(lifecycle.shutdown_policy.as_deref(), Some("Delete"));
    assert_eq!(lifecycle.ttl_seconds_after_finished, Some(300));
    let shutdown: SystemTime = lifecycle.shutdown_time.unwrap().0.into();
    let later = shutdown.duration_since(info.created_at.unwrap()).unwrap();
    assert!((seconds(658)..=seconds(662)).contains(&later), "{later:?}");
    assert!(
        !serde_json::to_string(&claim).unwrap().contains("of this call"),
        "the environment is in the claim"
    );

    let other = super::setup::provider(&namespace, config).await;
    let again = soon("finding", other.reconnect(handle.id.as_str())).await.unwrap();
    assert_eq!(execute(&again, "echo $B").await, "of this call\n");
    let by_label =
        ListOptions { labels: [("team".to_owned(), "search".to_owned())].into(), ..ListOptions::default() };
    assert_eq!(other.list(by_label).await.unwrap().sandboxes.len(), 1);
    let stats = other.stats(seconds(300)).await.unwrap();
    assert_eq!((stats.total, stats.running, stats.thread_ids.len()), (1, 1, 1));
    soon("extending", other.extend(handle.id.as_str(), seconds(6000))).await.unwrap();
    let claim = namespace.api::<SandboxClaim>().get(handle.id.as_str()).await.unwrap();
    let extended: SystemTime = claim.spec.lifecycle.unwrap().shutdown_time.unwrap().0.into();
    assert!(extended > shutdown + seconds(5000));

    soon("deleting", provider.delete(handle.id.as_str(), true)).await.unwrap();
    assert_eq!(other.info(handle.id.as_str()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(namespace.api::<Pod>().list(&ListParams::default()).await.unwrap().items.is_empty());
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_sandbox_is_terminated_until_a_cleanup_and_can_be_recreated() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    for id in ["mortal", "renewed"] {
        let request = SandboxRequest { ttl: Some(seconds(2)), ..named(id) };
        soon("claiming", provider.get_or_create(request)).await.unwrap();
    }
    for id in ["mortal", "renewed"] {
        wait_for(&namespace.api::<SandboxClaim>(), id, "end", |claim| {
            let conditions = claim.and_then(|claim| claim.status.as_ref()).map(|status| &status.conditions);
            conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.reason == "PodSucceeded")
        })
        .await;
    }

    assert_eq!(provider.info("mortal").await.unwrap().status, Status::Terminated);
    let request = SandboxRequest { on_lost: OnLost::Error, ..SandboxRequest::of("mortal") };
    assert_eq!(provider.get_or_create(request).await.unwrap_err().kind(), ErrorKind::NotFound);
    // The recreated sandbox does not expire during the test.
    let longer = json!({ "metadata": { "annotations": { "sandpod.dev/ttl-seconds": "600" } } });
    let claims = namespace.api::<SandboxClaim>();
    claims.patch("renewed", &PatchParams::default(), &Patch::Merge(&longer)).await.unwrap();
    let renewed = soon("renewing", provider.get_or_create(SandboxRequest::of("renewed"))).await.unwrap();
    assert_eq!((renewed.id.as_str(), renewed.generation), ("renewed", 2));
    let deleted = provider.cleanup(None).await.unwrap().deleted;
    assert_eq!(deleted.iter().map(ToString::to_string).collect::<Vec<_>>(), ["mortal"]);

    provider.delete("renewed", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_deletes_ended_sandboxes_that_were_not_requested_again() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    let request = SandboxRequest { ttl: Some(seconds(3600)), ..named("mortal") };
    soon("claiming", provider.get_or_create(request)).await.unwrap();
    let request = SandboxRequest { idle_ttl: Some(seconds(2)), ..named("idle") };
    soon("claiming", provider.get_or_create(request)).await.unwrap();
    let claims = namespace.api::<SandboxClaim>();

    wait_for(&claims, "idle", "end", |claim| {
        let conditions = claim.and_then(|claim| claim.status.as_ref()).map(|status| &status.conditions);
        conditions.into_iter().flatten().any(|one| one.type_ == "Finished" && one.status == "True")
    })
    .await;
    // Let the TTL expire.
    for (id, over) in [
        ("idle", json!({ "ttlSecondsAfterFinished": 0 })),
        ("mortal", json!({ "shutdownTime": "2026-01-01T00:00:00Z" })),
    ] {
        let over = json!({ "spec": { "lifecycle": over } });
        claims.patch(id, &PatchParams::default(), &Patch::Merge(&over)).await.unwrap();
    }

    wait_until_none(&claims).await;
    wait_until_none(&namespace.api::<Pod>()).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_that_its_controller_expired_is_terminated() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    let handle = soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    let past = json!({ "spec": { "lifecycle": { "shutdownTime": "2026-01-01T00:00:00Z", "shutdownPolicy": "Retain" } } });
    let claims = namespace.api::<SandboxClaim>();
    claims.patch("a", &PatchParams::default(), &Patch::Merge(&past)).await.unwrap();
    wait_for(&claims, "a", "expire", |claim| {
        let conditions = claim.and_then(|claim| claim.status.as_ref()).map(|status| &status.conditions);
        conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.reason == "ClaimExpired")
    })
    .await;

    assert_eq!(provider.info("a").await.unwrap().status, Status::Terminated);
    wait_until_none(&namespace.api::<Pod>()).await;
    let error = handle.sandbox.execute("true", sandpod::ExecuteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("Pod 'a'"), "{error}");
    assert_eq!(provider.cleanup(None).await.unwrap().deleted.len(), 1);
    wait_until_none(&namespace.api::<Pod>()).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_is_a_loss_and_the_next_one_has_a_new_generation() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    let handle = soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    execute(&handle, "echo precious > file").await;
    let pods = namespace.api::<Pod>();
    let before = pods.get("a").await.unwrap().metadata.uid;
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    wait_for(&pods, "a", "be replaced", |pod| pod.is_none_or(|pod| pod.metadata.uid != before)).await;

    let error = handle.sandbox.execute("true", sandpod::ExecuteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("Pod 'a'"), "{error}");
    assert_eq!(provider.reconnect("a").await.unwrap_err().kind(), ErrorKind::NotFound);
    let again = soon("claiming again", provider.get_or_create(SandboxRequest::of("a"))).await.unwrap();

    assert_eq!((again.id.as_str(), again.generation), ("a", 2));
    assert_eq!(execute(&again, "cat file || echo gone").await.lines().last(), Some("gone"));
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_creators_of_one_id_share_one_claim() {
    let namespace = namespace().await;
    fill_pool(&namespace, "pool", 1).await;
    let one = provider(&namespace, config(&namespace)).await;
    let other = provider(&namespace, config(&namespace)).await;

    let creating =
        (0..20).map(|number| if number % 2 == 0 { &one } else { &other }.get_or_create(named("thread-1")));
    let handles = soon("claiming", futures::future::try_join_all(creating)).await.unwrap();

    assert!(handles.iter().all(|handle| handle.pod == handles[0].pod && handle.generation == 1));
    one.delete("thread-1", true).await.unwrap();
    finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_creator_leaves_no_objects() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    let claims = namespace.api::<SandboxClaim>();
    let creating = provider.clone();
    let creating = tokio::spawn(async move { creating.get_or_create(named("a")).await });
    wait_for(&claims, "a", "be there", |claim| claim.is_some()).await;

    creating.abort();

    wait_until_none(&claims).await;
    wait_until_none(&namespace.api::<Pod>()).await;
    finish(namespace, &provider).await;
}
