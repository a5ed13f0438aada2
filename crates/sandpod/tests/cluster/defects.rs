//! Defects of earlier packages, each shown to be absent on a cluster. docs/acceptance.md maps the tests to the defects.

use std::io::Cursor;
use std::time::Duration;

use futures::StreamExt as _;
use sandpod::{ErrorKind, ListOptions, Provider, SandboxRequest, Status};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::kube::api::{WatchEvent, WatchParams};
use sandpod_testbed::{Namespace, PATIENCE};
use serde_json::json;
use tokio::time::timeout;

use crate::setup::{BUSYBOX, config, execute, provider, soon};

#[tokio::test(flavor = "multi_thread")]
async fn path_is_never_interpreted_by_a_shell() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    let sandbox = &handle.sandbox;

    for name in ["x$(touch pwned)", "x`touch pwned`", "a b", "*", "\"; touch pwned; \"", "-rf", "a..b", "é\n"]
    {
        let path = format!("/workspace/dir {name}/{name}");
        sandbox.write(&path, name).await.unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(sandbox.download(&path, 100).await.unwrap(), name);
        sandbox.upload(&path, Cursor::new("again")).await.unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(sandbox.download(&path, 100).await.unwrap(), "again");
    }
    assert_eq!(
        execute(&handle, "ls -d /workspace/dir* | grep -c . ; find / -name pwned 2>/dev/null").await,
        "8\n"
    );
    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn download_returns_the_whole_file_by_any_path_and_rejects_a_directory() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    let sandbox = &handle.sandbox;
    execute(&handle, "mkdir -p dir; head -c 12000000 /dev/urandom > dir/file; ln -s dir/file link").await;
    let sum = execute(&handle, "sha256sum < dir/file").await;

    for path in ["/workspace/dir/file", "/workspace/link", "/workspace//dir/../dir/./file"] {
        let content =
            sandbox.download(path, 16 << 20).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(content.len(), 12_000_000, "{path}");
        sandbox.upload("/workspace/copy", Cursor::new(content)).await.unwrap();
        assert_eq!(execute(&handle, "sha256sum < copy").await, sum, "{path}");
    }
    let error = sandbox.download("/workspace/dir", 100).await.unwrap_err();
    assert!(error.to_string().contains("director"), "{error}");
    let error = sandbox.download("/workspace/dir/file", 100).await.unwrap_err();
    assert!(error.to_string().contains("12000000"), "the error does not name the size: {error}");
    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_file_operations_and_cluster_calls_run_concurrently() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();

    let all = (0..40).map(|number| {
        let (provider, handle) = (&provider, &handle);
        async move {
            let path = format!("/workspace/{number}");
            handle.sandbox.write(&path, format!("{number}")).await.unwrap();
            assert_eq!(execute(handle, &format!("cat {number}")).await, number.to_string());
            assert_eq!(provider.info(handle.id.as_str()).await.unwrap().status, Status::Running);
            assert_eq!(provider.list(ListOptions::default()).await.unwrap().sandboxes.len(), 1);
        }
    });
    soon("all of it", futures::future::join_all(all)).await;

    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_request_is_not_reported_as_an_empty_list_or_a_missing_sandbox() {
    let namespace = Namespace::create().await;
    let unprivileged =
        Provider::with_client(namespace.without_permissions().await, config(&namespace, BUSYBOX)).unwrap();

    let errors = [
        unprivileged.list(ListOptions::default()).await.map(drop).unwrap_err(),
        unprivileged.reconnect("thread-1").await.map(drop).unwrap_err(),
        unprivileged.delete("thread-1", true).await.unwrap_err(),
        unprivileged.cleanup(None).await.map(drop).unwrap_err(),
        unprivileged.stats(Duration::ZERO).await.map(drop).unwrap_err(),
        unprivileged.info("thread-1").await.map(drop).unwrap_err(),
    ];

    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("deploy/rbac/raw.yaml"), "{error}");
    }
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deny_all_policy_exists_before_the_pod_and_selects_it() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let pods = namespace.api::<Pod>();
    let mut births = Box::pin(pods.watch(&WatchParams::default(), "0").await.unwrap());

    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();

    let born = async {
        loop {
            if let WatchEvent::Added(pod) = births.next().await.unwrap().unwrap() {
                return pod;
            }
        }
    };
    let pod = timeout(PATIENCE, born).await.expect("the Pod's birth is seen");
    let policy: NetworkPolicy = namespace.api().get("sandpod-deny-all").await.unwrap();
    assert!(policy.metadata.creation_timestamp <= pod.metadata.creation_timestamp);
    let label = pod.metadata.labels.unwrap()["sandpod.dev/network"].clone();
    let spec = serde_json::to_value(policy.spec.unwrap()).unwrap();
    assert_eq!(spec["podSelector"], json!({ "matchLabels": { "sandpod.dev/network": label } }));
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
    assert!(spec.get("ingress").is_none() && spec.get("egress").is_none(), "{spec}");
    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_has_a_shell_both_outputs_and_the_files_of_other_calls() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();

    let line =
        "echo hi | tr a-z A-Z > /app/file && cat /app/file; echo problem >&2; false || echo $((1 + 1))";
    assert_eq!(execute(&handle, line).await, "HI\nproblem\n2\n");
    assert_eq!(handle.sandbox.download("/app/file", 100).await.unwrap(), "HI\n");
    handle.sandbox.write("/app/other", "written").await.unwrap();
    assert_eq!(execute(&handle, "cat /app/other").await, "written");
    for path in ["file", "./file", "app/file", ""] {
        let error = handle.sandbox.write(path, "x").await.unwrap_err();
        assert!(error.to_string().contains("absolute"), "{path:?}: {error}");
    }
    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}
