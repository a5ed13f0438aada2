//! A namespace for each sandbox, with only the RBAC that we ship for it.

use std::time::Duration;

use sandpod::{ErrorKind, ListOptions, Provider, RawConfig, SandboxHandle, SandboxRequest, Status};
use sandpod_kube::k8s_openapi::api::core::v1::{Namespace as KubeNamespace, Pod, ResourceQuota};
use sandpod_kube::kube::api::{DeleteParams, PostParams};
use sandpod_kube::kube::{Api, Client, ResourceExt};
use sandpod_testbed::{Namespace, from_json, wait_for};
use serde_json::json;

use crate::setup::{BUSYBOX, config, execute, soon};

fn per_sandbox(namespace: &Namespace) -> RawConfig {
    RawConfig { namespace_per_sandbox: true, ..config(namespace, BUSYBOX) }
}

/// Ids are names of namespaces, so they must be unique among all tests.
fn id(namespace: &Namespace, name: &str) -> String {
    format!("{name}-{}", namespace.name.trim_start_matches("sandpod-test-"))
}

fn home(handle: &SandboxHandle) -> (String, String) {
    let (namespace, pod) = handle.pod.split_once('/').expect("a Pod has a namespace");
    (namespace.to_owned(), pod.to_owned())
}

fn provider(client: Client, config: RawConfig) -> Provider {
    Provider::with_client(client, config).expect("the configuration is usable")
}

