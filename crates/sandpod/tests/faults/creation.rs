//! The network fails, or the creator is killed, while a sandbox is created.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use sandpod::{ErrorKind, Provider, RawConfig, SandboxRequest, install_guest};
use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_kube::k8s_openapi::api::batch::v1::Job;
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{ListParams, Patch, PatchParams};
use sandpod_testbed::agent_sandbox::{TEMPLATE, clear, make_template, pod_spec};
use sandpod_testbed::lost_answer::lose_first_answer;
use sandpod_testbed::proxy::FaultProxy;
use sandpod_testbed::{Namespace, wait_for, wait_until_none};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::calm;
use crate::clients::{ID, client};
use crate::setup::{BUSYBOX, config, execute, soon};

/// An outage that ends before the first retry, and one longer than the timeout of a connection mode.
const OUTAGES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(12)];
/// The startup timeout in tests whose outage outlasts it.
const SHORT: u64 = 3;

/// A provider whose network fails when the first object was created.
struct Shaky {
    namespace: Namespace,
    proxy: Arc<FaultProxy>,
    provider: Provider,
    lost: oneshot::Receiver<()>,
}

impl Shaky {
    async fn raw(plural: &'static str, change: impl FnOnce(&mut RawConfig)) -> Self {
        let namespace = Namespace::create().await;
        namespace.raw().await; // its rights are there
        let proxy = Arc::new(FaultProxy::start(namespace.api_address()).await.unwrap());
        let client = namespace.raw_through(proxy.address()).await;
        let (client, lost) = lose_first_answer(client, proxy.clone(), plural);
        let mut config = config(&namespace, BUSYBOX);
        change(&mut config);
        let provider = Provider::with_client(client, config).unwrap();
        Self { namespace, proxy, provider, lost }
    }

    async fn agent_sandbox(startup_timeout_seconds: Option<u64>) -> Self {
        let namespace = Namespace::create().await;
        namespace.agent_sandbox().await; // its rights are there
        template(&namespace, |_| ()).await;
        let proxy = Arc::new(FaultProxy::start(namespace.api_address()).await.unwrap());
        let client = namespace.agent_sandbox_through(proxy.address()).await;
        let (client, lost) = lose_first_answer(client, proxy.clone(), "sandboxclaims");
        let mut config = claiming(&namespace);
        config.startup_timeout_seconds = startup_timeout_seconds.unwrap_or(config.startup_timeout_seconds);
        let provider = Provider::agent_sandbox_with_client(client, config).unwrap();
        Self { namespace, proxy, provider, lost }
    }

    /// Creates a sandbox through an outage, and checks that it is complete and the only one.
    async fn makes_one_through(mut self, outage: Duration) -> Namespace {
        let creating = self.provider.get_or_create(SandboxRequest::named(ID));
        let (made, ()) = tokio::join!(soon("creating", creating), async {
            (&mut self.lost).await.expect("the first answer is lost");
            sleep(outage).await;
            self.proxy.set_refusing(false);
        });

        let handle = made.unwrap_or_else(|error| panic!("{outage:?}: {error}"));
        assert_eq!((handle.id.as_str(), handle.generation), (ID, 1));
        assert_eq!(execute(&handle, "echo hello").await, "hello\n");
        let pods = self.namespace.api::<Pod>().list(&ListParams::default()).await.unwrap();
        assert_eq!(pods.items.len(), 1, "a Pod was made twice");
        let page = self.provider.list(sandpod::ListOptions::default()).await.unwrap();
        assert_eq!(page.sandboxes.len(), 1);
        soon("deleting", self.provider.delete(ID, true)).await.unwrap();
        self.provider.cleanup(None).await.unwrap();
        self.namespace
    }

    /// Creates a sandbox until the creation gives up, then ends the outage.
    async fn gives_up(mut self) -> (Namespace, Provider) {
        let creating = self.provider.get_or_create(SandboxRequest::named(ID));
        let error = soon("giving up", creating).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        self.lost.try_recv().expect("the answer was lost");
        self.proxy.set_refusing(false);
        (self.namespace, self.provider)
    }
}

pub(crate) fn claiming(namespace: &Namespace) -> sandpod::AgentSandboxConfig {
    sandpod::AgentSandboxConfig {
        namespace: namespace.name.clone(),
        startup_timeout_seconds: sandpod_testbed::PATIENCE.as_secs(),
        ..sandpod::AgentSandboxConfig::of_template(TEMPLATE)
    }
}

