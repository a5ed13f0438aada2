//! The load that many sandboxes of one process put on the API server, and retries that it asks for.

use std::time::Duration;

use futures::future::join_all;
use sandpod::{ExecuteOptions, Provider, RawConfig, SandboxRequest};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use sandpod_kube::kube::api::{DeleteParams, ListParams, PostParams};
use sandpod_kube::kube::{self, Api};
use sandpod_kube::watch::SharedWatch;
use sandpod_testbed::calls::Calls;
use sandpod_testbed::proxy::FaultProxy;
use sandpod_testbed::{Namespace, PATIENCE, from_json, wait_until_none};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::setup::{BUSYBOX, config, execute, soon};

/// Limits the raw role to one request at a time, and keeps that one busy.
struct Jam {
    schemas: Api<FlowSchema>,
    levels: Api<PriorityLevelConfiguration>,
    name: String,
    crowd: JoinSet<()>,
}

impl Jam {
    /// Returns when the API server rejects requests.
    async fn begin(namespace: &Namespace) -> Self {
        let (admin, name) = (namespace.admin.clone(), namespace.name.clone());
        let (schemas, levels) = (Api::all(admin.clone()), Api::all(admin));
        let jam = Self { schemas, levels, name, crowd: JoinSet::new() };
        let level = json!({ "metadata": { "name": jam.name }, "spec": { "type": "Limited", "limited": {
            "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": { "type": "Reject" },
        }}});
        let account = json!({ "name": "sandpod-raw", "namespace": namespace.name });
        let everything =
            json!({ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"] });
        let schema = json!({ "metadata": { "name": jam.name }, "spec": {
            "matchingPrecedence": 2,
            "priorityLevelConfiguration": { "name": jam.name },
            "rules": [{
                "subjects": [{ "kind": "ServiceAccount", "serviceAccount": account }],
                "resourceRules": [everything],
            }],
        }});
        jam.levels.create(&PostParams::default(), &from_json(level)).await.expect("a level is made");
        jam.schemas.create(&PostParams::default(), &from_json(schema)).await.expect("a schema is made");
        jam.crowded(namespace).await
    }

    async fn crowded(mut self, namespace: &Namespace) -> Self {
        let mut config = namespace.raw_config().await;
        config.default_retry = false;
        let (turned_away, mut count) = mpsc::channel(1);
        for _ in 0..16 {
            let client = sandpod_kube::client::client(&config).expect("a client is made");
            let pods: Api<Pod> = Api::namespaced(client, &namespace.name);
            let turned_away = turned_away.clone();
            self.crowd.spawn(async move {
                loop {
                    let answer = pods.list(&ListParams::default()).await;
                    if matches!(answer, Err(kube::Error::Api(status)) if status.code == 429) {
                        let _ = turned_away.try_send(());
                    }
                    // Leaves time for other processes of this machine.
                    sleep(Duration::from_millis(10)).await;
                }
            });
        }
        for _ in 0..20 {
            timeout(PATIENCE, count.recv()).await.expect("the API server turns calls away");
        }
        self
    }

    async fn lift(mut self) {
        self.crowd.shutdown().await;
        self.schemas.delete(&self.name, &DeleteParams::default()).await.expect("the schema is deleted");
        self.levels.delete(&self.name, &DeleteParams::default()).await.expect("the level is deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_retried_after_the_time_that_a_busy_api_server_names() {
    let namespace = Namespace::create().await;
    let provider = Provider::with_client(namespace.raw().await, config(&namespace, BUSYBOX)).unwrap();
    let handle = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();
    let jam = Jam::begin(&namespace).await;

    let (another, during, ()) = tokio::join!(
        soon("creating in a jam", provider.get_or_create(SandboxRequest::default())),
        handle.sandbox.execute("echo undisturbed", ExecuteOptions::default()),
        async {
            sleep(Duration::from_secs(2)).await;
            jam.lift().await;
        },
    );

    // A sandbox with an open stream sends no request to the API server.
    assert_eq!(during.unwrap().output, "undisturbed\n");
    let another = another.unwrap();
    assert_eq!(execute(&another, "echo hello").await, "hello\n");
    for id in [another.id, handle.id] {
        provider.delete(id.as_str(), true).await.unwrap();
    }
    assert!(namespace.api::<Pod>().list(&ListParams::default()).await.unwrap().items.is_empty());
    namespace.finish().await;
}

/// Sandboxes whose Pods are never scheduled.
fn held(namespace: &Namespace) -> RawConfig {
    let gates = json!({ "schedulingGates": [{ "name": "example.com/held" }] });
    RawConfig { pod_template_overrides: Some(gates), ..config(namespace, BUSYBOX) }
}

async fn pods_become(namespace: &Namespace, count: usize) {
    let pods = namespace.api::<Pod>();
    let mut changes = SharedWatch::new(pods.clone(), "").changes();
    soon("making all Pods", async {
        while pods.list_metadata(&ListParams::default()).await.expect("Pods are listed").items.len() < count {
            changes.next().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_sandboxes_are_requested_at_once_and_waiting_for_pods_does_not_count() {
    const WANTED: usize = 40;
    let namespace = Namespace::create().await;
    // With a long round trip, all requests that may be in flight at once are.
    let proxy = FaultProxy::start(namespace.api_address()).await.unwrap();
    namespace.raw().await; // its rights are there
    let (client, calls) = Calls::of(namespace.raw_through(proxy.address()).await);
    let providers = [(); 2].map(|()| Provider::with_client(client.clone(), held(&namespace)).unwrap());
    proxy.set_round_trip(Duration::from_millis(300));

    let wanted = (0..WANTED).map(|number| {
        let provider = providers[number % 2].clone();
        async move { provider.get_or_create(SandboxRequest::default()).await.map(drop) }
    });
    let creating = tokio::spawn(join_all(wanted));
    pods_become(&namespace, WANTED).await;

    // Other tests of this process use some of the sixteen.
    for call in ["POST leases", "POST pods"] {
        let (count, most) = (calls.count(call), calls.most_at_once(call));
        assert!(count == WANTED && (2..=16).contains(&most), "{call}: {count}, {most} at once");
    }
    proxy.set_round_trip(Duration::ZERO);
    creating.abort();
    wait_until_none(&namespace.api::<Lease>()).await;
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}
