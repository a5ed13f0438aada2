//! Guest delivery: the first delivery that the cluster permits is used, and `info()` names it.

use std::time::Duration;

use sandpod::{ErrorKind, GuestDelivery, Provider, SandboxInfo, SandboxRequest};
use sandpod_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod};
use sandpod_kube::k8s_openapi::api::rbac::v1::Role;
use sandpod_kube::kube::api::{ListParams, Patch, PatchParams};
use sandpod_kube::kube::{self, Api, Client, ResourceExt};
use sandpod_testbed::{Namespace, PATIENCE, wait_for};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::setup::{BUSYBOX, config, execute, provider, soon};

/// The image of the present guest, which `cargo xtask test` imports into the testbed.
const GUEST: &str = "sandpod.test/guest:1";

/// Creates a sandbox, uses it for commands and files, also from another process, and returns its info.
async fn works(namespace: &Namespace, provider: &Provider) -> SandboxInfo {
    let handle =
        soon("creating", provider.get_or_create(SandboxRequest::default())).await.expect("it is made");
    assert_eq!(execute(&handle, "echo hello > file; id -u; pwd").await, "1000\n/workspace\n");
    let again = provider.reconnect(handle.id.as_str()).await.expect("it is found");
    let read = again.sandbox.read_range("/workspace/file", 0, 100).await.expect("it is read");
    assert_eq!(&read[..], b"hello\n");
    let info = provider.info(handle.id.as_str()).await.expect("it is known");
    provider.delete(handle.id.as_str(), true).await.expect("it is deleted");
    let left = namespace.api::<Pod>().list(&ListParams::default()).await.expect("Pods are listed");
    assert!(left.items.is_empty());
    info
}

async fn guest_maps(namespace: &Namespace) -> usize {
    let maps = namespace.api::<ConfigMap>().list(&ListParams::default()).await.expect("maps are listed");
    maps.iter().filter(|map| map.name_any().starts_with("sandpod-guest-")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_from_an_image_needs_no_config_map() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.guest_image = Some(GUEST.to_owned());
    let provider = provider(&namespace, config).await;

    let info = works(&namespace, &provider).await;

    assert_eq!((info.guest_delivery, info.guest_delivery_reason), (Some(GuestDelivery::Image), None));
    assert_eq!(guest_maps(&namespace).await, 0);
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_comes_from_config_maps_if_its_image_cannot_be_pulled() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.guest_image = Some("sandpod.test/nosuch:1".to_owned());
    config.image_pull_policy = "Never".to_owned();
    let provider = provider(&namespace, config).await;

    let info = works(&namespace, &provider).await;

    assert_eq!(info.guest_delivery, Some(GuestDelivery::ConfigMap));
    let why = info.guest_delivery_reason.unwrap();
    assert!(why.starts_with("image: ") && why.contains("sandpod.test/nosuch:1"), "{why}");
    assert!(guest_maps(&namespace).await > 0);
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_comes_from_config_maps_if_the_guest_image_has_none() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.guest_image = Some(BUSYBOX.to_owned());
    let provider = provider(&namespace, config).await;

    let info = works(&namespace, &provider).await;

    assert_eq!(info.guest_delivery, Some(GuestDelivery::ConfigMap));
    let why = info.guest_delivery_reason.unwrap();
    assert!(why.starts_with("image: ") && why.contains("/boot"), "{why}");
    namespace.finish().await;
}

/// A client of the raw role without the right to `ConfigMaps`.
async fn without_config_maps(namespace: &Namespace) -> Client {
    let client = namespace.raw().await;
    let roles = namespace.api::<Role>();
    let mut role = roles.get("sandpod-raw").await.expect("the role is there");
    let granted = role.rules.as_mut().expect("it grants something");
    granted.retain(|rule| rule.resources.iter().flatten().all(|resource| resource != "configmaps"));
    let patch = Patch::Merge(json!({ "rules": granted }));
    roles.patch("sandpod-raw", &PatchParams::default(), &patch).await.expect("the admin changes it");
    let maps: Api<ConfigMap> = Api::namespaced(namespace.raw().await, &namespace.name);
    let forgotten = async {
        // The API server applies a changed role after a moment, and offers nothing to watch for it.
        while !matches!(maps.get("any").await, Err(kube::Error::Api(status)) if status.code == 403) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, forgotten).await.expect("the right is taken away");
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_is_pushed_where_config_maps_are_forbidden() {
    let namespace = Namespace::create().await;
    let client = without_config_maps(&namespace).await;
    let provider = Provider::with_client(client, config(&namespace, BUSYBOX)).unwrap();

    let info = works(&namespace, &provider).await;

    assert_eq!(info.guest_delivery, Some(GuestDelivery::Push));
    let why = info.guest_delivery_reason.unwrap();
    assert!(why.starts_with("config-map: ") && why.contains("configmaps"), "{why}");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_guest_restarts_after_a_crash_with_its_files() {
    let namespace = Namespace::create().await;
    let client = without_config_maps(&namespace).await;
    let provider = Provider::with_client(client, config(&namespace, BUSYBOX)).unwrap();
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    execute(&handle, "echo kept > /workspace/file").await;

    // From outside, because a command in the sandbox may lack the permission.
    let pod = handle.pod.split('/').next_back().unwrap();
    let pod = sandpod_kube::exec::PodRef::new(&namespace.name, pod);
    let kill = ["sh", "-c", "kill -9 $(pidof sandpod-guest)"];
    sandpod_kube::exec::run(&namespace.admin, &pod, kill, None, 1024).await.unwrap();

    assert_eq!(&handle.sandbox.read_range("/workspace/file", 0, 100).await.unwrap()[..], b"kept\n");
    assert_eq!(execute(&handle, "echo alive").await, "alive\n");
    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_push_names_what_the_image_lacks() {
    let namespace = Namespace::create().await;
    let client = without_config_maps(&namespace).await;
    let mut config = config(&namespace, "sandpod.test/scratch:1");
    config.command = vec!["/pause".to_owned()];
    let provider = Provider::with_client(client, config).unwrap();

    let error = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::StartFailed, "{error}");
    for part in ["can't be pushed", "an image with sh", "guest_image"] {
        assert!(error.to_string().contains(part), "{part} is not in: {error}");
    }
    sandpod_testbed::wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_of_a_pushed_guest_ends_when_it_expires() {
    let namespace = Namespace::create().await;
    let client = without_config_maps(&namespace).await;
    let provider = Provider::with_client(client, config(&namespace, BUSYBOX)).unwrap();
    let request = SandboxRequest { ttl: Some(Duration::from_secs(2)), ..SandboxRequest::default() };
    let handle = soon("creating", provider.get_or_create(request)).await.unwrap();

    let pod = handle.pod.split('/').next_back().unwrap();
    wait_for(&namespace.api(), pod, "be Succeeded", |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.as_ref());
        status.and_then(|status| status.phase.as_deref()) == Some("Succeeded")
    })
    .await;

    assert_eq!(provider.info(handle.id.as_str()).await.unwrap().status, sandpod::Status::Terminated);
    assert_eq!(provider.cleanup(None).await.unwrap().deleted, [handle.id]);
    sandpod_testbed::wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}
