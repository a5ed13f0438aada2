//! Pods with one of agent-sandbox's stock runtimes, where exec is forbidden: the client uses the runtime's own API, through
//! the router and directly.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::BTreeSet;
use std::time::Duration;

use sandpod::{AgentSandboxConfig, ErrorKind, ExecuteOptions, GuestDelivery, Provider, SandboxHandle};
use sandpod_client::{GrepOptions, Page, ReadOptions, StartOptions};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use sandpod_kube::kube::api::{DeleteParams, PostParams};
use sandpod_testbed::Namespace;
use sandpod_testbed::stock_runtime::StockRuntime;
use serde_json::{Value, json};

use super::setup::{TEMPLATE, config, finish, make_template, named, provider};
use super::ways::{grant_router, revoke_router, router};
use crate::setup::{execute, soon};

/// A template without sandpod.
async fn namespace(spec: Value) -> Namespace {
    let namespace = Namespace::create().await;
    make_template(&namespace, TEMPLATE, spec).await;
    namespace
}

pub(super) async fn legacy() -> Namespace {
    namespace(StockRuntime::Legacy.pod_spec()).await
}

async fn sandboxd() -> Namespace {
    namespace(StockRuntime::Sandboxd.pod_spec()).await
}

/// Revokes the right to exec.
async fn forbid_exec(namespace: &Namespace) {
    // The role exists once a client with it was requested.
    namespace.agent_sandbox().await;
    let roles = namespace.api::<Role>();
    let mut role = roles.get("sandpod-agent-sandbox").await.expect("the role is there");
    let other = |rule: &PolicyRule| rule.resources.iter().flatten().all(|resource| resource != "pods/exec");
    role.rules.as_mut().expect("it grants something").retain(other);
    roles
        .replace("sandpod-agent-sandbox", &PostParams::default(), &role)
        .await
        .expect("the admin changes it");
}

fn within(seconds: u64) -> ExecuteOptions {
    ExecuteOptions { timeout: Some(Duration::from_secs(seconds)), ..ExecuteOptions::default() }
}

async fn claim(provider: &Provider, id: &str) -> SandboxHandle {
    soon("claiming", provider.get_or_create(named(id))).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The zombies that stay in the sandbox, apart from session leaders: a command that outlasts its request leaves its script,
/// which leads a session, to a runtime that reaps nothing.
async fn zombies(handle: &SandboxHandle) -> BTreeSet<String> {
    const LIST: &str = "for stat in /proc/[0-9]*/stat; do read -r pid _ state _ _ session _ < $stat; \
                        [ \"$state\" != Z ] || [ $pid = $session ] || echo $pid; done 2> /dev/null; true";
    // Each call has zombies of its own for a moment.
    let (first, second) = (execute(handle, LIST).await, execute(handle, LIST).await);
    first.lines().filter(|pid| second.lines().any(|other| other == *pid)).map(str::to_owned).collect()
}

/// Commands, files and searches; `dir` is where the runtime starts commands.
async fn use_fully(handle: &SandboxHandle, dir: &str) {
    assert_eq!(execute(handle, "echo hello | tr a-z A-Z; pwd; id -u").await, format!("HELLO\n{dir}\n1000\n"));
    assert_eq!(zombies(handle).await, BTreeSet::new(), "the processes of the first command are reaped");
    let failed = handle.sandbox.execute("echo no >&2; exit 7", within(20)).await.unwrap();
    assert_eq!((&failed.output[..], failed.exit_code), (&b"no\n"[..], Some(7)));
    let ended =
        handle.sandbox.execute("echo begun; setsid sleep 1000 & sleep 1000", within(2)).await.unwrap();
    assert_eq!((ended.exit_code, ended.timed_out), (Some(124), true));
    assert_eq!(String::from_utf8_lossy(&ended.output), "begun\nCommand timed out after 2s");
    let left =
        execute(handle, "cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep -cx '10[0]0'").await;
    assert_eq!(left, "0\n", "all that the command started is ended");

    let sandbox = &handle.sandbox;
    for (place, name) in [(dir, "it's here.txt"), ("/tmp", "deep/there.txt")] {
        let file = format!("{place}/files/{name}");
        assert!(sandbox.write(&file, "one\ntwo\n").await.unwrap().atomic);
        assert_eq!(sandbox.edit(&file, "two", "2", false).await.unwrap().occurrences, 1);
        let read = sandbox.read(&file, ReadOptions::default()).await.unwrap();
        assert!(matches!(&read, Page::Text(page) if page.content == "one\n2"), "{read:?}");
        let root = format!("{place}/files");
        let found = sandbox.glob("**/*.txt", &root).await.unwrap();
        assert_eq!(found.matches.iter().map(|info| &info.path).collect::<Vec<_>>(), [&file]);
        let options = GrepOptions { root: Some(root.clone()), ..GrepOptions::default() };
        let found = sandbox.grep("2", options).await.unwrap();
        assert_eq!((&found.matches[0].path, found.matches[0].line), (&file, 2));
        assert_eq!(sandbox.list(&root).await.unwrap().len(), 1);
        sandbox.delete(&root).await.unwrap();
        assert!(sandbox.stat(&root, false).await.is_err());
    }
    let large: Vec<u8> = (0..5 << 20).map(|byte: u32| (byte % 251) as u8).collect();
    sandbox.write("/tmp/large", large.clone()).await.unwrap();
    assert!(sandbox.download("/tmp/large", 8 << 20).await.unwrap()[..] == large[..]);

    let refused = sandbox.start("true", StartOptions::default()).await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("spawn: the stock runtime"), "{refused}");
}

