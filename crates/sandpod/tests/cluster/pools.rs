//! Warm pools in raw mode: filling, taking and cleanup. [`processes`] has a pool that several processes share.

mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use futures::future::try_join_all;
use sandpod::{ListOptions, Naming, Provider, RawConfig, SandboxHandle, SandboxRequest, Status};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sandpod_kube::kube::runtime::WatchStreamExt as _;
use sandpod_kube::kube::runtime::watcher::{self, Event, watcher};
use sandpod_kube::watch::SharedWatch;
use sandpod_testbed::proxy::FaultProxy;
use sandpod_testbed::{Namespace, from_json, wait_for, wait_until_none};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::setup::{BUSYBOX, config, execute, provider, soon};
use crate::spans::spans_of;

const STATUS: &str = "sandpod.dev/pool-status";
const POOL: &str = "sandpod.dev/pool";

fn pooled(namespace: &Namespace, size: u32) -> RawConfig {
    RawConfig { warm_pool_size: size, ..config(namespace, BUSYBOX) }
}

async fn create(provider: &Provider) -> SandboxHandle {
    let creating = provider.get_or_create(SandboxRequest::default());
    soon("creating", creating).await.expect("a sandbox is made")
}

/// Creates and deletes the first sandbox, which starts the filling of the pool.
async fn begin(provider: &Provider) {
    let handle = create(provider).await;
    provider.delete(handle.id.as_str(), true).await.expect("a sandbox is deleted");
}

/// The Pods of all pools that have this status and are not being deleted.
fn with_status<'a>(pods: &'a [Pod], status: &str) -> Vec<&'a Pod> {
    let is = |pod: &&Pod| pod.labels().get(STATUS).map(String::as_str) == Some(status);
    pods.iter().filter(is).filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
}

async fn pods_of_pools(namespace: &Namespace) -> Vec<Pod> {
    let selector = ListParams::default().labels(POOL);
    namespace.api::<Pod>().list(&selector).await.expect("the admin lists Pods").items
}

/// Waits until the Pods of the pools match a condition.
async fn pools_become(namespace: &Namespace, what: &str, are_so: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
    let watch = SharedWatch::new(namespace.api::<Pod>(), POOL);
    let mut changes = watch.changes();
    soon(what, async {
        loop {
            let pods = pods_of_pools(namespace).await;
            if are_so(&pods) {
                return pods;
            }
            changes.next().await;
        }
    })
    .await
}

async fn full(namespace: &Namespace, size: usize) -> Vec<Pod> {
    pools_become(namespace, "filling the pool", |pods| with_status(pods, "warm").len() == size).await
}

/// The one pool's Lease.
async fn lease(namespace: &Namespace) -> Lease {
    let leases = namespace.api::<Lease>().list(&ListParams::default().labels(POOL)).await;
    let leases = leases.expect("the admin lists Leases");
    let [lease] = leases.items.try_into().expect("there is one pool");
    lease
}

