//! Suspend and resume, with the workspace on a volume. The testbed has no provisioner, so a test creates its volume.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use sandpod::{ErrorKind, ExecuteOptions, SandboxPolicy, SandboxRequest, Status, install_guest};
use sandpod_kube::agent_sandbox::{Sandbox, SandboxTemplate};
use sandpod_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use sandpod_kube::kube::Api;
use sandpod_kube::kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use sandpod_testbed::{Namespace, from_json, wait_for, wait_until_none};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::setup::{config, finish, named, namespace, pod_spec, provider};
use crate::setup::{execute, soon};

const DURABLE: &str = "durable";

/// A directory of this machine, the cluster's only node, as a volume for one claim.
struct Disk {
    _dir: TempDir,
    volumes: Api<PersistentVolume>,
    name: String,
}

impl Disk {
    async fn new(namespace: &Namespace) -> Self {
        let dir = TempDir::new().expect("there is room for a directory");
        let all_access = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(dir.path(), all_access).expect("the directory is ours");
        let volumes: Api<PersistentVolume> = Api::all(namespace.admin.clone());
        let volume: PersistentVolume = from_json(json!({
            "metadata": { "name": namespace.name },
            "spec": {
                "capacity": { "storage": "1Mi" },
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": namespace.name,
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": { "path": dir.path() },
            },
        }));
        volumes.create(&PostParams::default(), &volume).await.expect("the admin makes a volume");
        Self { _dir: dir, volumes, name: namespace.name.clone() }
    }

    async fn remove(self) {
        self.volumes.delete(&self.name, &DeleteParams::default()).await.expect("the admin deletes a volume");
    }
}

