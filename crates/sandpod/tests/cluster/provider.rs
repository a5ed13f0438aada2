//! Listing, information, expiry and cleanup of sandboxes.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use sandpod::{
    ErrorKind, ExecuteOptions, ListOptions, OnLost, Provider, SandboxHandle, SandboxRequest, Status,
};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::api::rbac::v1::RoleBinding;
use sandpod_kube::kube::ResourceExt;
use sandpod_kube::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sandpod_testbed::{Namespace, from_json, wait_for, wait_until_none};
use serde_json::json;
use tokio::time::Instant;

use crate::agent_sandbox;
use crate::setup::{BUSYBOX, config, execute, provider, soon};

fn labels(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// All pages of a list.
async fn list_all(provider: &Provider, options: ListOptions) -> Vec<(String, Status)> {
    let (mut all, mut options) = (Vec::new(), options);
    loop {
        let page = provider.list(options.clone()).await.expect("sandboxes are listed");
        all.extend(page.sandboxes.iter().map(|info| (info.id.to_string(), info.status)));
        options.cursor = page.cursor;
        if options.cursor.is_none() {
            return all;
        }
    }
}

/// Changes a sandbox's anchor directly.
async fn change(namespace: &Namespace, id: &str, patch: serde_json::Value) {
    let leases = namespace.api::<Lease>();
    leases
        .patch(id, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("the admin changes a Lease");
}

/// The Lease of a sandbox that was handed out `age` seconds ago. Its Pod never starts, so many of them are cheap.
async fn make_old(namespace: &Namespace, id: &str, age: u64, annotations: serde_json::Value) {
    let created = humantime(SystemTime::now() - seconds(age));
    let mut annotations = annotations;
    annotations["sandpod.dev/generation"] = "1".into();
    annotations["sandpod.dev/created-at"] = created.clone().into();
    let lease: Lease = from_json(json!({
        "metadata": {
            "name": id,
            "labels": { "app.kubernetes.io/managed-by": "sandpod", "sandpod.dev/id": id },
            "annotations": annotations,
        },
        "spec": { "renewTime": created },
    }));
    namespace.api::<Lease>().create(&PostParams::default(), &lease).await.expect("the admin makes a Lease");
}

/// A time as Kubernetes writes it.
fn humantime(time: SystemTime) -> String {
    let time: sandpod_kube::k8s_openapi::jiff::Timestamp = time.try_into().expect("it is a time");
    format!("{time:.6}")
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_has_the_labels_environment_and_lifetimes_of_its_request() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.default_labels = labels(&[("team", "search"), ("stage", "test")]);
    config.env = labels(&[("A", "config"), ("B", "config")]);
    let provider = provider(&namespace, config).await;
    let request = SandboxRequest {
        labels: labels(&[("stage", "live"), ("thread-id", "user@example.com/1")]),
        ttl: Some(seconds(600)),
        idle_ttl: Some(seconds(300)),
        env: labels(&[("B", "of-this-call")]),
        ..SandboxRequest::default()
    };

    let handle = soon("creating", provider.get_or_create(request)).await.unwrap();

    assert_eq!(execute(&handle, "echo $A $B").await, "config of-this-call\n");
    let info = provider.info(handle.id.as_str()).await.unwrap();
    let expected = labels(&[("stage", "live"), ("team", "search"), ("thread-id", "user@example.com/1")]);
    assert_eq!(info.labels, expected);
    assert_eq!(info.thread_id.as_deref(), Some("user@example.com/1"));
    assert_eq!((info.status, info.generation), (Status::Running, 1));
    let left = info.expires_at.unwrap().duration_since(SystemTime::now()).unwrap();
    assert!((seconds(250)..=seconds(330)).contains(&left), "{left:?}");
    let pod: Pod = namespace.api().get(handle.pod.split('/').next_back().unwrap()).await.unwrap();
    assert_eq!(pod.labels()["sandpod.dev/stage"], "live");
    assert!(!serde_json::to_string(&pod).unwrap().contains("of-this-call"), "the environment is in the Pod");
    let stats = provider.stats(seconds(300)).await.unwrap();
    assert_eq!((stats.total, stats.running, stats.idle), (1, 1, 0));
    assert_eq!(stats.thread_ids, ["user@example.com/1"]);

    for (wanted, count) in [
        (labels(&[("team", "search")]), 1),
        (labels(&[("thread-id", "user@example.com/1")]), 1),
        (labels(&[("team", "search"), ("stage", "test")]), 0),
    ] {
        let options = ListOptions { labels: wanted, ..ListOptions::default() };
        assert_eq!(list_all(&provider, options).await.len(), count);
    }
    provider.delete(handle.id.as_str(), true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_sandbox_is_listed_as_terminated_until_a_cleanup() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let mortal = SandboxRequest { ttl: Some(seconds(2)), ..SandboxRequest::named("mortal") };
    let idle = SandboxRequest { idle_ttl: Some(seconds(2)), ..SandboxRequest::named("idle") };
    let requests = [mortal, idle, SandboxRequest::named("lasting")];
    let creating = requests.map(|request| provider.get_or_create(request));
    soon("creating", futures::future::try_join_all(creating)).await.unwrap();

    for pod in ["mortal-1", "idle-1"] {
        wait_for(&namespace.api::<Pod>(), pod, "end", |pod| {
            let status = pod.and_then(|pod| pod.status.as_ref());
            status.is_some_and(|status| status.phase.as_deref() == Some("Succeeded"))
        })
        .await;
    }

    let listed = list_all(&provider, ListOptions::default()).await;
    let expected =
        [("idle", Status::Terminated), ("lasting", Status::Running), ("mortal", Status::Terminated)];
    assert_eq!(listed, expected.map(|(id, status)| (id.to_owned(), status)));
    let running = ListOptions { status: Some(Status::Running), ..ListOptions::default() };
    assert_eq!(list_all(&provider, running).await.len(), 1);
    let request = SandboxRequest { on_lost: OnLost::Error, ..SandboxRequest::of("mortal") };
    let error = provider.get_or_create(request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");

    let cleaned = provider.cleanup(None).await.unwrap();
    let deleted: Vec<_> = cleaned.deleted.iter().map(ToString::to_string).collect();
    assert_eq!(BTreeSet::from_iter(deleted), BTreeSet::from(["idle".to_owned(), "mortal".to_owned()]));
    assert_eq!(cleaned.kept, 1);
    assert_eq!(provider.cleanup(None).await.unwrap().deleted, []);

    provider.delete("lasting", true).await.unwrap();
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extended_sandbox_expires_later() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let request = SandboxRequest { ttl: Some(seconds(15)), ..SandboxRequest::named("a") };
    let handle = soon("creating", provider.get_or_create(request)).await.unwrap();

    soon("extending", provider.extend("a", seconds(600))).await.unwrap();

    assert_eq!(execute(&handle, "sleep 16; echo alive").await, "alive\n");
    let info = provider.info("a").await.unwrap();
    assert_eq!(info.status, Status::Running);
    let left = info.expires_at.unwrap().duration_since(SystemTime::now()).unwrap();
    assert!((seconds(500)..=seconds(600)).contains(&left), "{left:?}");
    assert_eq!(provider.extend("b", seconds(1)).await.unwrap_err().kind(), ErrorKind::NotFound);
    provider.delete("a", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn use_of_a_reconnected_sandbox_is_recorded_and_a_cleanup_keeps_it() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let request = SandboxRequest { idle_ttl: Some(seconds(600)), ..SandboxRequest::named("a") };
    drop(soon("creating", provider.get_or_create(request)).await.unwrap());
    // As if it had been idle for long.
    let before = humantime(SystemTime::now() - seconds(3600));
    let old = json!({
        "metadata": { "annotations": { "sandpod.dev/created-at": before } },
        "spec": { "renewTime": before },
    });
    change(&namespace, "a", old).await;
    assert_eq!(provider.info("a").await.unwrap().status, Status::Terminated);

    let handle = provider.reconnect("a").await.unwrap();
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");

    wait_for(&namespace.api::<Lease>(), "a", "be renewed", |lease| {
        let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
        renewed.is_some_and(|renewed| SystemTime::from(renewed.0) > SystemTime::now() - seconds(60))
    })
    .await;
    assert_eq!(provider.cleanup(None).await.unwrap().deleted, []);
    provider.delete("a", true).await.unwrap();
    namespace.finish().await;
}

/// Creates sandboxes with and without an idle TTL, leaves two of them idle and uses the others.
async fn a_cleanup_deletes_only_idle_sandboxes(provider: &Provider, other: &Provider) {
    let named = |id: &str, idle_ttl| SandboxRequest { idle_ttl, ..SandboxRequest::named(id) };
    let all = [
        named("idle-with-ttl", Some(seconds(600))),
        named("idle", None),
        named("used-with-ttl", Some(seconds(600))),
        named("used", None),
        named("busy", None),
    ];
    let creating = all.map(|request| provider.get_or_create(request));
    let made = soon("creating", futures::future::try_join_all(creating)).await.expect("they are made");
    for handle in &made {
        assert_eq!(execute(handle, "echo hello").await, "hello\n");
    }
    let busy = made[4].sandbox.clone();
    let busy =
        tokio::spawn(async move { busy.execute("sleep 15; echo done", ExecuteOptions::default()).await });
    let used = async |handle: &SandboxHandle| loop {
        assert_eq!(execute(handle, "echo hello").await, "hello\n");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let cleaning = async {
        tokio::time::sleep(seconds(2)).await;
        let began = Instant::now();
        let cleaned = other.cleanup(Some(seconds(2))).await.expect("a cleanup works");
        (cleaned, began.elapsed())
    };

    let (cleaned, took) = tokio::select! {
        cleaned = cleaning => cleaned,
        () = async { tokio::join!(used(&made[2]), used(&made[3])); } => unreachable!("they are used until the cleanup ends"),
    };

    let deleted: BTreeSet<_> = cleaned.deleted.iter().map(ToString::to_string).collect();
    assert_eq!(deleted, BTreeSet::from(["idle".to_owned(), "idle-with-ttl".to_owned()]));
    assert_eq!(cleaned.kept, 3);
    assert!(took < seconds(10), "it took {took:?}");
    let executed =
        soon("the command", busy).await.expect("its task ends").expect("a command that runs is a use");
    assert_eq!(executed.output, "done\n");
    let error = made[1].sandbox.execute("true", ExecuteOptions::default()).await.expect_err("it is deleted");
    assert!(error.to_string().contains("gone"), "{error}");
    for id in ["used-with-ttl", "used", "busy"] {
        provider.delete(id, true).await.expect("it is deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i7_a_cleanup_deletes_only_idle_sandboxes_and_within_seconds() {
    let namespace = Namespace::create().await;
    let one = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let other = provider(&namespace, config(&namespace, BUSYBOX)).await;
    a_cleanup_deletes_only_idle_sandboxes(&one, &other).await;
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i7_a_cleanup_deletes_only_idle_claims_and_within_seconds() {
    let namespace = agent_sandbox::setup::namespace().await;
    let config = agent_sandbox::setup::config(&namespace);
    let one = agent_sandbox::setup::provider(&namespace, config.clone()).await;
    let other = agent_sandbox::setup::provider(&namespace, config).await;
    a_cleanup_deletes_only_idle_sandboxes(&one, &other).await;
    agent_sandbox::setup::finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn o9_repeated_cleanups_never_delete_a_sandbox_in_use() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    drop(soon("creating", provider.get_or_create(SandboxRequest::named("a"))).await.unwrap());
    let handle = soon("reconnecting", provider.reconnect("a")).await.unwrap();
    let using = async {
        for _ in 0..20 {
            assert_eq!(execute(&handle, "echo hello").await, "hello\n");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let cleaning = async {
        loop {
            assert_eq!(provider.cleanup(Some(seconds(2))).await.unwrap().deleted, []);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = using => {}
        () = cleaning => {}
    }
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    // A status request does not count as use.
    let began = Instant::now();
    while provider.cleanup(Some(seconds(2))).await.unwrap().deleted.is_empty() {
        assert!(began.elapsed() < seconds(20), "it is not idle after {:?}", began.elapsed());
    }
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_creators_of_one_id_share_one_pod() {
    let namespace = Namespace::create().await;
    let one = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let other = provider(&namespace, config(&namespace, BUSYBOX)).await;

    let creating = (0..20).map(|number| {
        let provider = if number % 2 == 0 { &one } else { &other };
        provider.get_or_create(SandboxRequest::named("thread-1"))
    });
    let handles = soon("creating", futures::future::try_join_all(creating)).await.unwrap();

    assert!(handles.iter().all(|handle| handle.pod == handles[0].pod && handle.generation == 1));
    let pods = namespace.api::<Pod>().list(&ListParams::default()).await.unwrap();
    assert_eq!(pods.items.len(), 1);
    one.delete("thread-1", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_sandbox_ends_its_running_command_and_later_calls_report_the_deletion() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::named("a"))).await.unwrap();
    let sandbox = handle.sandbox.clone();
    let running = tokio::spawn(async move { sandbox.execute("sleep 100", ExecuteOptions::default()).await });
    execute(&handle, "until pgrep sleep; do :; done").await;

    provider.delete("a", true).await.unwrap();

    // Whether the guest still answers the order to end is a race with the Pod's end.
    if let Ok(executed) = soon("the command", running).await.unwrap() {
        assert_eq!(executed.exit_code, Some(143));
    }
    let error = handle.sandbox.execute("true", ExecuteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("Pod 'a-1'"), "{error}");
    assert_eq!(provider.info("a").await.unwrap_err().kind(), ErrorKind::NotFound);
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_cleanups_at_once_delete_each_idle_sandbox_once_and_keep_used_ones() {
    let namespace = Namespace::create().await;
    let one = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let other = provider(&namespace, config(&namespace, BUSYBOX)).await;
    for number in 0..40 {
        let id = format!("old-{number}");
        make_old(&namespace, &id, 1000, json!({ "sandpod.dev/ttl-seconds": "10" })).await;
    }
    make_old(&namespace, "young", 5, json!({ "sandpod.dev/ttl-seconds": "1000" })).await;

    let (first, second) = tokio::join!(one.cleanup(None), other.cleanup(None));

    let (first, second) = (first.unwrap().deleted, second.unwrap().deleted);
    let all: BTreeSet<_> = first.iter().chain(&second).collect();
    assert_eq!((all.len(), first.len() + second.len()), (40, 40), "each is deleted once");
    assert_eq!(one.info("young").await.unwrap().status, Status::Running);
    one.delete("young", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cleanup_never_deletes_a_sandbox_that_is_used_after_its_check() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    for round in 0..10 {
        let id = format!("idle-{round}");
        make_old(&namespace, &id, 1000, json!({ "sandpod.dev/ttl-idle-seconds": "100" })).await;
        let leases = namespace.api::<Lease>();
        let now = json!({ "spec": { "renewTime": humantime(SystemTime::now()) } });
        let (patching, parameters) = (Patch::Merge(&now), PatchParams::default());

        let (renewed, cleaned) =
            tokio::join!(leases.patch(&id, &parameters, &patching), provider.cleanup(None));

        let deleted = cleaned.unwrap().deleted.iter().any(|deleted| deleted.as_str() == id);
        let there = leases.get_opt(&id).await.unwrap().is_some();
        // The first one wins, and the other one gets an error.
        assert_eq!((renewed.is_ok(), there), (!deleted, !deleted), "{renewed:?}");
        if there {
            leases.delete(&id, &DeleteParams::default()).await.unwrap();
        }
    }
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_for_an_existing_sandbox_does_not_change_it() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let request = |team: &str| SandboxRequest {
        labels: labels(&[("team", team)]),
        ttl: Some(seconds(600)),
        ..SandboxRequest::named("thread-1")
    };
    soon("creating", provider.get_or_create(request("search"))).await.unwrap();
    let before = provider.info("thread-1").await.unwrap();

    soon("getting", provider.get_or_create(request("other"))).await.unwrap();

    let after = provider.info("thread-1").await.unwrap();
    assert_eq!(after.labels, labels(&[("team", "search")]));
    assert_eq!((after.created_at, after.expires_at), (before.created_at, before.expires_at));
    let idle = provider.stats(Duration::ZERO).await.unwrap();
    assert_eq!((idle.total, idle.running, idle.idle), (1, 1, 1));
    provider.delete("thread-1", true).await.unwrap();
    provider.delete("thread-1", true).await.expect("that it is gone is no error");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_users_have_the_configured_prefix() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.label_prefix = "agents.example.com/".to_owned();
    let provider = provider(&namespace, config).await;
    let long = "x".repeat(100);
    let request =
        SandboxRequest { labels: labels(&[("thread-id", &long)]), ..SandboxRequest::named("thread-1") };
    soon("creating", provider.get_or_create(request)).await.unwrap();

    let pods = ListParams::default().labels("agents.example.com/thread-id=09ecb6ebc8bc");
    let pods = namespace.api::<Pod>().list(&pods).await.unwrap().items;
    assert_eq!(pods.len(), 1, "kubectl finds it by the first digits of the value's SHA-256");
    assert!(!pods[0].metadata.labels.as_ref().unwrap().contains_key("sandpod.dev/thread-id"));
    let options = ListOptions { labels: labels(&[("thread-id", &long)]), ..ListOptions::default() };
    let listed = provider.list(options).await.unwrap().sandboxes;
    assert_eq!(listed[0].labels, labels(&[("thread-id", &long)]));
    assert_eq!(listed[0].thread_id.as_deref(), Some(long.as_str()));
    provider.delete("thread-1", true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_is_pending_while_it_is_created() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.unschedulable_grace_seconds = 600;
    config.node_selector.insert("sandpod.test/nowhere".to_owned(), "true".to_owned());
    let provider = provider(&namespace, config).await;
    let making = provider.clone();
    let making =
        tokio::spawn(async move { making.get_or_create(SandboxRequest::named("a")).await.map(drop) });
    wait_for(&namespace.api::<Pod>(), "a-1", "be there", |pod| pod.is_some()).await;

    for (status, count) in [(Status::Pending, 1), (Status::Running, 0), (Status::Terminated, 0)] {
        let options = ListOptions { status: Some(status), ..ListOptions::default() };
        assert_eq!(provider.list(options).await.unwrap().sandboxes.len(), count, "{status:?}");
    }
    making.abort();
    let _ = making.await;
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_succeed_when_the_last_use_cannot_be_recorded() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let request = SandboxRequest { idle_ttl: Some(seconds(600)), ..SandboxRequest::named("thread-1") };
    let handle = soon("creating", provider.get_or_create(request)).await.unwrap();
    // Without its role it cannot write, but the stream is open.
    let roles = namespace.api::<RoleBinding>();
    roles.delete("sandpod-raw", &DeleteParams::default()).await.unwrap();

    let executed = handle.sandbox.execute("echo on", ExecuteOptions::default()).await.unwrap();

    assert_eq!(executed.output, "on\n");
    let leases = namespace.api::<Lease>();
    leases.delete("thread-1", &DeleteParams::default()).await.unwrap();
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_listed_and_cleaned() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let count: usize =
        std::env::var("SANDPOD_TEST_SANDBOXES").map_or(500, |count| count.parse().expect("it is a number"));
    let making = (0..count).map(|number| make_gated(&namespace, number));
    let making = futures::StreamExt::buffer_unordered(futures::stream::iter(making), 32);
    futures::StreamExt::for_each(making, |()| async {}).await;

    let before = resident_bytes();
    let listed = list_all(&provider, ListOptions::default()).await;
    let ids: BTreeSet<_> = listed.iter().map(|(id, _)| id).collect();
    assert_eq!((listed.len(), ids.len()), (count, count));
    assert!(listed.iter().all(|(_, status)| *status == Status::Terminated));
    let stats = provider.stats(seconds(300)).await.unwrap();
    assert_eq!((stats.total, stats.running), (count, 0));
    let cleaned = provider.cleanup(None).await.unwrap();
    assert_eq!((cleaned.deleted.len(), cleaned.kept), (count, 0));
    let grown = resident_bytes().saturating_sub(before);
    // Other tests of this process use memory, too.
    assert!(grown < 256 << 20, "the memory grew by {} MiB", grown >> 20);

    assert_eq!(list_all(&provider, ListOptions::default()).await, []);
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}

/// An expired sandbox with a real Pod that is never scheduled.
async fn make_gated(namespace: &Namespace, number: usize) {
    let id = format!("gated-{number}");
    make_old(namespace, &id, 1000, json!({ "sandpod.dev/ttl-seconds": "10" })).await;
    let lease = namespace.api::<Lease>().get(&id).await.expect("the Lease is there");
    let pod: Pod = from_json(json!({
        "metadata": {
            "name": format!("{id}-1"),
            "labels": { "app.kubernetes.io/managed-by": "sandpod", "sandpod.dev/id": id },
            "ownerReferences": [{
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": id, "uid": lease.uid(),
            }],
        },
        "spec": {
            "schedulingGates": [{ "name": "sandpod.test/never" }],
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "sandbox",
                "image": BUSYBOX,
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    }));
    namespace.api::<Pod>().create(&PostParams::default(), &pod).await.expect("the admin makes a Pod");
}

/// This process's resident memory.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: usize =
        text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("it has numbers");
    pages * 4096
}
