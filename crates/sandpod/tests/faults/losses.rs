//! A handle reports that its Pod is lost, and the owner of the id gets a new one.

use std::time::Duration;

use sandpod::{ErrorKind, ExecuteOptions, Network, RawConfig, SandboxHandle, SandboxPolicy, SandboxRequest};
use sandpod_client::{Error as ClientError, Notice};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{DeleteParams, ListParams};
use sandpod_testbed::{Namespace, wait_for, wait_until_none};
use tokio::time::timeout;

use crate::calm;
use crate::driver::kill_guest;
use crate::setup::{BUSYBOX, config, execute, provider, soon};

/// How long a handle may take to detect that its Pod is gone.
const QUICKLY: Duration = Duration::from_secs(10);
const CREATORS: usize = 8;

/// The error of a handle whose Pod is gone.
async fn gone(handle: &SandboxHandle) -> String {
    let call = handle.sandbox.execute("true", ExecuteOptions::default());
    match timeout(QUICKLY, call).await.expect("a lost Pod is reported quickly") {
        Err(error @ ClientError::Gone { .. }) => error.to_string(),
        other => panic!("the Pod is gone, but the call returned {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn call_fails_with_the_reason_when_its_pod_is_deleted_and_the_id_is_reusable() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let old = soon("creating", provider.get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();
    let running = {
        let sandbox = old.sandbox.clone();
        tokio::spawn(async move { sandbox.execute("touch begun; sleep 60", ExecuteOptions::default()).await })
    };
    execute(&old, "until [ -e begun ]; do sleep 0.05; done").await;

    let pods = namespace.api::<Pod>();
    pods.delete("thread-1-1", &DeleteParams::default()).await.unwrap();

    let cut_off = timeout(QUICKLY, running).await.expect("a call in a deleted Pod ends quickly").unwrap();
    // A terminated guest ends its commands, and may still report their exit.
    let is_announced = match &cut_off {
        Ok(executed) => executed.exit_code == Some(143),
        Err(error) => matches!(error, ClientError::Gone { .. }),
    };
    assert!(is_announced, "{cut_off:?}");
    wait_for(&pods, "thread-1-1", "be gone", |pod| pod.is_none()).await;
    let said = gone(&old).await;
    assert!(said.contains("Pod 'thread-1-1'"), "{said}");
    let new = soon("recreating", provider.get_or_create(SandboxRequest::of("thread-1"))).await.unwrap();
    assert_eq!((new.id.as_str(), new.generation), ("thread-1", 2));
    assert_eq!(execute(&new, "ls").await, "", "the files of the lost Pod can't be there");
    soon("deleting", provider.delete("thread-1", true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_the_lease_deletes_the_pod_and_the_handle_reports_it() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();

    namespace.api::<Lease>().delete("thread-1", &DeleteParams::default()).await.unwrap();
    wait_until_none(&namespace.api::<Pod>()).await;

    let said = gone(&handle).await;
    assert!(said.contains("Pod 'thread-1-1' not found"), "{said}");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_takes_all_memory_is_killed_and_reported_and_files_survive() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.memory_limit = "64Mi".to_owned();
    let provider = provider(&namespace, config).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    handle.sandbox.write("/workspace/note", "mine").await.unwrap();

    // An endless line, which tail must keep in memory.
    let greedy = handle.sandbox.execute("exec tail -n 1 /dev/zero", ExecuteOptions::default());
    let greedy = soon("the greedy command", greedy).await;

    let next = handle.sandbox.execute("cat note", ExecuteOptions::default());
    let next = soon("the next command", next).await.unwrap();
    assert_eq!(next.output, "mine");
    match greedy {
        Ok(executed) => assert_eq!(executed.exit_code, Some(137), "{executed:?}"),
        Err(ClientError::OutcomeUnknown { .. }) => assert_eq!(next.notices, [Notice::GuestRestarted]),
        Err(error) => panic!("{error}"),
    }
    soon("deleting", provider.delete(handle.id.as_str(), true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_guest_has_its_binding_and_does_not_repeat_the_lost_command() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.env.insert("GREETING".to_owned(), "hello".to_owned());
    let provider = provider(&namespace, config).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();
    let pod = namespace.api::<Pod>().get("thread-1-1").await.unwrap();
    let running = {
        let sandbox = handle.sandbox.clone();
        let line = "echo begun >> log; sleep 60";
        tokio::spawn(async move { sandbox.execute(line, ExecuteOptions::default()).await })
    };
    execute(&handle, "until [ -s log ]; do sleep 0.05; done").await;

    kill_guest(&pod.uid().unwrap()).await;

    let lost = soon("the command that was lost", running).await.unwrap();
    assert!(matches!(lost, Err(ClientError::OutcomeUnknown { .. })), "{lost:?}");
    let next = handle.sandbox.execute("echo $GREETING; cat log", ExecuteOptions::default());
    let next = soon("the next command", next).await.unwrap();
    assert_eq!(next.output, "hello\nbegun\n");
    assert_eq!(next.notices, [Notice::GuestRestarted]);
    soon("deleting", provider.delete("thread-1", true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_survives_deletion_of_the_state_file_and_a_restart() {
    const TALK: &str = "nc 127.0.0.1 9 2>&1; true";
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let bound = config(&namespace, BUSYBOX);
    let policy = SandboxPolicy { network: Some(Network::None), ..SandboxPolicy::default() };
    let owner = provider(&namespace, RawConfig { policy: Some(policy), ..bound.clone() }).await;
    let other = provider(&namespace, bound).await;
    let handle = soon("creating", owner.get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();
    let pod = namespace.api::<Pod>().get("thread-1-1").await.unwrap();
    let refused = execute(&handle, TALK).await;
    assert!(!refused.contains("Connection refused"), "there is no network: {refused}");
    execute(&handle, "rm /run/sandpod/binding").await;

    kill_guest(&pod.uid().unwrap()).await;

    // A client that has not bound the sandbox to the policy can neither use nor bind it.
    let error = soon("finding it", other.reconnect("thread-1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.message().contains("no longer has the policy"), "{error}");
    assert_eq!(execute(&handle, TALK).await, refused, "the handle binds it as before");
    let found = soon("finding it", other.reconnect("thread-1")).await.unwrap();
    assert_eq!(execute(&found, TALK).await, refused);
    soon("deleting", owner.delete("thread-1", true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_creators_of_one_id_share_one_pod_of_one_generation() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let mut providers = Vec::new();
    for _ in 0..CREATORS {
        providers.push(provider(&namespace, config(&namespace, BUSYBOX)).await);
    }

    let creating = providers.iter().map(|provider| provider.get_or_create(SandboxRequest::named("thread-1")));
    let handles = soon("creating", futures::future::try_join_all(creating)).await.unwrap();

    for handle in &handles {
        assert_eq!((handle.pod.as_str(), handle.generation), (handles[0].pod.as_str(), 1));
        execute(handle, "echo here >> log").await;
    }
    assert_eq!(execute(&handles[0], "cat log").await, "here\n".repeat(CREATORS));
    assert_eq!(namespace.api::<Pod>().list(&ListParams::default()).await.unwrap().items.len(), 1);
    soon("deleting", providers[0].delete("thread-1", true)).await.unwrap();
    namespace.finish().await;
}
