//! The effect of each option in a Pod.

use sandpod::{ErrorKind, Layer, Provider, RawConfig, SandboxRequest};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use sandpod_kube::k8s_openapi::api::node::v1::RuntimeClass;
use sandpod_kube::k8s_openapi::api::scheduling::v1::PriorityClass;
use sandpod_kube::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sandpod_kube::kube::{Api, ResourceExt};
use sandpod_testbed::proxy::FaultProxy;
use sandpod_testbed::{Namespace, from_json, wait_for, wait_until_none};
use serde_json::{Value, json};

use crate::setup::{BUSYBOX, config, execute, provider, soon};

/// The small configuration with some options changed.
fn with(namespace: &Namespace, options: Value) -> RawConfig {
    let small = serde_json::to_value(config(namespace, BUSYBOX)).expect("a configuration is written");
    let layers =
        [small, options].map(|options| Layer::arguments(from_json(options)).expect("options are known"));
    RawConfig::from_layers(layers).expect("options fit")
}

async fn only_pod(namespace: &Namespace) -> Value {
    let pods = namespace.api::<Pod>().list(&ListParams::default()).await.expect("Pods are listed").items;
    assert_eq!(pods.len(), 1);
    serde_json::to_value(&pods[0]).expect("a Pod is written")
}

async fn create<K: sandpod_testbed::Object>(namespace: &Namespace, object: Value) {
    let created = namespace.api::<K>().create(&PostParams::default(), &from_json(object)).await;
    created.expect("the admin can create it");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_has_the_configured_placement_identity_and_metadata() {
    let namespace = Namespace::create().await;
    create::<ServiceAccount>(&namespace, json!({ "metadata": { "name": "agent" } })).await;
    let priorities: Api<PriorityClass> = Api::all(namespace.admin.clone());
    let runtimes: Api<RuntimeClass> = Api::all(namespace.admin.clone());
    let priority = json!({ "metadata": { "name": namespace.name }, "value": 1000 });
    let runtime = json!({ "metadata": { "name": namespace.name }, "handler": "runc" });
    priorities.create(&PostParams::default(), &from_json(priority)).await.unwrap();
    runtimes.create(&PostParams::default(), &from_json(runtime)).await.unwrap();
    let linux = json!({ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] });
    let config = with(
        &namespace,
        json!({
            "service_account": "agent",
            "priority_class": namespace.name,
            "runtime_class": namespace.name,
            "node_selector": { "kubernetes.io/os": "linux" },
            "tolerations": [{ "key": "gpu", "operator": "Exists" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchExpressions": [linux] }],
            } } },
            "image_pull_policy": "Never",
            "image_pull_secrets": ["registry"],
            "restart_policy": "Never",
            "default_labels": { "team": "blue" },
            "extra_annotations": { "example.com/why": "test" },
            "cpu_limit": "500m",
        }),
    );
    let provider = provider(&namespace, config).await;

    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    assert_eq!(execute(&handle, "ls /var/run/secrets 2>/dev/null | wc -l").await.trim(), "0");
    let pod = only_pod(&namespace).await;
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    for (found, expected) in [
        (&spec["serviceAccountName"], json!("agent")),
        (&spec["priority"], json!(1000)),
        (&spec["runtimeClassName"], json!(namespace.name)),
        (&spec["nodeSelector"]["kubernetes.io/os"], json!("linux")),
        (&spec["nodeSelector"]["kubernetes.io/arch"], json!("amd64")),
        (&spec["restartPolicy"], json!("Never")),
        (&spec["imagePullSecrets"], json!([{ "name": "registry" }])),
        (&container["imagePullPolicy"], json!("Never")),
        (&container["resources"]["limits"]["cpu"], json!("500m")),
        (&pod["metadata"]["labels"]["sandpod.dev/team"], json!("blue")),
        (&pod["metadata"]["annotations"]["example.com/why"], json!("test")),
        (&pod["metadata"]["annotations"]["linkerd.io/inject"], json!("disabled")),
    ] {
        assert_eq!(*found, expected);
    }
    let tolerations = spec["tolerations"].as_array().unwrap();
    assert!(tolerations.iter().any(|one| one["key"] == "gpu"), "{tolerations:?}");

    provider.delete(handle.id.as_str(), true).await.unwrap();
    priorities.delete(&namespace.name, &DeleteParams::default()).await.unwrap();
    runtimes.delete(&namespace.name, &DeleteParams::default()).await.unwrap();
    namespace.finish().await;
}