pub(crate) async fn template(namespace: &Namespace, change: impl FnOnce(&mut Value)) {
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await.unwrap();
    let mut spec = pod_spec(&guest);
    change(&mut spec);
    make_template(namespace, TEMPLATE, spec).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_sandbox_is_created_once_although_responses_are_lost() {
    let _calm = calm().await;
    for (plural, outage) in [("leases", OUTAGES[0]), ("pods", OUTAGES[0]), ("leases", OUTAGES[1])] {
        let namespace = Shaky::raw(plural, |_| ()).await.makes_one_through(outage).await;
        namespace.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_is_created_once_although_responses_are_lost_and_connections_refused() {
    let _calm = calm().await;
    for outage in OUTAGES {
        let namespace = Shaky::agent_sandbox(None).await.makes_one_through(outage).await;
        clear(&namespace).await;
        namespace.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn creation_cancelled_in_an_outage_is_rolled_back_after_it() {
    let _calm = calm().await;
    for plural in ["leases", "pods"] {
        let shaky = Shaky::raw(plural, |config| config.startup_timeout_seconds = SHORT).await;
        let (namespace, _provider) = shaky.gives_up().await;
        wait_until_none::<Lease>(&namespace.api()).await;
        wait_until_none::<Pod>(&namespace.api()).await;
        namespace.finish().await;
    }
    let (namespace, provider) = Shaky::agent_sandbox(Some(SHORT)).await.gives_up().await;
    wait_until_none::<SandboxClaim>(&namespace.api()).await;
    provider.cleanup(None).await.unwrap();
    clear(&namespace).await;
    namespace.finish().await;
}

/// A scheduling gate: the Pod never starts, so the creator is killed during the creation.
fn held() -> Value {
    json!([{ "name": "example.com/held" }])
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_deletes_the_raw_sandbox_of_a_killed_creator_by_itself() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;

    let mut creator = client("create-held", &namespace);
    wait_for(&namespace.api::<Pod>(), "thread-1-1", "exist", |pod| pod.is_some()).await;
    creator.kill().await.unwrap();

    let lease = namespace.api::<Lease>().get(ID).await.unwrap();
    let [owner] = lease.owner_references() else { panic!("nothing ends the Lease: {lease:?}") };
    assert_eq!(owner.kind, "Job");
    let jobs = namespace.api::<Job>();
    let job = wait_for(&jobs, &owner.name, "be complete", |job| {
        job.and_then(|job| job.status.as_ref()?.completion_time.as_ref()).is_some()
    })
    .await
    .unwrap();
    assert_eq!(job.spec.unwrap().ttl_seconds_after_finished, Some(600), "as its ttl_seconds");
    // Let its time expire.
    let over = json!({ "spec": { "ttlSecondsAfterFinished": 0 } });
    jobs.patch(&owner.name, &PatchParams::default(), &Patch::Merge(&over)).await.unwrap();
    wait_until_none(&jobs).await;
    wait_until_none::<Lease>(&namespace.api()).await;
    wait_until_none::<Pod>(&namespace.api()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_deletes_the_claim_of_a_killed_creator_by_itself() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    template(&namespace, |spec| spec["schedulingGates"] = held()).await;

    let mut creator = client("claim", &namespace);
    wait_for(&namespace.api::<Pod>(), ID, "exist", |pod| pod.is_some()).await;
    creator.kill().await.unwrap();

    let claims = namespace.api::<SandboxClaim>();
    let claim = claims.get(ID).await.unwrap();
    let lifecycle = claim.spec.lifecycle.clone().expect("it ends by itself");
    assert_eq!(lifecycle.shutdown_policy.as_deref(), Some("Delete"));
    let left = lifecycle.shutdown_time.unwrap().0.duration_since(claim.creation_timestamp().unwrap().0);
    assert!((595..=605).contains(&left.as_secs()), "as its ttl_seconds: {left}");
    // Let its time expire.
    let over = json!({ "spec": { "lifecycle": { "shutdownTime": "2026-01-01T00:00:00Z" } } });
    claims.patch(ID, &PatchParams::default(), &Patch::Merge(&over)).await.unwrap();
    wait_until_none(&claims).await;
    wait_until_none::<Pod>(&namespace.api()).await;
    clear(&namespace).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_was_handed_out_expires_only_as_requested() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    template(&namespace, |_| ()).await;
    let raw = Provider::with_client(namespace.raw().await, config(&namespace, BUSYBOX)).unwrap();
    let claims = Provider::agent_sandbox_with_client(namespace.agent_sandbox().await, claiming(&namespace));
    let claims = claims.unwrap();
    for provider in [&raw, &claims] {
        soon("creating", provider.get_or_create(SandboxRequest::named(ID))).await.unwrap();
    }

    let lease = namespace.api::<Lease>().get(ID).await.unwrap();
    assert!(lease.owner_references().is_empty(), "{lease:?}");
    let claim = namespace.api::<SandboxClaim>().get(ID).await.unwrap();
    assert!(claim.spec.lifecycle.is_none(), "{claim:?}");

    for provider in [&raw, &claims] {
        soon("deleting", provider.delete(ID, true)).await.unwrap();
    }
    claims.cleanup(None).await.unwrap();
    clear(&namespace).await;
    namespace.finish().await;
}
