//! Many sandboxes in one process are no burden for an API server, which says itself when it has no time.

use std::time::Duration;

use sandpod::{ExecuteOptions, Provider, SandboxRequest};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use sandpod_kube::kube::api::{DeleteParams, ListParams, PostParams};
use sandpod_kube::kube::{self, Api};
use sandpod_testbed::{Namespace, PATIENCE, from_json};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::setup::{BUSYBOX, config, execute, soon};

/// The API server has one place for all calls of the raw role, and others of that role fight for it.
struct Jam {
    schemas: Api<FlowSchema>,
    levels: Api<PriorityLevelConfiguration>,
    name: String,
    crowd: JoinSet<()>,
}

impl Jam {
    /// Returns when the API server turns calls away.
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
async fn an_api_server_that_has_no_time_is_asked_again_when_it_says() {
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

    // What has its stream asks the API server for nothing.
    assert_eq!(during.unwrap().output, "undisturbed\n");
    let another = another.unwrap();
    assert_eq!(execute(&another, "echo hello").await, "hello\n");
    for id in [another.id, handle.id] {
        provider.delete(id.as_str(), true).await.unwrap();
    }
    assert!(namespace.api::<Pod>().list(&ListParams::default()).await.unwrap().items.is_empty());
    namespace.finish().await;
}