/// Checks that a sandbox of `config`, whose environment has `OTHER`, is enforced as one without that environment.
async fn enforces_as_plain_busybox(namespace: &Namespace, config: RawConfig) {
    let plain = provider(namespace, with(namespace, json!({}))).await;
    let provider = provider(namespace, config).await;
    let expected =
        soon("creating", plain.get_or_create(SandboxRequest::default())).await.expect("a sandbox is created");

    let handle = soon("creating", provider.get_or_create(SandboxRequest::default()))
        .await
        .expect("a sandbox is created");

    assert_eq!(execute(&handle, "echo $OTHER").await, "arrives\n");
    assert!(handle.enforced.network);
    assert_eq!(handle.enforced.files, expected.enforced.files);
    for id in [&handle.id, &expected.id] {
        provider.delete(id.as_str(), true).await.expect("the sandbox is deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn config_map_of_env_from_cannot_weaken_the_guest() {
    let namespace = Namespace::create().await;
    let weak = json!({ "SANDPOD_DISABLED_KERNEL_FEATURES": "landlock,seccomp", "SANDPOD_STATE_DIR": "/tmp", "OTHER": "arrives" });
    create::<ConfigMap>(&namespace, json!({ "metadata": { "name": "weak" }, "data": weak })).await;
    let env_from = json!({ "env_from": [{ "configMapRef": { "name": "weak" } }] });

    enforces_as_plain_busybox(&namespace, with(&namespace, env_from)).await;

    namespace.api::<ConfigMap>().delete("weak", &DeleteParams::default()).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn env_of_an_image_cannot_weaken_the_guest() {
    let namespace = Namespace::create().await;

    enforces_as_plain_busybox(&namespace, config(&namespace, "sandpod.test/weak-env:1")).await;

    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_init_containers_and_references_to_secrets_reach_commands() {
    let namespace = Namespace::create().await;
    let token = json!({ "metadata": { "name": "token" }, "stringData": { "key": "s3cret", "ALL": "of it" } });
    create::<Secret>(&namespace, token).await;
    create::<ConfigMap>(&namespace, json!({ "metadata": { "name": "notes" }, "data": { "note": "hello" } }))
        .await;
    let config = with(
        &namespace,
        json!({
            "env": { "PLAIN": "plain" },
            "env_refs": [{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "token", "key": "key" } } }],
            "env_from": [{ "secretRef": { "name": "token" } }],
            "volumes": [
                { "name": "notes", "configMap": { "name": "notes" } },
                { "name": "data", "emptyDir": {} },
            ],
            "volume_mounts": [
                { "name": "notes", "mountPath": "/notes" },
                { "name": "data", "mountPath": "/workspace/data" },
            ],
            // It has no security context of its own, and is admitted under `restricted`.
            "init_containers": [{
                "name": "fill", "image": BUSYBOX, "command": ["sh", "-c", "echo filled > /data/file"],
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "command": ["sh", "-c", "pwd > /workspace/beside; sleep 1000"],
            "workdir": "/workspace/data",
        }),
    );
    let provider = provider(&namespace, config).await;

    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    let line = "echo $PLAIN $TOKEN $ALL; cat /notes/note; echo; cat file; pwd; cat /workspace/beside";
    assert_eq!(
        execute(&handle, line).await,
        "plain s3cret of it\nhello\nfilled\n/workspace/data\n/workspace/data\n"
    );
    let pod = only_pod(&namespace).await.to_string();
    assert!(!pod.contains("s3cret") && !pod.contains("PLAIN"), "what is secret is in the Pod: {pod}");

    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.api::<ConfigMap>().delete("notes", &DeleteParams::default()).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arbitrary_user_works_with_and_without_a_read_only_root() {
    let namespace = Namespace::create().await;
    for read_only_root in [true, false] {
        let options = json!({
            "run_as_user": 1_000_690_000, "run_as_group": 0, "read_only_root": read_only_root,
        });
        let provider = provider(&namespace, with(&namespace, options)).await;
        let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
        let line = "id -u; id -g; echo x > /workspace/x && echo x > $HOME/x && echo x > /tmp/x && echo fine";
        assert_eq!(execute(&handle, line).await, "1000690000\n0\nfine\n");
        handle.sandbox.write("/app/file", "content").await.unwrap();
        let root = execute(&handle, "touch /x 2>&1").await;
        assert_eq!(root.contains("Read-only file system"), read_only_root, "{root}");
        provider.delete(handle.id.as_str(), true).await.unwrap();
    }
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_are_merged_into_the_pod_and_keep_the_sandbox_container() {
    let namespace = Namespace::create().await;
    let config = with(
        &namespace,
        json!({ "pod_template_overrides": {
            "metadata": { "annotations": { "example.com/override": "yes" } },
            "spec": {
                "hostAliases": [{ "ip": "127.0.0.1", "hostnames": ["models.example"] }],
                "containers": [
                    { "name": "sandbox", "env": [{ "name": "ADDED", "value": "too" }] },
                    { "name": "sidecar", "image": BUSYBOX, "command": ["sleep", "1000"] },
                ],
            },
        }}),
    );
    let provider = provider(&namespace, config).await;

    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    assert_eq!(execute(&handle, "echo $ADDED; grep -c models.example /etc/hosts").await, "too\n1\n");
    let pod = only_pod(&namespace).await;
    assert_eq!(pod["metadata"]["annotations"]["example.com/override"], "yes");
    assert_eq!(pod["spec"]["containers"].as_array().unwrap().len(), 2);

    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_may_still_reject_permitted_overrides() {
    let namespace = Namespace::create().await;
    let overrides = json!({ "hostNetwork": true });
    let refused = with(&namespace, json!({ "pod_template_overrides": overrides }));
    let error = refused.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("spec.hostNetwork"), "{error}");

    let allowed =
        with(&namespace, json!({ "pod_template_overrides": overrides, "allow_insecure_overrides": true }));
    let provider = provider(&namespace, allowed).await;
    let error = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap_err();

    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("violates PodSecurity \"restricted:latest\""), "{error}");
    wait_until_none(&namespace.api::<Lease>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_script_runs_once_in_each_pod_before_it_is_handed_out() {
    let namespace = Namespace::create().await;
    let script = "sleep 1; echo $GREETING >> /workspace/ran";
    let options = json!({ "setup_script": script, "env": { "GREETING": "hello" } });
    let providers = [
        provider(&namespace, with(&namespace, options.clone())).await,
        provider(&namespace, with(&namespace, options)).await,
    ];

    let creating = providers.iter().map(|provider| provider.get_or_create(SandboxRequest::named("thread-1")));
    let handles = soon("creating", futures::future::try_join_all(creating)).await.unwrap();
    for handle in &handles {
        assert_eq!(execute(handle, "cat ran").await, "hello\n");
    }
    let again = soon("reconnecting", providers[1].reconnect("thread-1")).await.unwrap();
    assert_eq!(execute(&again, "cat ran").await, "hello\n");

    let pods = namespace.api::<Pod>();
    let name = again.pod.split('/').next_back().unwrap().to_owned();
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    wait_for(&pods, &name, "be gone", |pod| pod.is_none()).await;
    let new =
        soon("recreating", providers[0].get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();
    assert_eq!(execute(&new, "cat ran").await, "hello\n");

    providers[0].delete("thread-1", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_setup_script_reports_its_output_and_leaves_nothing() {
    let namespace = Namespace::create().await;
    for (script, kind, said) in [
        ("echo no such package >&2; exit 3", ErrorKind::StartFailed, ["exit code 3", "no such package"]),
        ("echo at it; sleep 1000", ErrorKind::Timeout, ["longer than 30s", "at it"]),
    ] {
        let options = json!({ "setup_script": script, "startup_timeout_seconds": 30 });
        let provider = provider(&namespace, with(&namespace, options)).await;

        let error = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap_err();

        assert_eq!(error.kind(), kind, "{error}");
        assert!(said.iter().all(|part| error.to_string().contains(part)), "{error}");
        assert!(namespace.api::<Lease>().list(&ListParams::default()).await.unwrap().items.is_empty());
        wait_until_none(&namespace.api::<Pod>()).await;
    }
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_with_an_unfinished_setup_is_recreated() {
    let namespace = Namespace::create().await;
    let proxy = FaultProxy::start(namespace.api_address()).await.unwrap();
    namespace.raw().await; // its rights are there
    let far = namespace.raw_through(proxy.address()).await;
    let script = "echo x >> /workspace/ran";
    let endless = with(&namespace, json!({ "setup_script": format!("{script}; sleep 1000") }));
    let first = Provider::with_client(far, endless).unwrap();
    let creating =
        tokio::spawn(async move { first.get_or_create(SandboxRequest::named("thread-1")).await.map(drop) });
    let leases = namespace.api::<Lease>();
    let begun = "sandpod.dev/setup-until";
    let is_begun = |lease: Option<&Lease>| lease.is_some_and(|lease| lease.annotations().contains_key(begun));
    wait_for(&leases, "thread-1", "be set up", is_begun).await;

    // As if its process had been killed: nothing is rolled back, and its Lease has expired.
    proxy.set_stalled(true);
    creating.abort();
    let _ = creating.await;
    let dead = json!({ "metadata": { "annotations": { begun: "2026-01-01T00:00:00Z" } } });
    leases.patch("thread-1", &PatchParams::default(), &Patch::Merge(&dead)).await.unwrap();

    let second = provider(&namespace, with(&namespace, json!({ "setup_script": script }))).await;
    let handle = soon("recreating", second.get_or_create(SandboxRequest::named("thread-1"))).await.unwrap();
    assert_eq!(execute(&handle, "cat ran").await, "x\n");
    assert!(handle.generation > 1);
    second.delete("thread-1", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_volume_works_or_fails_by_name_where_the_cluster_lacks_them() {
    let namespace = Namespace::create().await;
    let image = json!({ "reference": BUSYBOX, "pullPolicy": "IfNotPresent" });
    let options = json!({
        "volumes": [{ "name": "tools", "image": image }],
        "volume_mounts": [{ "name": "tools", "mountPath": "/tools", "readOnly": true }],
    });
    let provider = provider(&namespace, with(&namespace, options)).await;
    match soon("creating", provider.get_or_create(SandboxRequest::default())).await {
        Ok(handle) => {
            assert_eq!(execute(&handle, "test -x /tools/bin/busybox && echo there").await, "there\n");
            provider.delete(handle.id.as_str(), true).await.unwrap();
        }
        // Without the feature the API server drops the volume without an error.
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("leaves the volume 'tools' out"), "{error}");
        }
    }
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}