/// Checks that the Pod's first process is the runtime, which was never restarted.
async fn runtime_lives(namespace: &Namespace, handle: &SandboxHandle, runtime: &str) {
    let first = execute(handle, "tr '\\0' ' ' < /proc/1/cmdline").await;
    assert!(first.starts_with(runtime), "{first}");
    let name = handle.pod.split_once('/').expect("a namespace and a name").1;
    let pod = namespace.api::<Pod>().get(name).await.expect("the Pod is there");
    let restarts = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    assert!(restarts.iter().all(|container| container.restart_count == 0));
}

/// Uses a stock runtime by one connection mode, from the claim to the deletion.
pub(super) async fn speak(
    namespace: &Namespace,
    config: AgentSandboxConfig,
    delivery: GuestDelivery,
    dir: &str,
) -> Provider {
    let mode = config.connection_mode.clone().expect("a way is named");
    let one = provider(namespace, config.clone()).await;
    let handle = claim(&one, &mode).await;
    use_fully(&handle, dir).await;
    let runtime = if delivery == GuestDelivery::Legacy {
        "/usr/bin/python3 /usr/local/bin/uvicorn "
    } else {
        "/sandboxd "
    };
    runtime_lives(namespace, &handle, runtime).await;
    let info = one.info(&mode).await.expect("it is known");
    assert_eq!((info.connection.as_deref(), info.guest_delivery), (Some(mode.as_str()), Some(delivery)));
    assert!(info.guest_delivery_reason.expect("a reason is recorded").starts_with("template: no container"));

    let other = provider(namespace, config).await;
    let again = soon("finding", other.reconnect(&mode)).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&again, "wc -c < /tmp/large").await.trim(), (5 << 20).to_string());
    soon("deleting", one.delete(&mode, true)).await.expect("it is deleted");
    one
}

