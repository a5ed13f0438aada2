//! Creation, attachment, loss, recreation and deletion of sandboxes.

use sandpod::{ErrorKind, ExecuteOptions, OnLost, Provider, SandboxRequest};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{DeleteParams, ListParams};
use sandpod_testbed::calls::Calls;
use sandpod_testbed::{Namespace, wait_for, wait_until_none};

use crate::setup::{BUSYBOX, config, execute, provider, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_runs_commands_keeps_files_and_leaves_nothing() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.env.insert("GREETING".to_owned(), "hello".to_owned());
    let provider = provider(&namespace, config).await;

    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    assert!(handle.id.as_str().starts_with("sp-"));
    assert_eq!(handle.generation, 1);
    assert_eq!(
        execute(&handle, "echo $GREETING; pwd; echo $HOME; id -u").await,
        "hello\n/workspace\n/home/sandbox\n1000\n"
    );
    for place in ["/workspace", "/tmp", "/app", "/home/sandbox", "/large_tool_results"] {
        let path = format!("{place}/file");
        handle.sandbox.write(&path, "content").await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(handle.sandbox.download(&path, 100).await.unwrap(), "content");
    }
    let pods = namespace.api::<Pod>().list(&ListParams::default()).await.unwrap();
    assert!(
        !serde_json::to_string(&pods.items).unwrap().contains("GREETING"),
        "the environment is in the Pod"
    );

    soon("deleting", provider.delete(handle.id.as_str(), true)).await.unwrap();
    soon("deleting again", provider.delete(handle.id.as_str(), true)).await.unwrap();
    assert!(namespace.api::<Pod>().list(&ListParams::default()).await.unwrap().items.is_empty());
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_finds_the_sandbox_by_its_id() {
    let namespace = Namespace::create().await;
    let first = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let second = provider(&namespace, config(&namespace, BUSYBOX)).await;

    let made = soon("creating", first.get_or_create(SandboxRequest::default())).await.unwrap();
    made.sandbox.write("/workspace/note", "mine").await.unwrap();

    for found in [
        soon("reconnecting", second.reconnect(made.id.as_str())).await.unwrap(),
        soon("getting", second.get_or_create(SandboxRequest::of(made.id.as_str()))).await.unwrap(),
    ] {
        assert_eq!((&found.id, &found.pod, found.generation), (&made.id, &made.pod, 1));
        assert_eq!(execute(&found, "cat note").await, "mine");
    }

    first.delete(made.id.as_str(), true).await.unwrap();
    let error = second.reconnect(made.id.as_str()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let other = soon("creating", second.get_or_create(SandboxRequest::of(made.id.as_str()))).await.unwrap();
    assert_ne!(other.id, made.id, "a deleted sandbox must not come back under its id");
    second.delete(other.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creators_of_one_id_share_one_pod() {
    let namespace = Namespace::create().await;
    let providers = [
        provider(&namespace, config(&namespace, BUSYBOX)).await,
        provider(&namespace, config(&namespace, BUSYBOX)).await,
        provider(&namespace, config(&namespace, BUSYBOX)).await,
    ];

    let creating = providers.iter().map(|provider| provider.get_or_create(SandboxRequest::named("thread-1")));
    let handles = soon("creating", futures::future::try_join_all(creating)).await.unwrap();

    for handle in &handles {
        assert_eq!((handle.id.as_str(), &handle.pod), ("thread-1", &handles[0].pod));
        assert_eq!(execute(handle, "echo hello").await, "hello\n");
    }
    assert_eq!(namespace.api::<Pod>().list(&ListParams::default()).await.unwrap().items.len(), 1);
    providers[1].delete("thread-1", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_pod_is_recreated_for_the_owner_of_the_id_and_the_old_handle_fails() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let old = soon("creating", provider.get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();
    let pods = namespace.api::<Pod>();
    let name = old.pod.split('/').next_back().unwrap().to_owned();

    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    wait_for(&pods, &name, "be gone", |pod| pod.is_none()).await;

    let error = provider.reconnect("thread-1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let new = soon("recreating", provider.get_or_create(SandboxRequest::of("thread-1"))).await.unwrap();
    assert_eq!((new.id.as_str(), new.generation), ("thread-1", 2));
    assert_eq!(execute(&new, "echo hello").await, "hello\n");
    let error =
        soon("the old handle", old.sandbox.execute("true", ExecuteOptions::default())).await.unwrap_err();
    assert!(matches!(error, sandpod_client::Error::Gone { .. }), "{error}");
    assert!(error.to_string().contains(&format!("Pod '{name}' not found")), "{error}");

    provider.delete("thread-1", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_operations_work_in_an_empty_image() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, "sandpod.test/scratch:1")).await;

    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    handle.sandbox.write("/workspace/a", "one\n").await.unwrap();
    assert_eq!(handle.sandbox.download("/workspace/a", 100).await.unwrap(), "one\n");
    let listed = handle.sandbox.list("/workspace").await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");

    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_root_keeps_the_writable_directories_writable() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.read_only_root = true;
    let provider = provider(&namespace, config).await;

    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    assert_eq!(execute(&handle, "echo x > /tmp/x && echo x > /workspace/x && echo fine").await, "fine\n");
    let refused = execute(&handle, "touch /x").await;
    assert!(refused.contains("Read-only file system"), "{refused}");

    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_creation_leaves_no_objects() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;

    let creating = {
        let provider = provider.clone();
        tokio::spawn(async move { provider.get_or_create(SandboxRequest::named("thread-1")).await.map(drop) })
    };
    let pods = namespace.api::<Pod>();
    wait_for(&pods, "thread-1-1", "exist", |pod| pod.is_some()).await;
    creating.abort();

    wait_until_none(&namespace.api::<Lease>()).await;
    wait_until_none(&pods).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_caller_gets_the_sandbox_although_its_creator_was_cancelled() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let create = || {
        let provider = provider.clone();
        tokio::spawn(async move { provider.get_or_create(SandboxRequest::named("thread-1")).await })
    };

    let first = create();
    wait_for(&namespace.api::<Pod>(), "thread-1-1", "exist", |pod| pod.is_some()).await;
    let second = create();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    first.abort();

    let handle = soon("the second", second).await.unwrap().unwrap();
    assert_eq!(execute(&handle, "sleep 1; echo hello").await, "hello\n");
    provider.delete("thread-1", true).await.unwrap();
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_creation_does_not_delete_a_sandbox_that_others_use() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();

    for milliseconds in [1, 10, 30, 60, 100] {
        let limit = std::time::Duration::from_millis(milliseconds);
        let _ = tokio::time::timeout(limit, provider.get_or_create(SandboxRequest::named("thread-1"))).await;
    }

    assert_eq!(execute(&handle, "sleep 1; echo hello").await, "hello\n");
    provider.delete("thread-1", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_the_anchor_by_hand_deletes_the_pod() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    let leases = namespace.api::<Lease>();
    let lease = leases.get(handle.id.as_str()).await.unwrap();
    assert_eq!(lease.labels()["sandpod.dev/id"], handle.id.as_str());

    leases.delete(handle.id.as_str(), &DeleteParams::default()).await.unwrap();

    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_sandbox_ends_by_itself_and_its_id_is_reusable() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.ttl_seconds = Some(3);
    let provider = provider(&namespace, config).await;
    let old = soon("creating", provider.get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();

    wait_for(&namespace.api::<Pod>(), "thread-1-1", "end", |pod| {
        let status = pod.and_then(|pod| pod.status.as_ref());
        status.is_some_and(|status| status.phase.as_deref() == Some("Succeeded"))
    })
    .await;

    let error =
        soon("the old handle", old.sandbox.execute("true", ExecuteOptions::default())).await.unwrap_err();
    assert!(error.to_string().contains("Pod 'thread-1-1' has ended"), "{error}");
    let error = provider.reconnect("thread-1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let new = soon("recreating", provider.get_or_create(SandboxRequest::of("thread-1"))).await.unwrap();
    assert_eq!(new.generation, 2);

    provider.delete("thread-1", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_on_lost_error_a_sandbox_is_created_once_and_its_loss_is_an_error() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let request = SandboxRequest { on_lost: OnLost::Error, ..SandboxRequest::named("mortal") };

    let made = soon("creating", provider.get_or_create(request.clone())).await.unwrap();
    assert_eq!(execute(&made, "echo alive").await, "alive\n");
    let found = soon("finding", provider.get_or_create(request.clone())).await.unwrap();
    assert_eq!((&found.pod, found.generation), (&made.pod, 1));

    let pods = namespace.api::<Pod>();
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await.unwrap();
    wait_until_none(&pods).await;
    let error = soon("finding it lost", provider.get_or_create(request)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("Sandbox 'mortal' may have been deleted"), "{error}");
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty(), "nothing took its place");
    provider.delete("mortal", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_a_provider_sends_no_request_until_a_sandbox_is_requested() {
    let namespace = Namespace::create().await;
    let (client, calls) = Calls::of(namespace.raw().await);
    let provider = Provider::with_client(client, config(&namespace, BUSYBOX)).unwrap();
    assert!(calls.all().is_empty(), "{:?}", calls.all());
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    assert_eq!((calls.count("POST leases"), calls.count("GET pods/exec")), (1, 1));
    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}
