//! The real agent-sandbox controller, with only the RBAC of agent-sandbox mode.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use sandpod_kube::agent_sandbox::{
    NameRef, NetworkPolicyManagement, Sandbox, SandboxClaim, SandboxClaimSpec, SandboxClaimStatus,
    SandboxTemplate, SandboxTemplateSpec, SandboxWarmPool, SandboxWarmPoolSpec,
};
use sandpod_kube::exec::{self, PodRef};
use sandpod_testbed::{Namespace, PATIENCE, from_json, wait_for, wait_until_none};
use serde_json::json;
use tokio::time::timeout;

use crate::smoke::restricted_spec;

const POOL: &str = "pool";

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_a_ready_sandbox_from_a_warm_pool() {
    let namespace = Namespace::create().await;
    fill_pool(&namespace, 2).await;
    let client = namespace.agent_sandbox().await;

    let claim = claim(&client, &namespace.name, "claim").await;

    let sandbox = claim.sandbox.expect("a ready claim has a sandbox");
    assert!(sandbox.name.starts_with("pool-"), "{} is no warm sandbox of the pool", sandbox.name);
    assert!(!sandbox.pod_ips.is_empty(), "{} is ready without an address", sandbox.name);
    assert_eq!(say_hello(&client, &PodRef::new(&namespace.name, &sandbox.name)).await, "hello\n");

    release(&client, &namespace.name, "claim", &sandbox.name).await;
    empty_pool(&namespace).await;
    namespace.finish().await;
}

/// Creates a template and a pool as the admin of a namespace would, and waits until the pool is full.
async fn fill_pool(namespace: &Namespace, replicas: i32) {
    let template = SandboxTemplateSpec {
        pod_template: from_json(json!({
            "spec": restricted_spec("sandpod.test/busybox:1", &["sleep", "1000000"]),
        })),
        network_policy_management: NetworkPolicyManagement::Unmanaged,
    };
    let templates: Api<SandboxTemplate> = namespace.api();
    let template = SandboxTemplate::new("template", template);
    templates.create(&PostParams::default(), &template).await.expect("the admin can create a template");

    let pool = SandboxWarmPoolSpec { replicas, sandbox_template_ref: NameRef::new("template") };
    let pools: Api<SandboxWarmPool> = namespace.api();
    let pool = SandboxWarmPool::new(POOL, pool);
    pools.create(&PostParams::default(), &pool).await.expect("the admin can create a warm pool");
    wait_for(&pools, POOL, "fill", |pool| {
        pool.and_then(|pool| pool.status.as_ref()).is_some_and(|status| status.ready_replicas == replicas)
    })
    .await;
}

/// Claims a sandbox, and returns the claim's status once it is ready.
async fn claim(client: &Client, namespace: &str, name: &str) -> SandboxClaimStatus {
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let spec = SandboxClaimSpec { warm_pool_ref: Some(NameRef::new(POOL)), ..SandboxClaimSpec::default() };
    let claim = SandboxClaim::new(name, spec);
    claims.create(&PostParams::default(), &claim).await.expect("the agent-sandbox role may claim a sandbox");
    let claimed = wait_for(&claims, name, "become Ready", |claim| {
        claim.and_then(|claim| claim.status.as_ref()).is_some_and(is_ready)
    })
    .await;
    claimed.and_then(|claim| claim.status).expect("a ready claim has a status")
}

fn is_ready(status: &SandboxClaimStatus) -> bool {
    status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True")
}

async fn say_hello(client: &Client, pod: &PodRef) -> String {
    let run = exec::run(client, pod, ["sh", "-c", "echo hello"], None, 1024);
    let finished = timeout(PATIENCE, run).await.expect("echo ends").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(finished.exit_code, 0, "{finished:?}");
    String::from_utf8_lossy(&finished.stdout).into_owned()
}

/// Deletes the claim, and waits until its sandbox and Pod are gone.
async fn release(client: &Client, namespace: &str, claim: &str, sandbox: &str) {
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    claims
        .delete(claim, &DeleteParams::default())
        .await
        .expect("the agent-sandbox role may delete its claim");
    wait_for(&claims, claim, "be gone", |claim| claim.is_none()).await;
    wait_for(&sandboxes, sandbox, "be gone", |sandbox| sandbox.is_none()).await;
    wait_for(&pods, sandbox, "be gone", |pod| pod.is_none()).await;
}

/// Deletes pool and template, and waits until their objects are gone.
async fn empty_pool(namespace: &Namespace) {
    let pools: Api<SandboxWarmPool> = namespace.api();
    let templates: Api<SandboxTemplate> = namespace.api();
    pools.delete(POOL, &DeleteParams::default()).await.expect("the admin can delete the pool");
    wait_until_none(&pools).await;
    wait_until_none(&namespace.api::<Sandbox>()).await;
    wait_until_none(&namespace.api::<Pod>()).await;
    templates.delete("template", &DeleteParams::default()).await.expect("the admin can delete the template");
    wait_until_none(&templates).await;
}
