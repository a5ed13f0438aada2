//! A sandbox that cannot start fails at once with the reason, and leaves nothing behind.

use std::time::Duration;

use sandpod::{ErrorKind, Provider, SandboxRequest};
use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_kube::kube::api::ListParams;
use sandpod_testbed::{Namespace, wait_until_none};
use serde_json::json;

use super::setup::{config, finish, make_template, namespace, pod_spec, provider};
use crate::setup::soon;

async fn no_claims(namespace: &Namespace) {
    let claims =
        namespace.api::<SandboxClaim>().list(&ListParams::default()).await.expect("claims are listed");
    assert!(claims.items.is_empty(), "{:?}", claims.items);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_template_or_pool_is_reported_at_once() {
    let namespace = namespace().await;
    let mut of_template = config(&namespace);
    of_template.template_name = Some("t".to_owned());
    let missing = provider(&namespace, of_template).await;
    let error = missing.get_or_create(SandboxRequest::default()).await.unwrap_err();
    let name = &namespace.name;
    assert_eq!(
        error.to_string(),
        format!("SandboxTemplate 't' not found in namespace '{name}'. Create it first — see README.")
    );

    let mut of_pool = config(&namespace);
    of_pool.warm_pool_name = Some("p".to_owned());
    let missing = provider(&namespace, of_pool).await;
    let error = missing.get_or_create(SandboxRequest::default()).await.unwrap_err();
    assert!(
        error.to_string().starts_with(&format!("SandboxWarmPool 'p' not found in namespace '{name}'.")),
        "{error}"
    );
    no_claims(&namespace).await;
    finish(namespace, &missing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_image_ends_the_wait_with_the_message_of_the_cluster() {
    let namespace = namespace().await;
    let mut spec = pod_spec(&[]);
    spec["containers"][0]["image"] = json!("sandpod.test/no-such-image:1");
    make_template(&namespace, "broken", spec).await;
    let mut broken = config(&namespace);
    broken.template_name = Some("broken".to_owned());
    let provider = provider(&namespace, broken).await;

    let error = soon("failing", provider.get_or_create(SandboxRequest::default())).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    assert!(error.to_string().contains("Image"), "{error}");
    wait_until_none(&namespace.api::<SandboxClaim>()).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_startup_timeout_names_the_command_that_shows_the_cause() {
    let namespace = namespace().await;
    let mut spec = pod_spec(&[]);
    // A node that does not exist.
    spec["nodeSelector"] = json!({ "sandpod.test/nowhere": "true" });
    make_template(&namespace, "slow", spec).await;
    let mut slow = config(&namespace);
    (slow.template_name, slow.startup_timeout_seconds) = (Some("slow".to_owned()), 3);
    let provider = provider(&namespace, slow).await;

    let error = soon("failing", provider.get_or_create(SandboxRequest::default())).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Timeout);
    let expected = "Sandbox did not become ready within 3s. Check controller logs: kubectl logs -n \
                    agent-sandbox-system -l app=agent-sandbox-controller";
    assert!(error.to_string().starts_with(expected), "{error}");
    wait_until_none(&namespace.api::<SandboxClaim>()).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_about_a_missing_role_names_its_file() {
    let namespace = namespace().await;
    let unprivileged =
        Provider::agent_sandbox_with_client(namespace.without_permissions().await, config(&namespace))
            .unwrap();
    let refusing =
        tokio::time::timeout(Duration::from_secs(20), unprivileged.get_or_create(SandboxRequest::default()));
    let error = refusing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("deploy/rbac/agent-sandbox.yaml"), "{error}");
    let provider = provider(&namespace, config(&namespace)).await;
    assert_eq!(provider.list(sandpod::ListOptions::default()).await.unwrap().sandboxes.len(), 0);
    finish(namespace, &provider).await;
}
