//! Contents that an image has in writable directories are copied into the sandbox; other images pay nothing for it.

use sandpod::{Provider, RawConfig, SandboxHandle, SandboxRequest};
use sandpod_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod};
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{DeleteParams, ListParams, PostParams};
use sandpod_testbed::{Namespace, from_json};
use serde_json::json;

use crate::setup::{BUSYBOX, config, execute, provider, soon};

/// Python's image has files in `/etc/skel`, links in `/etc/alternatives` and a `/root` that only root may read.
fn with_filled_places(namespace: &Namespace) -> RawConfig {
    let mut config = config(namespace, "sandpod.test/python:1");
    let dirs = ["/workspace", "/etc/skel", "/etc/alternatives", "/root", "/var/lib/dpkg/info"];
    config.writable_dirs = dirs.map(str::to_owned).to_vec();
    config
}

async fn create(provider: &Provider) -> SandboxHandle {
    soon("creating", provider.get_or_create(SandboxRequest::default())).await.expect("a sandbox can be made")
}

/// Whether the sandbox's Pod copied contents.
async fn copied(namespace: &Namespace, handle: &SandboxHandle) -> bool {
    let name = handle.pod.split('/').next_back().expect("it has a Pod");
    let pod: Pod = namespace.api().get(name).await.expect("the Pod is there");
    let before = pod.spec.and_then(|spec| spec.init_containers).unwrap_or_default();
    before.iter().any(|container| container.name == "sandpod-seed")
}

/// The namespace's record of images.
async fn memory(namespace: &Namespace) -> ConfigMap {
    let maps =
        namespace.api::<ConfigMap>().list(&ListParams::default()).await.expect("ConfigMaps are listed");
    let mut maps = maps.items.into_iter().filter(|map| map.name_any().starts_with("sandpod-image-"));
    let map = maps.next().expect("something is remembered");
    assert_eq!(maps.count(), 0);
    map
}

#[tokio::test(flavor = "multi_thread")]
async fn writable_directories_keep_the_contents_of_the_image_and_belong_to_the_user() {
    let namespace = Namespace::create().await;
    for read_only_root in [false, true] {
        let mut config = with_filled_places(&namespace);
        config.read_only_root = read_only_root;
        let provider = provider(&namespace, config).await;
        for _ in 0..2 {
            let handle = create(&provider).await;

            assert!(copied(&namespace, &handle).await);
            assert_eq!(
                execute(&handle, "ls -A /etc/skel").await,
                ".bash_logout\n.bashrc\n.profile\n",
                "read_only_root: {read_only_root}"
            );
            let line = "echo more >> /etc/skel/.bashrc && tail -n1 /etc/skel/.bashrc && stat -c %a%u /etc/skel/.bashrc";
            assert_eq!(execute(&handle, line).await, "more\n6441000\n");
            let links = execute(&handle, "find /etc/alternatives -type l | head -n1 | xargs readlink").await;
            assert!(links.starts_with("/usr/"), "{links}");
            assert_eq!(execute(&handle, "touch /root/mine && ls -A /root").await, "mine\n");
            provider.delete(handle.id.as_str(), true).await.unwrap();
        }
    }
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_without_contents_to_copy_is_inspected_once() {
    let namespace = Namespace::create().await;
    let handles = [
        create(&provider(&namespace, config(&namespace, BUSYBOX)).await).await,
        // A new process, which has only the record in the namespace.
        create(&provider(&namespace, config(&namespace, BUSYBOX)).await).await,
    ];

    assert!(copied(&namespace, &handles[0]).await);
    assert!(!copied(&namespace, &handles[1]).await);
    assert_eq!(memory(&namespace).await.data.unwrap()["image"], BUSYBOX);

    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    for handle in handles {
        provider.delete(handle.id.as_str(), true).await.unwrap();
    }
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_of_an_image_are_copied_after_its_name_moved_to_another_image() {
    let namespace = Namespace::create().await;
    let config = with_filled_places(&namespace);
    let first = provider(&namespace, config.clone()).await;
    let handle = create(&first).await;
    first.delete(handle.id.as_str(), true).await.unwrap();
    // As if the record were of an earlier image of this name, without contents.
    let maps = namespace.api::<ConfigMap>();
    let name = memory(&namespace).await.name_any();
    maps.delete(&name, &DeleteParams::default()).await.unwrap();
    let other: ConfigMap = from_json(json!({
        "metadata": { "name": name, "labels": { "app.kubernetes.io/managed-by": "sandpod" } },
        "data": { "image": config.image, "images": r#"[{"id":"sha256:other","filled":[]}]"# },
        "immutable": true,
    }));
    maps.create(&PostParams::default(), &other).await.unwrap();

    let second = provider(&namespace, config).await;
    let handle = create(&second).await;

    assert!(copied(&namespace, &handle).await);
    assert!(execute(&handle, "ls -A /etc/skel").await.contains(".bashrc"));
    let images = memory(&namespace).await.data.unwrap()["images"].clone();
    assert!(images.contains("/etc/skel") && images.contains("sha256:other"), "{images}");
    let again = create(&second).await;
    assert_eq!(again.generation, 1, "it is known now");
    for handle in [handle, again] {
        second.delete(handle.id.as_str(), true).await.unwrap();
    }
    namespace.finish().await;
}
