//! The printed reaper, run as a Job.

use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_kube::k8s_openapi::api::batch::v1::Job;
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::{Patch, PatchParams};
use sandpod_testbed::{wait_for, wait_until_none};
use serde_json::json;

use crate::Cluster;

/// Runs the reaper's Job once `short` has expired, and expects it to delete only that sandbox.
async fn reap_the_expired_sandbox(cluster: &Cluster) {
    let stage = &cluster.stage;
    stage.run("until sandpod list --quiet --status terminated | grep short; do sleep 0.1; done");
    let applied = stage.run(
        "sandpod manifests reaper --namespace $NS --image sandpod.test/cli:1 | kubectl apply --server-side -f - && \
         kubectl -n $NS create job --from=cronjob/sandpod-reaper once",
    );
    assert!(applied.contains("job.batch/once created"), "{applied}");

    wait_for::<Job>(&cluster.namespace.api(), "once", "succeed", |job| {
        job.and_then(|job| job.status.as_ref()?.succeeded) == Some(1)
    })
    .await;

    assert_eq!(stage.run("kubectl -n $NS logs job/once"), "deleted short\n1 deleted, 1 kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reaper_deletes_an_expired_sandbox_and_no_other() {
    let cluster = Cluster::new().await;
    let stage = &cluster.stage;
    stage.run("sandpod create --id short --ttl 1s --quiet; sandpod create --id long --ttl 1h --quiet");
    reap_the_expired_sandbox(&cluster).await;
    wait_for::<Lease>(&cluster.namespace.api(), "short", "go", |lease| lease.is_none()).await;
    assert_eq!(stage.run("sandpod list --quiet"), "long\n");
    stage.run("sandpod delete long; kubectl -n $NS delete cronjob,job --all");
    wait_until_none::<Pod>(&cluster.namespace.api()).await;
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reaper_deletes_an_expired_claim_that_its_controller_keeps() {
    let cluster = Cluster::agent_sandbox().await;
    let stage = &cluster.stage;
    stage.run(
        "sandpod manifests template --name python --namespace $NS --image sandpod.test/python:1 > manifest && \
         kubectl apply --server-side -f manifest",
    );
    stage.run(
        "export SANDPOD_TEMPLATE_NAME=python; \
         sandpod create --id short --ttl 1s --quiet; sandpod create --id long --ttl 1h --quiet",
    );
    // Like claims of earlier versions of sandpod, which their controller never deletes.
    let kept = json!({ "spec": { "lifecycle": { "shutdownPolicy": "Retain" } } });
    let claims = cluster.namespace.api::<SandboxClaim>();
    claims.patch("short", &PatchParams::default(), &Patch::Merge(&kept)).await.unwrap();
    reap_the_expired_sandbox(&cluster).await;
    wait_for(&claims, "short", "go", |claim| claim.is_none()).await;
    assert_eq!(stage.run("sandpod list --quiet"), "long\n");
    stage.run(
        "sandpod delete long; kubectl -n $NS delete cronjob,job --all; \
         kubectl -n $NS delete sandboxwarmpools,sandboxtemplates --all",
    );
    wait_until_none::<Pod>(&cluster.namespace.api()).await;
    cluster.finish().await;
}
