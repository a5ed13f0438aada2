//! A node drain evicts the agent's process and its sandbox: the next process to ask for the sandbox gets a report of
//! the lost files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use sandpod::Provider;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{EvictParams, ListParams};
use sandpod_testbed::agent_sandbox::clear;
use sandpod_testbed::{Namespace, wait_for};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use crate::calm;
use crate::clients::{ID, client};
use crate::creation::{claiming, template};
use crate::setup::{BUSYBOX, config, provider, soon};

/// The result that a client prints.
async fn result(client: &mut Child) -> String {
    let mut lines = BufReader::new(client.stdout.as_mut().expect("its output is read")).lines();
    let reading = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("the client prints its result");
            if let Some((_, result)) = line.split_once("client result: ") {
                return result.to_owned();
            }
        }
    };
    soon("the client", reading).await
}

/// Runs a client until it has printed its result, then kills it.
async fn run_and_kill(role: &str, namespace: &Namespace) -> String {
    let mut client = client(role, namespace);
    let result = result(&mut client).await;
    client.kill().await.unwrap();
    result
}

/// Runs a client to its end.
async fn run(role: &str, namespace: &Namespace) -> String {
    let mut client = client(role, namespace);
    let result = result(&mut client).await;
    assert!(soon("the client", client.wait()).await.unwrap().success());
    result
}

/// Evicts the only Pod of the namespace, as `kubectl drain` does.
async fn evict(namespace: &Namespace) {
    let pods = namespace.api::<Pod>();
    let found = pods.list(&ListParams::default()).await.unwrap().items;
    let [pod] = &found[..] else { panic!("one sandbox has one Pod: {found:?}") };
    let (name, uid) = (pod.name_any(), pod.uid());
    pods.evict(&name, &EvictParams::default()).await.unwrap();
    wait_for(&pods, &name, "be evicted", |pod| pod.is_none_or(|pod| pod.uid() != uid)).await;
}

/// Kills a process that wrote a file, evicts its sandbox, and checks what the next processes get.
async fn drain(write: &str, attach: &str, namespace: &Namespace) {
    assert_eq!(run_and_kill(write, namespace).await, "written");
    evict(namespace).await;

    // A process that is killed before its first call has reported nothing.
    assert_eq!(run_and_kill(attach, namespace).await, "generation 2");
    assert_eq!(run(write, namespace).await, "files lost", "the first call reports the loss");
    assert_eq!(run(write, namespace).await, "written", "a loss is reported once");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_drain_the_first_call_of_a_new_process_reports_lost_files() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;

    drain("write", "attach", &namespace).await;

    soon("deleting", provider.delete(ID, true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_drain_the_first_call_on_a_claim_reports_lost_files() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    template(&namespace, |_| ()).await;
    let provider = Provider::agent_sandbox_with_client(namespace.agent_sandbox().await, claiming(&namespace));
    let provider = provider.unwrap();

    drain("claim-write", "claim-attach", &namespace).await;

    soon("deleting", provider.delete(ID, true)).await.unwrap();
    provider.cleanup(None).await.unwrap();
    clear(&namespace).await;
    namespace.finish().await;
}
