//! The probe that finds out whether a cluster enforces a `NetworkPolicy`.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use futures::StreamExt as _;
use sandpod::RawConfig;
use sandpod::doctor::{Verdict, examine_network};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::runtime::WatchStreamExt as _;
use sandpod_kube::kube::runtime::watcher::{self, watcher};
use sandpod_kube::kube::{Api, ResourceExt};
use sandpod_testbed::Namespace;
use sandpod_testbed::kubeconfig::Kubeconfig;
use serde_json::json;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;

use crate::setup::{BUSYBOX, config, soon};

/// How long after a Pod got its address its packets are dropped: after the sandbox is ready, before doctor gives up.
const LATE: Duration = Duration::from_secs(4);

/// Makes the testbed drop the packets of a Pod. Ends on drop, because the next Pod may get its address.
struct Isolated(Ipv4Addr);

impl Isolated {
    fn new(address: Ipv4Addr) -> Self {
        isolate(address, &[]);
        Self(address)
    }
}

impl Drop for Isolated {
    fn drop(&mut self) {
        isolate(self.0, &["--off"]);
    }
}

fn isolate(address: Ipv4Addr, more: &[&str]) {
    let xtask = std::env::var_os("SANDPOD_XTASK").expect("the testbed's command is known");
    let done = Command::new(xtask).args(["cluster", "isolate", &address.to_string()]).args(more).status();
    assert!(done.expect("it can be run").success());
}

/// Enforces the deny-all policy as a slow network plugin would: only for the Pods with its label.
fn enforce_late(pods: Api<Pod>) -> JoinHandle<()> {
    let selected = watcher::Config::default().labels("sandpod.dev/network=deny-all");
    tokio::spawn(async move {
        let mut isolated: HashMap<String, Isolated> = HashMap::new();
        let mut pods = watcher(pods, selected).default_backoff().applied_objects().boxed();
        while let Some(Ok(pod)) = pods.next().await {
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()?.parse().ok());
            if let Some(address) = address.filter(|_| !isolated.contains_key(&pod.name_any())) {
                sleep(LATE).await;
                let done = spawn_blocking(move || Isolated::new(address)).await.expect("it is isolated");
                isolated.insert(pod.name_any(), done);
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_detects_enforcement_of_the_deny_all_policy_with_late_rules() {
    let namespace = Namespace::create().await;
    namespace.raw().await; // its rights are there
    let user = json!({ "token": namespace.token("sandpod-raw", None).await });
    let kubeconfig = Kubeconfig::of(user);
    let config = RawConfig { kubeconfig: Some(kubeconfig.save()), ..config(&namespace, BUSYBOX) };
    let enforcer = enforce_late(namespace.api());

    let finding = soon("trying", examine_network(&config)).await;

    enforcer.abort();
    let _ = enforcer.await; // With it all Pods have their packets again.
    assert_eq!(finding.verdict, Verdict::Good, "{finding:?}");
    assert_eq!(finding.found, "enforced: a sandbox without network reaches nothing");
    namespace.finish().await;
}
