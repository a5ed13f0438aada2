//! Sandboxes and bare Pods on the testbed, for measurements.

use anyhow::{Context, Result};
use sandpod::{ExecuteOptions, Provider, RawConfig, SandboxHandle, SandboxRequest};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::{Api, DeleteParams, PostParams};
use sandpod_testbed::{Namespace, from_json, wait_for};
use serde_json::json;

use crate::measure::{median, timed};
use crate::report::Report;

const IMAGE: &str = "sandpod.test/busybox:1";

/// Returns a configuration with small requests.
#[must_use]
pub fn config(namespace: &Namespace) -> RawConfig {
    RawConfig {
        namespace: namespace.name.clone(),
        image: IMAGE.to_owned(),
        cpu_request: "1m".to_owned(),
        memory_request: "8Mi".to_owned(),
        ephemeral_storage_limit: "20Mi".to_owned(),
        startup_timeout_seconds: 600,
        unschedulable_grace_seconds: 120,
        ..RawConfig::default()
    }
}

/// Measures a sandbox until its first answer, beside a bare Pod until it is Ready.
pub async fn creation(provider: &Provider, namespace: &Namespace, report: &mut Report) -> Result<()> {
    let pods: Api<Pod> = namespace.api();
    let (mut ours, mut bare) = (vec![], vec![]);
    for number in 0..5 {
        let name = format!("bare-{number}");
        bare.push(timed(start_pod(&pods, &name, Volumes::None)).await?);
        pods.delete(&name, &gracefully()).await?;
        wait_for(&pods, &name, "be gone", |pod: Option<&Pod>| pod.is_none()).await;
        let mut made = None;
        ours.push(
            timed(async {
                made = Some(start(provider).await?);
                Ok(())
            })
            .await?,
        );
        let made = made.context("it was made")?;
        provider.delete(made.id.as_str(), true).await?;
    }
    report.near("create, to a bare Pod Ready", median(ours), median(bare), 1.25);
    Ok(())
}

/// Creates a sandbox and waits for its first answer.
pub async fn start(provider: &Provider) -> Result<SandboxHandle> {
    let handle = provider.get_or_create(SandboxRequest::default()).await?;
    execute_true(&handle).await?;
    Ok(handle)
}

/// Returns a deletion with a grace period: the Pod disappears only after its node has finished, so that no work of the
/// node remains for the next measurement.
#[must_use]
pub fn gracefully() -> DeleteParams {
    DeleteParams::default().grace_period(1)
}

/// The volumes of a Pod that is compared with a sandbox's Pod.
#[derive(Clone, Copy, Debug)]
pub enum Volumes {
    /// No volumes.
    None,
    /// As many writable directories as a sandbox, and a file from the cluster.
    AsSandboxes,
}

/// Creates a Pod and waits until it is Ready.
pub async fn start_pod(pods: &Api<Pod>, name: &str, volumes: Volumes) -> Result<()> {
    pods.create(&PostParams::default(), &bare_pod(name, volumes)).await?;
    wait_for(pods, name, "be Ready", |pod: Option<&Pod>| pod.is_some_and(is_ready)).await;
    Ok(())
}

/// Runs `true` in a sandbox.
pub async fn execute_true(handle: &SandboxHandle) -> Result<()> {
    let executed = handle.sandbox.execute("true", ExecuteOptions::default()).await?;
    anyhow::ensure!(executed.exit_code == Some(0), "true failed: {executed:?}");
    Ok(())
}

fn bare_pod(name: &str, volumes: Volumes) -> Pod {
    let (volumes, mounts) = match volumes {
        Volumes::None => (vec![], vec![]),
        Volumes::AsSandboxes => {
            let places = RawConfig::default().writable_dirs;
            let file = json!({ "configMap": { "name": "kube-root-ca.crt" } });
            let mut volumes = vec![json!({ "name": "file", "projected": { "sources": [file] } })];
            let mut mounts = vec![json!({ "name": "file", "mountPath": "/file", "readOnly": true })];
            for (number, place) in places.iter().enumerate() {
                volumes.push(json!({ "name": format!("place-{number}"), "emptyDir": {} }));
                mounts.push(json!({ "name": format!("place-{number}"), "mountPath": place }));
            }
            (volumes, mounts)
        }
    };
    from_json(json!({
        "metadata": { "name": name },
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
            "terminationGracePeriodSeconds": 1,
            "volumes": volumes,
            "containers": [{
                "name": "c",
                "image": IMAGE,
                "command": ["sleep", "1000000"],
                "resources": {
                    "requests": { "cpu": "1m", "memory": "8Mi" },
                    "limits": { "cpu": "1", "memory": "1Gi", "ephemeral-storage": "20Mi" },
                },
                "volumeMounts": mounts,
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    }))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
