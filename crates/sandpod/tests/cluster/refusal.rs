//! What can't be had is refused with the reason, soon, and leaves nothing.

use std::time::Duration;

use sandpod::{ErrorKind, Provider, SandboxRequest};
use sandpod_kube::k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::kube::api::{DeleteParams, PostParams};
use sandpod_testbed::{Namespace, from_json, wait_for, wait_until_none};
use serde_json::json;
use tokio::time::timeout;

use crate::setup::{BUSYBOX, config, provider};

/// Long before the startup timeout.
const SOON: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_there_is_named_soon() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, "sandpod.test/nosuch:1");
    config.startup_timeout_seconds = 600;
    config.image_pull_policy = "Never".to_owned();
    let provider = provider(&namespace, config).await;

    let creating = timeout(SOON, provider.get_or_create(SandboxRequest::default()));
    let error = creating.await.expect("it says so soon").unwrap_err();

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("ErrImageNeverPull"), "{error}");
    assert!(error.to_string().contains("sandpod.test/nosuch:1"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_pulled_is_named_soon() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, "sandpod.test/nosuch:1");
    config.startup_timeout_seconds = 600;
    let provider = provider(&namespace, config).await;

    let creating = timeout(SOON, provider.get_or_create(SandboxRequest::default()));
    let error = creating.await.expect("it says so soon").unwrap_err();

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("ImagePullBackOff"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_runs_as_root_is_refused_with_the_kubelets_words() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    (config.run_as_user, config.run_as_group) = (None, None);
    let provider = provider(&namespace, config).await;

    let creating = timeout(SOON, provider.get_or_create(SandboxRequest::default()));
    let error = creating.await.expect("it says so soon").unwrap_err();

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("CreateContainerConfigError"), "{error}");
    assert!(error.to_string().contains("image will run as root"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_no_node_fits_is_refused_with_the_schedulers_words() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    (config.cpu_request, config.cpu_limit) = ("1000".to_owned(), "1000".to_owned());
    config.startup_timeout_seconds = 600;
    let provider = provider(&namespace, config).await;

    let creating = timeout(SOON, provider.get_or_create(SandboxRequest::default()));
    let error = creating.await.expect("it says so soon").unwrap_err();

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("Insufficient cpu"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_names_the_role_file() {
    let namespace = Namespace::create().await;
    let provider = Provider::with_client(namespace.nobody().await, config(&namespace, BUSYBOX)).unwrap();

    let error = provider.get_or_create(SandboxRequest::default()).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("deploy/rbac/raw.yaml"), "{error}");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_quota_is_named() {
    let namespace = Namespace::create().await;
    let quotas = namespace.api::<ResourceQuota>();
    let quota: ResourceQuota =
        from_json(json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } }));
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    wait_for(&quotas, "none", "count", |quota| {
        quota.and_then(|quota| quota.status.as_ref()).is_some_and(|status| status.hard.is_some())
    })
    .await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;

    let error = provider.get_or_create(SandboxRequest::default()).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error}");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_policy_that_denies_all_there_is_no_pod() {
    let namespace = Namespace::create().await;
    let policies = namespace.api::<NetworkPolicy>();
    let open: NetworkPolicy = from_json(json!({
        "metadata": { "name": "sandpod-deny-all" },
        "spec": {
            "podSelector": { "matchLabels": { "sandpod.dev/network": "deny-all" } },
            "policyTypes": ["Ingress", "Egress"],
            "egress": [{}],
        },
    }));
    policies.create(&PostParams::default(), &open).await.unwrap();
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;

    let error = provider.get_or_create(SandboxRequest::default()).await.unwrap_err();

    assert!(error.to_string().contains("sandpod-deny-all"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    policies.delete("sandpod-deny-all", &DeleteParams::default()).await.unwrap();
    namespace.finish().await;
}