#[tokio::test(flavor = "multi_thread")]
async fn first_runtime_is_used_through_the_router() {
    let namespace = legacy().await;
    let mut config = config(&namespace);
    config.connection_mode = Some("direct".to_owned());
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let provider = speak(&namespace, config, GuestDelivery::Legacy, "/app").await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_runtime_is_used_through_the_api_server_and_the_router() {
    let namespace = legacy().await;
    grant_router(&namespace).await;
    let mut config = config(&namespace);
    config.connection_mode = Some("tunnel".to_owned());
    let provider = speak(&namespace, config, GuestDelivery::Legacy, "/app").await;
    revoke_router(&namespace).await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_runtime_is_used_at_the_address_of_its_pod() {
    let namespace = legacy().await;
    let mut config = config(&namespace);
    config.connection_mode = Some("in-cluster".to_owned());
    let provider = speak(&namespace, config, GuestDelivery::Legacy, "/app").await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxd_is_used_through_the_api_server() {
    let namespace = sandboxd().await;
    let mut config = config(&namespace);
    config.connection_mode = Some("tunnel".to_owned());
    let provider = speak(&namespace, config, GuestDelivery::Sandboxd, "/workspace").await;
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_exec_a_stock_runtime_is_used_and_info_gives_the_reason() {
    let namespace = legacy().await;
    forbid_exec(&namespace).await;
    let mut config = config(&namespace);
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let provider = provider(&namespace, config).await;
    let handle = claim(&provider, "a").await;
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    let info = provider.info("a").await.unwrap();
    assert_eq!(
        (info.connection.as_deref(), info.guest_delivery),
        (Some("direct"), Some(GuestDelivery::Legacy))
    );
    let why = info.connection_reason.expect("a reason is recorded");
    for expected in ["exec: ", "pods/exec", "tunnel: ", "gateway: gateway_name is not set"] {
        assert!(why.contains(expected), "{why}");
    }
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

/// The router waits 30 s for a response head: no request about a command may take as long.
#[tokio::test(flavor = "multi_thread")]
async fn command_of_the_first_runtime_runs_longer_than_the_routers_timeout() {
    let namespace = legacy().await;
    let mut config = config(&namespace);
    config.connection_mode = Some("direct".to_owned());
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let provider = provider(&namespace, config).await;
    let handle = claim(&provider, "a").await;
    let executed = handle.sandbox.execute("echo begun; sleep 40; echo over", within(90)).await.unwrap();
    assert_eq!((&executed.output[..], executed.exit_code), (&b"begun\nover\n"[..], Some(0)));
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_port_is_the_port_of_the_router() {
    let namespace = namespace(StockRuntime::legacy_at(7777)).await;
    let mut config = config(&namespace);
    config.connection_mode = Some("direct".to_owned());
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    config.server_port = 7777;
    let provider = provider(&namespace, config).await;
    let handle = claim(&provider, "a").await;
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxd_behind_the_router_is_refused_with_the_reason() {
    let namespace = sandboxd().await;
    let mut config = config(&namespace);
    config.connection_mode = Some("direct".to_owned());
    config.api_url = Some(format!("http://{}:8080", router(&namespace).await));
    let provider = provider(&namespace, config).await;
    let error = soon("failing", provider.get_or_create(named("a"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("passes no gRPC"), "{error}");
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_policy_that_a_runtime_cannot_enforce_is_refused() {
    let namespace = legacy().await;
    let mut config = config(&namespace);
    config.connection_mode = Some("in-cluster".to_owned());
    config.policy = serde_json::from_value(json!({ "network": "none", "policy_required": true }))
        .expect("it is a policy");
    let provider = provider(&namespace, config).await;
    let error = soon("failing", provider.get_or_create(named("a"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("policy: the stock runtime 'legacy'"), "{error}");
    finish(namespace, &provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_reports_that_the_pod_of_a_stock_runtime_was_deleted() {
    let namespace = legacy().await;
    let mut config = config(&namespace);
    config.connection_mode = Some("in-cluster".to_owned());
    let provider = provider(&namespace, config).await;
    let handle = claim(&provider, "a").await;
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    let name = handle.pod.split_once('/').unwrap().1;
    namespace.api::<Pod>().delete(name, &DeleteParams::default()).await.unwrap();
    let error = soon("failing", async {
        loop {
            if let Err(error) = handle.sandbox.execute("true", within(20)).await {
                return error;
            }
        }
    })
    .await;
    assert!(error.to_string().contains("gone"), "{error}");
    provider.delete("a", true).await.unwrap();
    finish(namespace, &provider).await;
}
