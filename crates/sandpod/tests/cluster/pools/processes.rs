//! A warm pool that several processes share.

#![expect(clippy::print_stdout, reason = "a process prints its sandboxes for the test that started it")]

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use futures::future::join_all;
use sandpod::{Provider, RawConfig, SandboxRequest};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{DeleteParams, Patch, PatchParams};
use sandpod_testbed::Namespace;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::{Census, begin, finish, full, holder, lease, pods_of_pools, pools_become, with_status};
use crate::setup::{BUSYBOX, execute, provider, soon};

const ROLE: &str = "SANDPOD_POOL_CLAIMS";
const NAMESPACE: &str = "SANDPOD_POOL_NAMESPACE";
const SIZE: u32 = 10;

/// Small Pods, of which the testbed's one node has room for many.
fn crowded(namespace: String) -> RawConfig {
    RawConfig {
        namespace,
        image: BUSYBOX.to_owned(),
        cpu_request: "1m".to_owned(),
        memory_request: "16Mi".to_owned(),
        memory_limit: "256Mi".to_owned(),
        ephemeral_storage_limit: "50Mi".to_owned(),
        startup_timeout_seconds: 300,
        warm_pool_size: SIZE,
        ..RawConfig::default()
    }
}

/// Starts this test binary as another process that creates `count` sandboxes from the same pool at once.
fn process(count: usize, namespace: &Namespace) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", "pools::processes::a_process_that_shares_the_pool", "--ignored", "--nocapture"]);
    command.env(ROLE, count.to_string()).env(NAMESPACE, &namespace.name);
    command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("this program can be run")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "other tests start it in a process of its own"]
async fn a_process_that_shares_the_pool() {
    let count: usize = std::env::var(ROLE).expect("the parent test sets the number").parse().unwrap();
    let kubeconfig = std::env::var_os("SANDPOD_TEST_KUBECONFIG").map(Into::into);
    let config = RawConfig { kubeconfig, ..crowded(std::env::var(NAMESPACE).unwrap()) };
    let provider = Provider::connect(config).await.unwrap();
    let creating = (0..count).map(|_| async {
        let handle = provider.get_or_create(SandboxRequest::default()).await.unwrap();
        let marker = execute(&handle, "echo $$ >> /workspace/marker; wc -l < /workspace/marker").await;
        let cold = provider.info(handle.id.as_str()).await.unwrap().cold_reason.is_some();
        println!("got {} {} {}", handle.pod, cold, marker.trim());
        std::mem::forget(handle);
    });
    join_all(creating).await;
    println!("done");
    // The test ends it, so that its refiller may be the one that is killed.
    std::future::pending::<()>().await;
}

/// A process's output: for each sandbox its Pod, whether it was cold, and how many clients had used it.
async fn got(process: &mut Child) -> Vec<(String, bool, String)> {
    // Borrowed, so that its later output has a reader.
    let mut lines = BufReader::new(process.stdout.as_mut().expect("it is piped")).lines();
    let mut got = Vec::new();
    loop {
        let line = lines.next_line().await.expect("it is read").expect("it goes on until it is done");
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["done"] => return got,
            ["got", pod, cold, count] => got.push((pod.to_owned(), cold == "true", count.to_owned())),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_clients_in_four_processes_never_share_a_pod_or_exceed_the_pool() {
    let namespace = Namespace::create().await;
    let census = Census::begin(&namespace);
    let filler = provider(&namespace, crowded(namespace.name.clone())).await;
    begin(&filler).await;
    full(&namespace, SIZE as usize).await;
    soon("closing", filler.close()).await;

    let mut processes = [13, 13, 12, 12].map(|count| process(count, &namespace));
    let all = join_all(processes.iter_mut().map(got));
    let all = tokio::time::timeout(Duration::from_secs(400), all).await.expect("creating hangs").concat();

    let pods: BTreeSet<_> = all.iter().map(|(pod, _, _)| pod).collect();
    assert_eq!((all.len(), pods.len()), (50, 50), "each has a Pod of its own");
    assert!(all.iter().all(|(_, _, count)| count == "1"), "two sandboxes got one Pod: {all:?}");
    let warm = all.iter().filter(|(_, cold, _)| !cold).count();
    assert!(warm >= SIZE as usize, "only {warm} were taken from the pool");
    pools_become(&namespace, "filling the pool", |pods| with_status(pods, "warm").len() == SIZE as usize)
        .await;
    let keeper = holder(Some(&lease(&namespace).await)).expect("one of them fills the pool");

    // Whichever process fills the pool, the last one alive takes over.
    let [first, second, third, _] = &mut processes;
    for process in [first, second, third] {
        process.kill().await.unwrap();
    }
    let victim = with_status(&pods_of_pools(&namespace).await, "warm")[0].clone();
    namespace
        .api::<Pod>()
        .delete(&victim.name_any(), &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    pools_become(&namespace, "filling the pool", |pods| {
        let warm = with_status(pods, "warm");
        warm.len() == SIZE as usize && warm.iter().all(|pod| pod.uid() != victim.uid())
    })
    .await;
    println!("{warm} of 50 were warm; the first to fill was {keeper}");

    assert_eq!(census.most(), SIZE as usize, "as many as wanted, and never more");
    for mut process in processes {
        process.kill().await.unwrap();
    }
    let cleaned = filler.cleanup(Some(Duration::ZERO)).await.unwrap();
    assert!(cleaned.deleted.len() >= 50, "{cleaned:?}");
    let name = lease(&namespace).await.name_any();
    let long_ago = json!({ "spec": { "renewTime": "2026-01-01T00:00:00.000000Z" } });
    let leases = namespace.api::<Lease>();
    leases.patch(&name, &PatchParams::default(), &Patch::Merge(&long_ago)).await.unwrap();
    finish(namespace, &[&filler]).await;
}