async fn is_gone(namespaces: &Api<KubeNamespace>, name: &str) {
    wait_for(namespaces, name, "be gone", |namespace| namespace.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_of_a_sandbox_is_created_and_deleted_with_it() {
    let namespace = Namespace::create().await;
    let client = namespace.raw_namespaces().await;
    let first = provider(client.clone(), per_sandbox(&namespace));
    let second = provider(client, per_sandbox(&namespace));
    let namespaces: Api<KubeNamespace> = Api::all(namespace.admin.clone());

    let made = soon("creating", first.get_or_create(SandboxRequest::default())).await.unwrap();
    assert_eq!(execute(&made, "echo hello > note; cat note").await, "hello\n");
    let (name, pod) = home(&made);
    assert_eq!(name, format!("sandpod-{}", made.id));
    let labels = namespaces.get(&name).await.unwrap().labels().clone();
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "restricted");
    let quotas: Api<ResourceQuota> = Api::namespaced(namespace.admin.clone(), &name);
    let hard = quotas.get("sandpod").await.unwrap().spec.unwrap().hard.unwrap();
    assert_eq!((hard["pods"].0.as_str(), hard["limits.memory"].0.as_str()), ("1", "256Mi"));
    assert!(hard.contains_key("requests.cpu") && hard.contains_key("limits.cpu"), "{hard:?}");

    let found = soon("reconnecting", second.reconnect(made.id.as_str())).await.unwrap();
    assert_eq!((&found.pod, execute(&found, "cat note").await.as_str()), (&made.pod, "hello\n"));

    let pods: Api<Pod> = Api::namespaced(namespace.admin.clone(), &name);
    pods.delete(&pod, &DeleteParams::default()).await.unwrap();
    let new = soon("recreating", second.get_or_create(SandboxRequest::of(made.id.as_str()))).await.unwrap();
    assert_eq!((new.id.as_str(), home(&new).0), (made.id.as_str(), name.clone()));
    assert!(new.generation > made.generation);

    soon("deleting", first.delete(made.id.as_str(), true)).await.unwrap();
    assert!(namespaces.get_opt(&name).await.unwrap().is_none(), "deleting returned before all was gone");
    soon("deleting again", first.delete(made.id.as_str(), true)).await.unwrap();
    let error = second.reconnect(made.id.as_str()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creators_of_one_id_share_one_namespace() {
    let namespace = Namespace::create().await;
    let client = namespace.raw_namespaces().await;
    let providers = [(); 4].map(|()| provider(client.clone(), per_sandbox(&namespace)));
    let id = id(&namespace, "thread");

    let creating = providers.iter().map(|provider| provider.get_or_create(SandboxRequest::named(&id)));
    let handles = soon("creating", futures::future::try_join_all(creating)).await.unwrap();

    for handle in &handles {
        assert_eq!((handle.id.as_str(), &handle.pod), (id.as_str(), &handles[0].pod));
        assert_eq!(execute(handle, "echo hello").await, "hello\n");
    }
    soon("deleting", providers[3].delete(&id, true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_with_their_own_namespaces_are_listed_counted_and_cleaned_up() {
    let namespace = Namespace::create().await;
    let client = namespace.raw_namespaces().await;
    let provider = provider(client, per_sandbox(&namespace));
    let namespaces: Api<KubeNamespace> = Api::all(namespace.admin.clone());
    let labelled = |name: &str, ttl: Option<Duration>| SandboxRequest {
        labels: [("team".to_owned(), name.to_owned())].into(),
        ttl,
        ..SandboxRequest::default()
    };

    let blue = soon("creating", provider.get_or_create(labelled("blue", None))).await.unwrap();
    let short = labelled("red team", Some(Duration::from_secs(2)));
    let red = soon("creating", provider.get_or_create(short)).await.unwrap();
    // As if its creator had been killed right after creating it.
    let empty = id(&namespace, "empty");
    let orphan = from_json(json!({ "metadata": { "name": format!("sandpod-{empty}"), "labels": {
        "app.kubernetes.io/managed-by": "sandpod", "sandpod.dev/id": empty, "sandpod.dev/parent": namespace.name,
    }}}));
    namespaces.create(&PostParams::default(), &orphan).await.unwrap();

    let mut listed = provider.list(ListOptions::default()).await.unwrap().sandboxes;
    listed.sort_by_key(|info| info.status == Status::Pending);
    assert_eq!(listed.len(), 3);
    assert_eq!((listed[2].id.as_str(), listed[2].status), (empty.as_str(), Status::Pending));
    let team =
        ListOptions { labels: [("team".to_owned(), "blue".to_owned())].into(), ..ListOptions::default() };
    let found = provider.list(team).await.unwrap().sandboxes;
    assert_eq!(found.len(), 1);
    assert_eq!(
        (&found[0].id, found[0].status, &found[0].namespace),
        (&blue.id, Status::Running, &home(&blue).0)
    );
    assert_eq!(provider.stats(Duration::from_secs(300)).await.unwrap().total, 3);

    let pods: Api<Pod> = Api::namespaced(namespace.admin.clone(), &home(&red).0);
    wait_for(&pods, &home(&red).1, "end", |pod| {
        pod.and_then(|pod| pod.status.as_ref())
            .is_some_and(|status| status.phase.as_deref() == Some("Succeeded"))
    })
    .await;
    let cleaned = soon("cleaning", provider.cleanup(None)).await.unwrap();
    assert_eq!((&cleaned.deleted[..], cleaned.kept), (&[red.id.clone()][..], 2));
    is_gone(&namespaces, &home(&red).0).await;
    assert_eq!(execute(&blue, "echo hello").await, "hello\n");

    for id in [blue.id.as_str(), &empty] {
        soon("deleting", provider.delete(id, true)).await.unwrap();
    }
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_or_cancelled_creation_leaves_no_namespace() {
    let namespace = Namespace::create().await;
    let client = namespace.raw_namespaces().await;
    let namespaces: Api<KubeNamespace> = Api::all(namespace.admin.clone());

    let failing = RawConfig { image: "Not An Image".to_owned(), ..per_sandbox(&namespace) };
    let (failing, failed) = (provider(client.clone(), failing), id(&namespace, "failing"));
    let error = soon("creating", failing.get_or_create(SandboxRequest::named(&failed))).await.unwrap_err();
    assert!(error.to_string().contains("InvalidImageName"), "{error}");

    let (given_up, leaving) = (id(&namespace, "given-up"), provider(client, per_sandbox(&namespace)));
    let creating = {
        let id = given_up.clone();
        tokio::spawn(async move { leaving.get_or_create(SandboxRequest::named(&id)).await.map(drop) })
    };
    let name = format!("sandpod-{given_up}");
    wait_for(&namespaces, &name, "exist", |namespace| namespace.is_some()).await;
    creating.abort();

    is_gone(&namespaces, &name).await;
    is_gone(&namespaces, &format!("sandpod-{failed}")).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_not_ours_is_neither_used_nor_deleted() {
    let namespace = Namespace::create().await;
    let provider = provider(namespace.raw_namespaces().await, per_sandbox(&namespace));
    let namespaces: Api<KubeNamespace> = Api::all(namespace.admin.clone());
    let id = id(&namespace, "foreign");
    let name = format!("sandpod-{id}");
    let foreign = from_json(json!({ "metadata": { "name": name } }));
    namespaces.create(&PostParams::default(), &foreign).await.unwrap();

    for error in [
        provider.get_or_create(SandboxRequest::named(&id)).await.unwrap_err(),
        provider.reconnect(&id).await.unwrap_err(),
        provider.delete(&id, true).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert!(error.to_string().contains(&name), "{error}");
    }

    namespaces.delete(&name, &DeleteParams::default()).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_names_the_role_for_namespaces_when_only_that_for_one_is_bound() {
    let namespace = Namespace::create().await;
    let provider = provider(namespace.raw().await, per_sandbox(&namespace));

    let error = provider.get_or_create(SandboxRequest::default()).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("deploy/rbac/raw-namespaces.yaml"), "{error}");
    namespace.finish().await;
}