/// A template whose sandboxes have their workspace on a volume.
async fn make_durable_template(namespace: &Namespace) {
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await;
    let mut spec = pod_spec(&guest.expect("the guest is installed"));
    let volumes = spec["volumes"].as_array_mut().expect("it has volumes");
    volumes.retain(|volume| volume["name"] != "workspace");
    let template: Value = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": { "name": DURABLE },
        "spec": {
            "podTemplate": { "spec": spec },
            "networkPolicyManagement": "Unmanaged",
            "volumeClaimTemplates": [{
                "metadata": { "name": "workspace" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": namespace.name,
                    "resources": { "requests": { "storage": "1Mi" } },
                },
            }],
        },
    });
    let kind = ApiResource::erase::<SandboxTemplate>(&());
    let templates: Api<DynamicObject> = Api::namespaced_with(namespace.admin.clone(), &namespace.name, &kind);
    templates.create(&PostParams::default(), &from_json(template)).await.expect("the admin makes a template");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_sandbox_keeps_its_volume_and_reports_that_it_is_suspended() {
    let namespace = namespace().await;
    let disk = Disk::new(&namespace).await;
    make_durable_template(&namespace).await;
    let mut config = config(&namespace);
    config.template_name = Some(DURABLE.to_owned());
    let provider = provider(&namespace, config.clone()).await;
    let handle = soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    execute(&handle, "echo kept > /workspace/file; echo lost > /home/sandbox/file").await;
    assert_eq!(provider.info("a").await.unwrap().durable_dirs, ["/workspace"]);

    soon("suspending", provider.suspend("a", false)).await.unwrap();

    wait_until_none(&namespace.api::<Pod>()).await;
    let info = provider.info("a").await.unwrap();
    assert_eq!((info.status, info.durable_dirs), (Status::Suspended, vec!["/workspace".to_owned()]));
    let said = handle.sandbox.execute("true", ExecuteOptions::default()).await.unwrap_err().to_string();
    assert!(said.contains("Sandbox 'a' is suspended"), "{said}");
    for error in [
        provider.reconnect("a").await.unwrap_err(),
        provider.get_or_create(SandboxRequest::named("a")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().starts_with("Sandbox 'a' is suspended"), "{error}");
    }
    assert!(provider.cleanup(Some(Duration::ZERO)).await.unwrap().deleted.is_empty());
    soon("suspending again", provider.suspend("a", false)).await.unwrap();

    let other = super::setup::provider(&namespace, config).await;
    let resumed = soon("resuming", other.resume(SandboxRequest::of("a")))
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((resumed.id.as_str(), resumed.generation), ("a", 2));
    assert_eq!(execute(&resumed, "cat /workspace/file; ls /home/sandbox").await, "kept\n");
    assert_eq!(other.info("a").await.unwrap().status, Status::Running);
    let again = soon("resuming", other.resume(SandboxRequest::of("a"))).await.unwrap();
    assert_eq!(again.generation, 2, "it was not suspended");

    provider.delete("a", true).await.unwrap();
    wait_until_none(&namespace.api::<PersistentVolumeClaim>()).await;
    finish(namespace, &provider).await;
    disk.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_another_program_suspended_can_be_resumed() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    assert_eq!(provider.suspend("a", false).await.unwrap_err().kind(), ErrorKind::NotFound);
    soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    assert!(provider.info("a").await.unwrap().durable_dirs.is_empty(), "nothing survives");
    let suspended = json!({ "spec": { "operatingMode": "Suspended" } });
    let sandboxes = namespace.api::<Sandbox>();
    sandboxes.patch("a", &PatchParams::default(), &Patch::Merge(&suspended)).await.unwrap();
    wait_for(&namespace.api::<sandpod_kube::agent_sandbox::SandboxClaim>(), "a", "say so", |claim| {
        let conditions = claim.and_then(|claim| claim.status.as_ref()).map(|status| &status.conditions);
        conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.reason == "SandboxSuspended")
    })
    .await;

    assert_eq!(provider.info("a").await.unwrap().status, Status::Suspended);
    let resumed = soon("resuming", provider.resume(SandboxRequest::of("a")))
        .await
        .unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(resumed.generation, 2);
    assert_eq!(execute(&resumed, "echo hello").await, "hello\n");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_without_a_durable_workspace_is_suspended_only_with_force() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    let handle = soon("claiming", provider.get_or_create(named("a"))).await.unwrap();
    execute(&handle, "echo work > /workspace/file").await;

    let refused = soon("suspending", provider.suspend("a", false)).await.unwrap_err();

    assert_eq!(refused.kind(), ErrorKind::Denied);
    for said in ["would lose its files", "/workspace", "/home/sandbox", "force", "volumeClaimTemplates"] {
        assert!(refused.to_string().contains(said), "{said}: {refused}");
    }
    assert!(!refused.to_string().contains("/sandpod"), "{refused}");
    assert_eq!(execute(&handle, "cat /workspace/file").await, "work\n", "it goes on");
    soon("suspending", provider.suspend("a", true)).await.unwrap();
    assert_eq!(provider.info("a").await.unwrap().status, Status::Suspended);
    soon("suspending again", provider.suspend("a", false)).await.unwrap();
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_with_its_own_policy_is_never_resumed_without_one() {
    let namespace = namespace().await;
    let provider = provider(&namespace, config(&namespace)).await;
    let policy =
        SandboxPolicy { allow_prefixes: Some(vec!["/workspace".to_owned()]), ..SandboxPolicy::default() };
    let env = [("GREETING".to_owned(), "hello".to_owned())].into();
    let request = SandboxRequest { policy: Some(policy), env, ..named("a") };
    soon("claiming", provider.get_or_create(request.clone())).await.unwrap();
    soon("suspending", provider.suspend("a", true)).await.unwrap();

    let refused = provider.resume(SandboxRequest::of("a")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().starts_with("Sandbox 'a' had a policy of its own"), "{refused}");
    assert_eq!(provider.info("a").await.unwrap().status, Status::Suspended, "it is as it was");

    soon("resuming", provider.resume(request)).await.unwrap_or_else(|error| panic!("{error}"));
    let later = provider.reconnect("a").await.unwrap();
    assert_eq!(execute(&later, "echo $GREETING").await, "hello\n");
    let denied = later.sandbox.write("/tmp/a", "x").await.unwrap_err();
    assert!(denied.to_string().contains("policy"), "{denied}");
    later.sandbox.write("/workspace/a", "x").await.expect("it is allowed");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}
