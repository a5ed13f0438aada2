//! The printed template and warm pool, with agent-sandbox's controller and our RBAC objects.

use sandpod_kube::agent_sandbox::{SandboxClaim, SandboxWarmPool};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_testbed::{wait_for, wait_until_none};

use crate::Cluster;

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_the_printed_template_and_pool_run_our_guest() {
    let cluster = Cluster::agent_sandbox().await;
    let stage = &cluster.stage;
    let applied = stage.run(
        "for what in template warm-pool; do \
           sandpod manifests $what --name python --namespace $NS --image sandpod.test/python:1 || exit; \
           echo ---; \
         done > manifest && kubectl apply --server-side -f manifest",
    );
    assert!(applied.contains("sandboxwarmpool.extensions.agents.x-k8s.io/python"), "{applied}");
    wait_for::<SandboxWarmPool>(&cluster.namespace.api(), "python", "be filled", |pool| {
        pool.and_then(|pool| pool.status.as_ref()).is_some_and(|status| status.ready_replicas == 1)
    })
    .await;
    stage.run(
        r#"printf '{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": "one"}, "spec": {"warmPoolRef": {"name": "python"}}}' | kubectl -n $NS apply -f -"#,
    );
    let claim = wait_for::<SandboxClaim>(&cluster.namespace.api(), "one", "get a sandbox", |claim| {
        claim
            .and_then(|claim| claim.status.as_ref()?.sandbox.as_ref())
            .is_some_and(|it| !it.pod_ips.is_empty())
    })
    .await;
    let pod = claim.unwrap().status.unwrap().sandbox.unwrap().name;

    let inside = stage
        .run(&format!("kubectl -n $NS exec {pod} -- sh -c 'touch /workspace/x /home/sandbox/y && id -u'"));
    assert_eq!(inside, "1000\n");
    let guest =
        stage.run(&format!("kubectl -n $NS exec -i {pod} -- /sandpod/boot pipe < /dev/null | head -1"));
    assert_eq!(guest, "sandpod-guest/1\n");
    let printed = stage.run("sandpod run --template python 'echo from a claim'");
    assert_eq!(printed, "from a claim\n");
    let printed = stage.run(
        "export SANDPOD_TEMPLATE_NAME=python; \
         sandpod create --id work --quiet; \
         sandpod suspend work; \
         sandpod suspend --force work | grep status; \
         sandpod exec work -- true; \
         sandpod resume work | grep -E 'status|generation'; \
         sandpod exec work -- echo awake; \
         sandpod delete work --quiet",
    );
    assert!(
        printed.contains("Suspending sandbox 'work' would lose its files") && printed.contains("--force"),
        "{printed}"
    );
    assert!(printed.contains("Sandbox 'work' is suspended"), "{printed}");
    let printed: Vec<_> =
        printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in ["status: suspended", "status: running", "generation: 2", "awake"] {
        assert!(printed.iter().any(|printed| printed == line), "{line} is not in {printed:?}");
    }
    stage.run("kubectl -n $NS delete sandboxclaims,sandboxwarmpools,sandboxtemplates --all");
    wait_until_none::<Pod>(&cluster.namespace.api()).await;
    cluster.finish().await;
}
