//! The objects that remain in a cluster after interrupts, lost Pods and `sandpod gc`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use sandpod::{Provider, RawConfig, SandboxRequest};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_testbed::{wait_for, wait_until_none};

use crate::Cluster;

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_deletes_its_sandbox() {
    let cluster = Cluster::new().await;
    let mut run = cluster
        .stage
        .command("exec sandpod run 'echo begun; sleep 1000'")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    interrupt(&run);
    assert_eq!(run.wait().unwrap().code(), Some(130));
    assert_eq!(cluster.stage.run("kubectl -n $NS get leases,pods -o name").trim(), "");
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_creation_leaves_nothing() {
    let cluster = Cluster::new().await;
    let mut create =
        cluster.stage.command("exec sandpod create --id half").stderr(Stdio::null()).spawn().unwrap();
    wait_for::<Lease>(&cluster.namespace.api(), "half", "be made", |lease| lease.is_some()).await;
    interrupt(&create);
    assert_eq!(create.wait().unwrap().code(), Some(130));
    wait_until_none::<Lease>(&cluster.namespace.api()).await;
    wait_until_none::<Pod>(&cluster.namespace.api()).await;
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_pod_is_reported_with_the_command_that_recreates_the_sandbox() {
    let cluster = Cluster::new().await;
    let stage = &cluster.stage;
    stage.run("sandpod create --id work --quiet; kubectl -n $NS delete pods --all --now");
    let lost = stage.run("sandpod exec work -- true");
    assert!(lost.contains("next: Create it again with `sandpod create --id work`.\n"), "{lost}");
    assert!(!lost.contains("get_or_create"), "{lost}");
    assert_eq!(
        stage.run("sandpod create --id work --quiet; sandpod exec work -- echo again"),
        "work\nagain\n"
    );
    stage.run("sandpod delete work");
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_all_deletes_shared_objects_when_no_sandbox_is_left() {
    let cluster = Cluster::new().await;
    let stage = &cluster.stage;
    stage.run("sandpod create --id last --quiet");
    let refused = stage.run("sandpod gc --all");
    assert!(refused.contains("there are sandboxes in") && refused.ends_with("[exit 4]\n"), "{refused}");
    stage.run("sandpod delete last");

    let cleared = stage.run("sandpod gc --all");

    for part in ["networkpolicy/sandpod-deny-all", "configmap/sandpod-guest-", "configmap/sandpod-image-"] {
        assert!(cleared.contains(part), "{cleared}");
    }
    let left = stage.run("kubectl -n $NS get configmaps,networkpolicies -o name");
    assert_eq!(left, "configmap/kube-root-ca.crt\n");
    assert_eq!(stage.run("sandpod run 'echo works again'"), "works again\n");
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_all_keeps_a_warm_pool_with_a_refiller_and_deletes_it_without() {
    let cluster = Cluster::new().await;
    let stage = &cluster.stage;
    let keeper = pool_provider(&cluster).await;
    let warm = "kubectl -n $NS get pods -l sandpod.dev/pool-status=warm -o name";
    stage.run(&format!("until {warm} | grep -q pod; do sleep 0.1; done"));

    let refused = stage.run("sandpod gc --all --max-idle 0s");
    assert!(refused.contains("there is a warm pool in agents"), "{refused}");
    assert!(
        refused.contains("End the processes that keep it") && refused.ends_with("[exit 4]\n"),
        "{refused}"
    );
    assert_eq!(stage.run(warm).lines().count(), 1, "the warm Pod is kept");

    keeper.close().await;
    let cleared = stage.run("sandpod gc --all --max-idle 0s");
    assert!(cleared.ends_with("1 deleted, 0 kept\n"), "{cleared}");
    for part in ["networkpolicy/sandpod-deny-all", "configmap/sandpod-guest-", "configmap/sandpod-image-"] {
        assert!(cleared.contains(&format!("removed {part}")), "{cleared}");
    }
    wait_until_none::<Pod>(&cluster.namespace.api()).await;
    let left = stage.run("kubectl -n $NS get leases,configmaps,networkpolicies -o name");
    assert_eq!(left, "configmap/kube-root-ca.crt\n");
    cluster.finish().await;
}

/// A provider that keeps a warm pool of one Pod; its first sandbox, which starts the refiller, is deleted again.
async fn pool_provider(cluster: &Cluster) -> Provider {
    let config = RawConfig {
        namespace: cluster.namespace.name.clone(),
        image: "sandpod.test/busybox:1".to_owned(),
        warm_pool_size: 1,
        ..RawConfig::default()
    };
    let keeper = Provider::with_client(cluster.namespace.raw().await, config).unwrap();
    let first = keeper.get_or_create(SandboxRequest::default()).await.unwrap();
    keeper.delete(first.id.as_str(), true).await.unwrap();
    keeper
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permissions_have_an_exit_code_and_a_fix() {
    let cluster = Cluster::new().await;
    let token = cluster.namespace.token("default", None).await;
    let no_permissions = sandpod_testbed::kubeconfig::Kubeconfig::of(serde_json::json!({ "token": token }));
    let stage = crate::stage(&cluster.namespace.name, &no_permissions);
    let printed = stage.run("sandpod list");
    assert!(
        printed.contains("cannot list resource") && printed.contains("deploy/rbac/raw.yaml"),
        "{printed}"
    );
    assert!(printed.ends_with("[exit 5]\n"), "{printed}");
    let printed = stage.run("sandpod list --kubeconfig nothing");
    assert!(printed.contains("nothing") && printed.ends_with("[exit 9]\n"), "{printed}");
    cluster.finish().await;
}
