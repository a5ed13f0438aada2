//! The names that users of langchain-kubernetes select, beside ours.

use std::fmt::Debug;
use std::time::Duration;

use sandpod::{AgentSandboxConfig, ListOptions, Naming, Provider, RawConfig, SandboxRequest, Status};
use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::{Namespace as KubeNamespace, Pod, ResourceQuota};
use sandpod_kube::k8s_openapi::api::networking::v1::NetworkPolicy;
use sandpod_kube::k8s_openapi::jiff::Timestamp;
use sandpod_kube::k8s_openapi::serde::Serialize;
use sandpod_kube::k8s_openapi::serde::de::DeserializeOwned;
use sandpod_kube::kube::api::ListParams;
use sandpod_kube::kube::{Api, Resource, ResourceExt};
use sandpod_testbed::{Namespace, wait_for};

use crate::agent_sandbox;
use crate::setup::{BUSYBOX, config, execute, provider, soon};

const THEIRS: &str = "langchain-kubernetes.bitkaio.com";

fn annotation<'a>(object: &'a impl ResourceExt, domain: &str, name: &str) -> Option<&'a str> {
    object.annotations().get(&format!("{domain}/{name}")).map(String::as_str)
}

fn moment(object: &impl ResourceExt, name: &str) -> Timestamp {
    let text =
        annotation(object, THEIRS, name).unwrap_or_else(|| panic!("no {name}: {:?}", object.annotations()));
    assert!(text.ends_with('Z'), "{name} is not in UTC: {text}");
    text.parse().unwrap_or_else(|error| panic!("{name} is no time: {text}: {error}"))
}