/// Lets the pools expire, and checks that a cleanup deletes them.
async fn finish(namespace: Namespace, providers: &[&Provider]) {
    for provider in providers {
        soon("closing", provider.close()).await;
    }
    providers[0].cleanup(Some(Duration::ZERO)).await.expect("a cleanup works");
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn first_sandbox_fills_the_pool_and_the_next_one_is_taken_from_it() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, pooled(&namespace, 1)).await;
    assert_eq!(provider.pool_status().await.unwrap().target, 1);
    assert_eq!(pods_of_pools(&namespace).await.len(), 0, "no sandbox was requested yet");

    let cold = create(&provider).await;
    let reason = provider.info(cold.id.as_str()).await.unwrap().cold_reason.unwrap();
    assert!(reason.contains("no Pod ready"), "{reason}");
    let pods = full(&namespace, 1).await;
    let warm = with_status(&pods, "warm")[0].clone();
    assert_eq!(warm.owner_references()[0].uid, lease(&namespace).await.uid().unwrap());

    let request = SandboxRequest {
        labels: labels(&[("team", "search"), ("thread-id", "user@example.com/1")]),
        env: labels(&[("SECRET", "of-this-call")]),
        ttl: Some(Duration::from_secs(600)),
        ..SandboxRequest::default()
    };
    let handle = soon("taking", provider.get_or_create(request)).await.unwrap();

    assert_eq!(handle.pod, format!("{}/{}", namespace.name, warm.name_any()));
    assert_eq!(execute(&handle, "echo $SECRET; pwd").await, "of-this-call\n/workspace\n");
    let info = provider.info(handle.id.as_str()).await.unwrap();
    assert_eq!((info.cold_reason, info.status, info.generation), (None, Status::Running, 1));
    assert_eq!(info.thread_id.as_deref(), Some("user@example.com/1"));
    let left = info.expires_at.unwrap().duration_since(SystemTime::now()).unwrap();
    assert!((500..=600).contains(&left.as_secs()), "its time runs from when it was handed out: {left:?}");
    let taken = namespace.api::<Pod>().get(&warm.name_any()).await.unwrap();
    assert_eq!(taken.uid(), warm.uid());
    let anchor = namespace.api::<Lease>().get(handle.id.as_str()).await.unwrap();
    let owners: Vec<_> = taken.owner_references().iter().map(|owner| owner.uid.clone()).collect();
    assert_eq!(owners, [anchor.uid().unwrap()]);
    for (label, value) in
        [(STATUS, "active"), ("sandpod.dev/id", handle.id.as_str()), ("sandpod.dev/team", "search")]
    {
        assert_eq!(taken.labels()[label], value);
    }
    let again = provider.reconnect(handle.id.as_str()).await.unwrap();
    assert_eq!(execute(&again, "echo $SECRET").await, "of-this-call\n");

    for handle in [&cold, &handle] {
        provider.delete(handle.id.as_str(), true).await.unwrap();
    }
    finish(namespace, &[&provider]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j1_pool_pods_are_warm_then_active_in_the_labels_of_langchain_kubernetes() {
    const THEIRS: &str = "langchain-kubernetes.bitkaio.com/pool-status";
    let namespace = Namespace::create().await;
    let naming = Naming::LangchainKubernetes;
    let provider = provider(&namespace, RawConfig { naming, ..pooled(&namespace, 1) }).await;
    begin(&provider).await;
    let pods = full(&namespace, 1).await;
    let warm = with_status(&pods, "warm")[0].clone();
    assert_eq!(warm.labels()[THEIRS], "warm");

    let taken = create(&provider).await;

    let pod = namespace.api::<Pod>().get(&warm.name_any()).await.unwrap();
    assert_eq!((pod.labels()[THEIRS].as_str(), pod.labels()[STATUS].as_str()), ("active", "active"));
    assert_eq!(pod.labels()["deepagents.langchain.com/sandbox-id"], taken.id.as_str());
    provider.delete(taken.id.as_str(), true).await.unwrap();
    finish(namespace, &[&provider]).await;
}

/// A pool with one warm Pod and without a refiller.
async fn pool_of_one(namespace: &Namespace) -> (Provider, Pod) {
    let provider = provider(namespace, pooled(namespace, 1)).await;
    begin(&provider).await;
    let warm = full(namespace, 1).await;
    soon("closing", provider.close()).await;
    (provider, with_status(&warm, "warm")[0].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn warm_pod_is_taken_only_with_the_deny_all_policy_in_place() {
    let namespace = Namespace::create().await;
    let (provider, warm) = pool_of_one(&namespace).await;
    let policies = namespace.api::<NetworkPolicy>();
    let open = Patch::Merge(json!({ "spec": { "egress": [{}] } }));
    policies.patch("sandpod-deny-all", &PatchParams::default(), &open).await.unwrap();

    let refused = soon("taking", provider.get_or_create(SandboxRequest::default())).await.unwrap_err();

    assert!(refused.to_string().contains("does not deny all traffic"), "{refused}");
    policies.delete("sandpod-deny-all", &DeleteParams::default()).await.unwrap();
    let handle = create(&provider).await;
    assert_eq!(handle.pod, format!("{}/{}", namespace.name, warm.name_any()));
    let policy = policies.get("sandpod-deny-all").await.expect("it is there again");
    assert!(policy.spec.unwrap().egress.is_none_or(|rules| rules.is_empty()));
    provider.delete(handle.id.as_str(), true).await.unwrap();
    finish(namespace, &[&provider]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_pod_with_the_labels_of_a_pool_is_never_taken() {
    let namespace = Namespace::create().await;
    let (provider, warm) = pool_of_one(&namespace).await;
    let pods = namespace.api::<Pod>();
    let mut copy = warm.clone();
    (copy.status, copy.metadata.uid, copy.metadata.resource_version) = (None, None, None);
    copy.spec.as_mut().unwrap().node_name = None;
    let mut unowned = copy.clone();
    (unowned.metadata.name, unowned.metadata.owner_references) = (Some("unowned".to_owned()), None);
    let mut other = copy;
    (other.metadata.name, other.metadata.annotations) = (Some("other-spec".to_owned()), None);
    for foreign in [&unowned, &other] {
        pods.create(&PostParams::default(), foreign).await.unwrap();
    }
    pods.delete(&warm.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    let is_ready = |pod: &&Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    pools_become(&namespace, "two Pods that look as if they could be taken", |pods| {
        with_status(pods, "warm").into_iter().filter(is_ready).count() == 2 && pods.len() == 2
    })
    .await;

    let handle = create(&provider).await;

    let reason = provider.info(handle.id.as_str()).await.unwrap().cold_reason.unwrap();
    assert!(reason.contains("no Pod ready"), "{reason}");
    assert_eq!(with_status(&pods_of_pools(&namespace).await, "warm").len(), 2, "both are as they were");
    assert_eq!(provider.pool_status().await.unwrap().available, 0);
    provider.delete(handle.id.as_str(), true).await.unwrap();
    provider.cleanup(Some(Duration::ZERO)).await.expect("a cleanup works");
    assert!(pods.get("unowned").await.is_ok(), "it is not the pool's to delete");
    pods.delete("unowned", &DeleteParams::default().grace_period(0)).await.unwrap();
    finish(namespace, &[&provider]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_is_refilled_after_takes_failures_and_deletions_and_is_counted() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, pooled(&namespace, 2)).await;
    let cold = create(&provider).await;
    full(&namespace, 2).await;
    let status = provider.pool_status().await.unwrap();
    assert_eq!((status.available, status.active, status.total, status.target), (2, 0, 2, 2));

    let handle = create(&provider).await;
    let pods = full(&namespace, 2).await;

    let status = provider.pool_status().await.unwrap();
    assert_eq!((status.available, status.active, status.total, status.target), (2, 1, 3, 2));
    let counted = provider.stats(Duration::from_secs(300)).await.unwrap();
    assert_eq!((counted.total, counted.running, counted.warm), (4, 2, 2));
    let all = provider.list(ListOptions::default()).await.unwrap();
    assert_eq!((all.sandboxes.len(), all.cursor), (4, None));
    let warm = ListOptions { status: Some(Status::Warm), ..ListOptions::default() };
    let listed: BTreeSet<_> =
        provider.list(warm).await.unwrap().sandboxes.into_iter().map(|info| info.id.to_string()).collect();
    assert_eq!(listed, with_status(&pods, "warm").iter().map(|pod| pod.name_any()).collect());
    let labelled = ListOptions { labels: labels(&[("team", "x")]), ..ListOptions::default() };
    assert_eq!(provider.list(labelled).await.unwrap().sandboxes.len(), 0);
    let cleaned = provider.cleanup(None).await.unwrap();
    assert_eq!((cleaned.deleted, cleaned.kept), (vec![], 4));

    let victim = with_status(&pods, "warm")[0].clone();
    namespace
        .api::<Pod>()
        .delete(&victim.name_any(), &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    pools_become(&namespace, "refilling after a death", |pods| {
        let warm = with_status(pods, "warm");
        warm.len() == 2 && warm.iter().all(|pod| pod.uid() != victim.uid())
    })
    .await;

    for handle in [&cold, &handle] {
        provider.delete(handle.id.as_str(), true).await.unwrap();
    }
    full(&namespace, 2).await;
    let status = provider.pool_status().await.unwrap();
    assert_eq!((status.available, status.active), (2, 0));
    finish(namespace, &[&provider]).await;
}

/// Records the highest number of warm Pods.
struct Census {
    most: Arc<AtomicUsize>,
    counting: JoinHandle<()>,
}

impl Census {
    fn begin(namespace: &Namespace) -> Self {
        let most = Arc::<AtomicUsize>::default();
        let (pods, seen) = (namespace.api::<Pod>(), most.clone());
        let counting = tokio::spawn(async move {
            let mut waiting = BTreeSet::new();
            let mut events = watcher(pods, watcher::Config::default().labels(POOL)).default_backoff().boxed();
            while let Some(event) = events.next().await {
                match event {
                    // A complete list follows: Pods that are not in it were deleted unseen.
                    Ok(Event::Init) => waiting.clear(),
                    Ok(Event::InitApply(pod) | Event::Apply(pod)) if waits(&pod) => {
                        waiting.insert(pod.uid());
                    }
                    Ok(Event::InitApply(pod) | Event::Apply(pod) | Event::Delete(pod)) => {
                        waiting.remove(&pod.uid());
                    }
                    Ok(Event::InitDone) | Err(_) => {}
                }
                seen.fetch_max(waiting.len(), Ordering::SeqCst);
            }
        });
        Self { most, counting }
    }

    fn most(self) -> usize {
        self.counting.abort();
        self.most.load(Ordering::SeqCst)
    }
}

fn waits(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let ended = pod.metadata.deletion_timestamp.is_some() || ["Failed", "Succeeded"].contains(&phase);
    !ended && pod.labels()[STATUS] != "active"
}

fn holder(lease: Option<&Lease>) -> Option<String> {
    lease?.spec.as_ref()?.holder_identity.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_refiller_is_replaced_and_creates_no_pods_afterwards() {
    let namespace = Namespace::create().await;
    let proxy = FaultProxy::start(namespace.api_address()).await.unwrap();
    let far = namespace.raw_through(proxy.address()).await;
    let first = Provider::with_client(far, pooled(&namespace, 2)).unwrap();
    let second = provider(&namespace, pooled(&namespace, 2)).await;
    let census = Census::begin(&namespace);
    let mut handles = vec![create(&first).await];
    full(&namespace, 2).await;
    handles.push(create(&second).await);
    // It loses its network while no request is in flight, because a sent request cannot be recalled.
    full(&namespace, 2).await;
    let (name, before) = (lease(&namespace).await.name_any(), holder(Some(&lease(&namespace).await)));
    assert!(before.is_some());

    proxy.set_stalled(true);
    wait_for(&namespace.api::<Lease>(), &name, "be another's", |lease| holder(lease) != before).await;
    handles.push(create(&second).await);
    full(&namespace, 2).await;
    let after = holder(Some(&lease(&namespace).await));
    proxy.set_stalled(false);
    handles.push(create(&first).await);
    full(&namespace, 2).await;

    assert_eq!(holder(Some(&lease(&namespace).await)), after);
    assert_eq!(census.most(), 2);
    try_join_all(handles.iter().map(|handle| second.delete(handle.id.as_str(), true))).await.unwrap();
    finish(namespace, &[&second, &first]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn next_provider_takes_over_the_pool_of_a_closed_one_and_may_shrink_it() {
    let namespace = Namespace::create().await;
    let large = provider(&namespace, pooled(&namespace, 3)).await;
    let first = create(&large).await;
    full(&namespace, 3).await;

    soon("closing", large.close()).await;
    assert_eq!(holder(Some(&lease(&namespace).await)), None);
    let victim = pods_of_pools(&namespace).await[0].name_any();
    namespace.api::<Pod>().delete(&victim, &DeleteParams::default().grace_period(0)).await.unwrap();
    let second = create(&large).await;
    assert_eq!(
        large.info(second.id.as_str()).await.unwrap().cold_reason,
        None,
        "Pods that wait can still be taken"
    );
    assert_eq!(with_status(&pods_of_pools(&namespace).await, "warm").len(), 1, "no process refills the pool");

    // The Lease was just renewed, so a cleanup keeps it.
    assert_eq!(large.cleanup(None).await.unwrap().deleted, []);
    let larger = provider(&namespace, pooled(&namespace, 2)).await;
    begin(&larger).await;
    full(&namespace, 2).await;
    let name = lease(&namespace).await.name_any();
    drop(larger);
    wait_for(&namespace.api::<Lease>(), &name, "be given back", |lease| holder(lease).is_none()).await;
    let small = provider(&namespace, pooled(&namespace, 1)).await;
    begin(&small).await;
    full(&namespace, 1).await;

    for handle in [first, second] {
        small.delete(handle.id.as_str(), true).await.unwrap();
    }
    finish(namespace, &[&small]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cleanup_deletes_an_abandoned_pool_and_keeps_one_with_a_provider() {
    let namespace = Namespace::create().await;
    let gone = provider(&namespace, pooled(&namespace, 1)).await;
    let other = RawConfig { extra_annotations: labels(&[("pool", "other")]), ..pooled(&namespace, 1) };
    let kept = provider(&namespace, other).await;
    begin(&gone).await;
    let old = full(&namespace, 1).await[0].name_any();
    let abandoned = lease(&namespace).await.name_any();
    soon("closing", gone.close()).await;
    let handle = create(&kept).await;
    let reason = kept.info(handle.id.as_str()).await.unwrap().cold_reason;
    assert!(reason.is_some(), "a Pod of another specification was taken");
    full(&namespace, 2).await;

    let long_ago = json!({ "spec": { "renewTime": "2026-01-01T00:00:00.000000Z" } });
    let leases = namespace.api::<Lease>();
    leases.patch(&abandoned, &PatchParams::default(), &Patch::Merge(&long_ago)).await.unwrap();
    let cleaned = kept.cleanup(None).await.unwrap();

    let deleted: Vec<_> = cleaned.deleted.iter().map(sandpod::SandboxId::as_str).collect();
    assert_eq!(deleted, [old.as_str()]);
    assert_eq!(cleaned.kept, 2, "a sandbox, and a Pod of the other pool");
    wait_for(&namespace.api::<Pod>(), &old, "be gone", |pod| pod.is_none()).await;
    assert_ne!(lease(&namespace).await.name_any(), abandoned);
    assert_eq!(kept.cleanup(Some(Duration::ZERO)).await.unwrap().deleted, [handle.id]);
    full(&namespace, 1).await;
    finish(namespace, &[&kept]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_pod_is_replaced_from_the_pool_and_set_up_once() {
    let namespace = Namespace::create().await;
    let script = Some("echo ready >> /workspace/setup".to_owned());
    let provider = provider(&namespace, RawConfig { setup_script: script, ..pooled(&namespace, 1) }).await;
    begin(&provider).await;
    full(&namespace, 1).await;
    let request = || SandboxRequest::named("thread-1");
    let handle = soon("taking", provider.get_or_create(request())).await.unwrap();
    assert_eq!(execute(&handle, "cat setup").await, "ready\n");
    full(&namespace, 1).await;
    let lost = handle.pod.split('/').next_back().unwrap();
    namespace.api::<Pod>().delete(lost, &DeleteParams::default().grace_period(0)).await.unwrap();

    let handle = soon("taking", provider.get_or_create(request())).await.unwrap();

    assert_eq!((handle.id.as_str(), handle.generation), ("thread-1", 2));
    assert!(handle.pod.contains("/sandpod-pool-"), "{}", handle.pod);
    assert_eq!(execute(&handle, "cat setup").await, "ready\n");
    assert_eq!(provider.info("thread-1").await.unwrap().cold_reason, None);
    provider.delete("thread-1", true).await.unwrap();
    finish(namespace, &[&provider]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_creators_of_one_id_take_one_pod() {
    let namespace = Namespace::create().await;
    let one = provider(&namespace, pooled(&namespace, 3)).await;
    let other = provider(&namespace, config(&namespace, BUSYBOX)).await;
    begin(&one).await;
    full(&namespace, 3).await;

    let creating = (0..20).map(|number| {
        let provider = if number % 4 == 3 { &other } else { &one };
        provider.get_or_create(SandboxRequest::named("thread-1"))
    });
    let handles = soon("creating", try_join_all(creating)).await.unwrap();

    assert!(handles.iter().all(|handle| handle.pod == handles[0].pod && handle.generation == 1));
    let pods =
        namespace.api::<Pod>().list(&ListParams::default().labels("sandpod.dev/id=thread-1")).await.unwrap();
    assert_eq!(pods.items.len(), 1, "one Pod is theirs");
    other.delete("thread-1", true).await.unwrap();
    finish(namespace, &[&one]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn next_request_for_the_id_finishes_the_sandbox_of_a_killed_process() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, pooled(&namespace, 1)).await;
    begin(&provider).await;
    let warm = full(&namespace, 1).await[0].name_any();
    // It recorded which Pod it takes, and was killed then.
    let anchor: Lease = from_json(json!({
        "metadata": {
            "name": "thread-1",
            "labels": { "app.kubernetes.io/managed-by": "sandpod", "sandpod.dev/id": "thread-1" },
            "annotations": { "sandpod.dev/generation": "1", "sandpod.dev/pod-name": warm },
        },
    }));
    namespace.api::<Lease>().create(&PostParams::default(), &anchor).await.unwrap();

    let handle = soon("taking over", provider.get_or_create(SandboxRequest::of("thread-1"))).await.unwrap();

    assert_eq!(
        (handle.id.as_str(), handle.pod.as_str()),
        ("thread-1", &*format!("{}/{warm}", namespace.name))
    );
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    provider.delete("thread-1", true).await.unwrap();
    finish(namespace, &[&provider]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_a_pod_from_a_pool_has_a_span_of_its_own() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, pooled(&namespace, 1)).await;
    let (cold, spans) = spans_of(create(&provider)).await;
    assert_eq!(spans.iter().filter(|name| **name == "warm_claim").count(), 0, "{spans:?}");
    full(&namespace, 1).await;
    let (warm, spans) = spans_of(create(&provider)).await;
    assert_eq!(spans.iter().filter(|name| **name == "warm_claim").count(), 1, "{spans:?}");
    assert!(spans.contains(&"operation"), "{spans:?}");
    for handle in [cold, warm] {
        provider.delete(handle.id.as_str(), true).await.unwrap();
    }
    finish(namespace, &[&provider]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_objects_stay_as_long_as_a_pool_is_kept() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, pooled(&namespace, 1)).await;
    begin(&provider).await;
    full(&namespace, 1).await;

    let error = provider.clear().await.unwrap_err();
    assert!(error.to_string().contains("there is a warm pool in"), "{error}");
    assert_eq!(
        provider.cleanup(Some(Duration::ZERO)).await.unwrap().deleted,
        [],
        "a provider keeps the pool"
    );
    assert_eq!(with_status(&pods_of_pools(&namespace).await, "warm").len(), 1);

    soon("closing", provider.close()).await;
    assert_eq!(provider.cleanup(Some(Duration::ZERO)).await.unwrap().deleted.len(), 1);
    let removed = soon("clearing", provider.clear()).await.unwrap();
    for part in ["networkpolicy/sandpod-deny-all", "configmap/sandpod-guest-", "configmap/sandpod-image-"] {
        assert!(removed.iter().any(|name| name.starts_with(part)), "{part}: {removed:?}");
    }
    namespace.finish().await;
}
