//! Impossible requests fail quickly with the reason, and leave nothing behind.

use std::time::Duration;

use sandpod::{Error, ErrorKind, Provider, SandboxRequest};
use sandpod_kube::k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::kube::Api;
use sandpod_kube::kube::api::{DeleteParams, PostParams};
use sandpod_testbed::{Namespace, PATIENCE, from_json, wait_for, wait_until_none};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::setup::{BUSYBOX, config, provider};

/// Much shorter than the startup timeout.
const SOON: Duration = Duration::from_secs(40);

async fn refused_soon(provider: &Provider) -> Error {
    let creating = timeout(SOON, provider.get_or_create(SandboxRequest::default()));
    creating.await.expect("the creation ends soon").expect_err("the creation fails")
}

fn assert_says(error: &Error, parts: &[&str]) {
    for part in parts {
        assert!(error.to_string().contains(part), "{part} is not in: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_image_is_reported_soon() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, "sandpod.test/nosuch:1");
    config.startup_timeout_seconds = 600;
    config.image_pull_policy = "Never".to_owned();
    let provider = provider(&namespace, config).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("ErrImageNeverPull"), "{error}");
    assert!(error.to_string().contains("sandpod.test/nosuch:1"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_that_cannot_be_pulled_is_reported_soon() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, "sandpod.test/nosuch:1");
    config.startup_timeout_seconds = 600;
    let provider = provider(&namespace, config).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("ImagePullBackOff"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_of_an_image_that_runs_as_root_quotes_the_kubelet() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    (config.run_as_user, config.run_as_group) = (None, None);
    let provider = provider(&namespace, config).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("CreateContainerConfigError"), "{error}");
    assert!(error.to_string().contains("image will run as root"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seccomp_profile_of_the_node_is_applied_and_a_missing_one_is_reported() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.seccomp_profile = "Localhost".to_owned();
    config.seccomp_localhost_profile = Some("nosuch.json".to_owned());
    let provider = provider(&namespace, config).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("nosuch.json"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_about_an_unschedulable_pod_quotes_the_scheduler() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    (config.cpu_request, config.cpu_limit) = ("1000".to_owned(), "1000".to_owned());
    config.startup_timeout_seconds = 600;
    let provider = provider(&namespace, config).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("Insufficient cpu"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_names_the_role_file() {
    let namespace = Namespace::create().await;
    let provider =
        Provider::with_client(namespace.without_permissions().await, config(&namespace, BUSYBOX)).unwrap();

    let error = provider.get_or_create(SandboxRequest::default()).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("deploy/rbac/raw.yaml"), "{error}");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_quota_is_reported_by_name() {
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
async fn no_pod_is_created_without_the_deny_all_policy() {
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

#[tokio::test(flavor = "multi_thread")]
async fn invalid_image_name_is_reported_soon() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, "Not An Image")).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("InvalidImageName"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_about_a_crash_loop_quotes_the_container() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.startup_timeout_seconds = 600;
    config.init_containers = vec![json!({
        "name": "prepare", "image": BUSYBOX, "command": ["sh", "-c", "echo the disk is full; exit 7"],
    })];
    let provider = provider(&namespace, config).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert_says(&error, &["CrashLoopBackOff", "exit code 7", "the disk is full"]);
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_container_without_restarts_is_reported_at_once() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.restart_policy = "Never".to_owned();
    config.init_containers =
        vec![json!({ "name": "prepare", "image": BUSYBOX, "command": ["sh", "-c", "exit 7"] })];
    let provider = provider(&namespace, config).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("terminal phase 'Failed' during startup"), "{error}");
    assert!(error.to_string().contains("container 'prepare' ended with exit code 7"), "{error}");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_secret_is_reported_soon() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.env_from = vec![json!({ "secretRef": { "name": "nosuch" } })];
    let provider = provider(&namespace, config).await;

    let error = refused_soon(&provider).await;

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert_says(&error, &["CreateContainerConfigError", "nosuch"]);
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volume_that_cannot_be_mounted_is_reported_at_the_timeout() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.startup_timeout_seconds = 20;
    config.volumes = vec![json!({ "name": "data", "configMap": { "name": "nosuch" } })];
    config.volume_mounts = vec![json!({ "name": "data", "mountPath": "/data" })];
    let provider = provider(&namespace, config).await;

    let error = timeout(SOON, provider.get_or_create(SandboxRequest::default()))
        .await
        .expect("it gives up")
        .unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert_says(&error, &["did not reach Running phase within 20s", "FailedMount", "nosuch"]);
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_sets_how_long_an_unschedulable_pod_waits_for_a_node() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    (config.cpu_request, config.cpu_limit) = ("1000".to_owned(), "1000".to_owned());
    for (grace, limit, kind) in [(0, 600, ErrorKind::StartFailed), (600, 5, ErrorKind::Timeout)] {
        config.unschedulable_grace_seconds = grace;
        config.startup_timeout_seconds = limit;
        let provider = provider(&namespace, config.clone()).await;
        let error = timeout(SOON, provider.get_or_create(SandboxRequest::default()))
            .await
            .expect("it gives up")
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("Insufficient cpu"), "{error}");
    }
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_by_a_limit_range_quotes_its_message() {
    let namespace = Namespace::create().await;
    let range: LimitRange = from_json(json!({
        "metadata": { "name": "small" },
        "spec": { "limits": [{ "type": "Container", "max": { "memory": "64Mi" } }] },
    }));
    namespace.api().create(&PostParams::default(), &range).await.unwrap();
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;

    let error = provider.get_or_create(SandboxRequest::default()).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("maximum memory usage per Container is 64Mi"), "{error}");
    wait_until_none(&namespace.api::<Lease>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_by_an_admission_policy_quotes_its_message() {
    let namespace = Namespace::create().await;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(namespace.admin.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(namespace.admin.clone());
    let policy = from_json(json!({
        "metadata": { "name": namespace.name },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
            }]},
            "validations": [{
                "expression": "!has(object.metadata.annotations) || !('example.com/secret' in object.metadata.annotations)",
                "message": "the example company keeps no secrets",
            }],
        },
    }));
    let binding = from_json(json!({
        "metadata": { "name": namespace.name },
        "spec": {
            "policyName": namespace.name,
            "validationActions": ["Deny"],
            "matchResources": { "namespaceSelector": {
                "matchLabels": { "kubernetes.io/metadata.name": namespace.name },
            }},
        },
    }));
    policies.create(&PostParams::default(), &policy).await.unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    await_policy(&namespace).await;
    let mut config = config(&namespace, BUSYBOX);
    config.extra_annotations.insert("example.com/secret".to_owned(), "x".to_owned());
    let provider = provider(&namespace, config).await;

    let error = provider.get_or_create(SandboxRequest::default()).await.unwrap_err();

    bindings.delete(&namespace.name, &DeleteParams::default()).await.unwrap();
    policies.delete(&namespace.name, &DeleteParams::default()).await.unwrap();
    assert!([ErrorKind::Denied, ErrorKind::InvalidInput].contains(&error.kind()), "{error}");
    assert!(error.to_string().contains("the example company keeps no secrets"), "{error}");
    wait_until_none(&namespace.api::<Lease>()).await;
    namespace.finish().await;
}

/// Waits for an admission policy: the API server applies it after a moment, and offers nothing to watch for it.
async fn await_policy(namespace: &Namespace) {
    let pod: Pod = from_json(json!({
        "metadata": { "name": "probe", "annotations": { "example.com/secret": "x" } },
        "spec": {
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "c", "image": BUSYBOX, "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
            }}],
        },
    }));
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let refused = async {
        loop {
            let answer = namespace.api::<Pod>().create(&dry, &pod).await;
            if answer.is_err_and(|error| error.to_string().contains("keeps no secrets")) {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, refused).await.expect("the policy is in force");
}