/// Follows the annotations on a sandbox's anchor from its creation to its deletion.
async fn times_are_noted_for_their_users<K>(provider: &Provider, anchors: &Api<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let (ttl, idle_ttl) = (Some(Duration::from_secs(600)), Some(Duration::from_secs(300)));
    let request = SandboxRequest { ttl, idle_ttl, ..SandboxRequest::named("a") };
    drop(soon("creating", provider.get_or_create(request)).await.expect("a sandbox is made"));

    let made = anchors.get("a").await.expect("its anchor is there");
    assert_eq!(annotation(&made, THEIRS, "ttl-seconds"), Some("600"));
    assert_eq!(annotation(&made, THEIRS, "ttl-idle-seconds"), Some("300"));
    let created: Timestamp = annotation(&made, "sandpod.dev", "created-at")
        .and_then(|text| text.parse().ok())
        .expect("it was handed out");
    assert_eq!(moment(&made, "created-at"), created);
    let used = moment(&made, "last-activity");
    assert_eq!(annotation(&made, THEIRS, "pod-uid"), None, "their naming has no such annotation");

    let again = soon("reconnecting", provider.reconnect("a")).await.expect("it is found");
    assert_eq!(execute(&again, "echo hello").await, "hello\n");
    wait_for(anchors, "a", "be noted as used", |anchor| {
        anchor.is_some_and(|anchor| moment(anchor, "last-activity") > used)
    })
    .await;
    provider.extend("a", Duration::from_secs(6000)).await.expect("it is given more time");
    let extended = anchors.get("a").await.expect("its anchor is there");
    assert_eq!(
        annotation(&extended, THEIRS, "ttl-seconds"),
        annotation(&extended, "sandpod.dev", "ttl-seconds"),
        "one who was given more time"
    );
    assert_ne!(annotation(&extended, THEIRS, "ttl-seconds"), Some("600"));
    provider.delete("a", true).await.expect("it is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn j3_times_to_live_and_of_use_are_on_a_lease_as_langchain_kubernetes_writes_them() {
    let namespace = Namespace::create().await;
    let config = RawConfig { naming: Naming::LangchainKubernetes, ..config(&namespace, BUSYBOX) };
    let provider = provider(&namespace, config).await;
    times_are_noted_for_their_users(&provider, &namespace.api::<Lease>()).await;
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j3_times_to_live_and_of_use_are_on_a_claim_as_langchain_kubernetes_writes_them() {
    let namespace = agent_sandbox::setup::namespace().await;
    let naming = Naming::LangchainKubernetes;
    let config = AgentSandboxConfig { naming, ..agent_sandbox::setup::config(&namespace) };
    let provider = agent_sandbox::setup::provider(&namespace, config).await;
    times_are_noted_for_their_users(&provider, &namespace.api::<SandboxClaim>()).await;
    agent_sandbox::setup::finish(namespace, &provider).await;
}

/// The names that `kubectl get --selector` prints.
async fn selected<K>(objects: &Api<K>, selector: &str) -> Vec<String>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let found = objects.list(&ListParams::default().labels(selector)).await.expect("objects are listed");
    found.items.iter().map(ResourceExt::name_any).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_d7_d14_kubectl_finds_all_of_a_sandbox_by_langchain_kubernetes_labels() {
    let namespace = Namespace::create().await;
    let naming = Naming::LangchainKubernetes;
    let config = RawConfig { namespace_per_sandbox: true, naming, ..config(&namespace, BUSYBOX) };
    let provider = Provider::with_client(namespace.raw_namespaces().await, config).unwrap();

    let made = soon("creating", provider.get_or_create(SandboxRequest::default())).await.unwrap();

    let (id, home) = (made.id.as_str(), format!("deepagents-{}", made.id));
    let everyones = "app.kubernetes.io/managed-by=deepagents,app.kubernetes.io/component=sandbox";
    let its = format!("{everyones},deepagents.langchain.com/sandbox-id={id}");
    let namespaces: Api<KubeNamespace> = Api::all(namespace.admin.clone());
    // Other tests have namespaces, too.
    assert!(selected(&namespaces, everyones).await.contains(&home));
    assert_eq!(selected(&namespaces, &its).await, [&*home]);
    let pods: Api<Pod> = Api::namespaced(namespace.admin.clone(), &home);
    let policies: Api<NetworkPolicy> = Api::namespaced(namespace.admin.clone(), &home);
    let quotas: Api<ResourceQuota> = Api::namespaced(namespace.admin.clone(), &home);
    for selector in [everyones, &its] {
        assert_eq!(selected(&pods, selector).await, [format!("deepagents-{id}")]);
        assert_eq!(selected(&policies, selector).await, [format!("deepagents-deny-all-{id}")]);
        assert_eq!(selected(&quotas, selector).await, ["deepagents-quota"]);
    }
    let quota = quotas.get("deepagents-quota").await.unwrap();
    let hard = quota.spec.unwrap().hard.unwrap();
    let container = pods.get(&format!("deepagents-{id}")).await.unwrap().spec.unwrap().containers.remove(0);
    let resources = container.resources.unwrap();
    for (kind, amounts) in [("requests", resources.requests.unwrap()), ("limits", resources.limits.unwrap())]
    {
        for resource in ["cpu", "memory"] {
            assert_eq!(hard[&format!("{kind}.{resource}")], amounts[resource], "{kind} of {resource}");
        }
    }
    assert_eq!(hard["pods"].0, "1");

    provider.delete(id, true).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d7_a_sandboxes_own_namespace_is_named_and_labelled_as_in_langchain_kubernetes() {
    let namespace = Namespace::create().await;
    let client = namespace.raw_namespaces().await;
    let ours = RawConfig { namespace_per_sandbox: true, ..config(&namespace, BUSYBOX) };
    let theirs = RawConfig { naming: Naming::LangchainKubernetes, ..ours.clone() };
    let [ours, theirs] = [ours, theirs].map(|config| Provider::with_client(client.clone(), config).unwrap());

    let made = soon("creating", theirs.get_or_create(SandboxRequest::default())).await.unwrap();

    let home = format!("deepagents-{}", made.id);
    assert_eq!(made.pod, format!("{home}/deepagents-{}", made.id));
    assert_eq!(made.id.as_str().len(), 8);
    assert_eq!(execute(&made, "echo hello > note; cat note").await, "hello\n");
    let namespaces: Api<KubeNamespace> = Api::all(namespace.admin.clone());
    assert_eq!(namespaces.get(&home).await.unwrap().labels()["sandpod.dev/id"], made.id.as_str());
    for provider in [&ours, &theirs] {
        let listed = provider.list(ListOptions::default()).await.unwrap().sandboxes;
        let listed: Vec<_> = listed.iter().map(|info| (&info.id, info.status)).collect();
        assert_eq!(listed, [(&made.id, Status::Running)], "who calls namespaces otherwise lists it");
    }

    let found = soon("reconnecting", ours.reconnect(made.id.as_str())).await.unwrap();
    assert_eq!(execute(&found, "cat note").await, "hello\n", "who calls namespaces otherwise finds it");
    ours.extend(made.id.as_str(), Duration::from_secs(600)).await.unwrap();
    let cleaned = ours.cleanup(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(cleaned.deleted, std::slice::from_ref(&made.id));
    wait_for(&namespaces, &home, "be gone", |namespace| namespace.is_none()).await;
    namespace.finish().await;
}
