//! Policy and audit in Pods. A test's name begins with the row of docs/acceptance.md that it proves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandpod::{
    Audit, AuditEvent, AuditOptions, Decision, DenyScope, ErrorKind, ListOptions, Operation, Phase,
    SandboxPolicy, SandboxRequest, verify_audit,
};
use sandpod_client::{Error, ErrorCode, ReadOptions};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_testbed::{Namespace, wait_until_none};

use crate::setup::{BUSYBOX, config, execute, provider, soon};

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorCode {
    match result.expect_err("it is refused") {
        Error::Failure(failure) => failure.code(),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_g3_prefixes_hold_file_calls_and_commands_also_after_a_reconnect() {
    let namespace = Namespace::create().await;
    let mut config = config(&namespace, BUSYBOX);
    config.policy =
        Some(SandboxPolicy { allow_prefixes: Some(texts(&["/workspace"])), ..SandboxPolicy::default() });
    let provider = provider(&namespace, config.clone()).await;
    let handle =
        soon("a sandbox", provider.get_or_create(SandboxRequest::default())).await.expect("it is made");
    handle.sandbox.write("/workspace/a", "x").await.expect("it is allowed");
    assert_eq!(code(handle.sandbox.write("/tmp/a", "x").await), ErrorCode::Policy);
    execute(&handle, "ln -s /tmp /workspace/out").await;
    assert_eq!(code(handle.sandbox.write("/workspace/out/a", "x").await), ErrorCode::Policy);
    let by_command = "echo x > /workspace/b && echo x > /tmp/b; ls /tmp";
    if handle.enforced.files {
        assert!(execute(&handle, by_command).await.contains("Permission denied"));
    }

    config.policy = None;
    let another = crate::setup::provider(&namespace, config).await;
    let found = soon("the sandbox", another.reconnect(handle.id.as_str())).await.expect("it is found");
    assert_eq!(
        code(found.sandbox.write("/tmp/a", "x").await),
        ErrorCode::Policy,
        "the sandbox is bound to it"
    );
    soon("its end", provider.delete(handle.id.as_str(), true)).await.expect("it is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_g6_a_root_and_denials_of_a_request_hold_in_a_pod() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let policy = SandboxPolicy {
        root_dir: Some("/app".to_owned()),
        deny_prefixes: texts(&["/app/secret"]),
        deny_scope: DenyScope::FileTools,
        deny_commands: texts(&["wget"]),
        ..SandboxPolicy::default()
    };
    let request = SandboxRequest { policy: Some(policy), ..SandboxRequest::default() };
    let handle = soon("a sandbox", provider.get_or_create(request)).await.expect("it is made");
    let sandbox = &handle.sandbox;
    sandbox.write("/file.txt", "hello").await.expect("it is allowed");
    assert_eq!(execute(&handle, "cat /app/file.txt").await, "hello");
    assert_eq!(sandbox.list("/").await.expect("it is listed")[0].path, "/file.txt");
    execute(&handle, "mkdir /app/secret; ln -s / /app/out; ln -s secret /app/link").await;
    assert_eq!(code(sandbox.read("/out/etc/passwd", ReadOptions::default()).await), ErrorCode::Policy);
    assert!(matches!(sandbox.write("/../etc/x", "x").await, Err(Error::PathEscapes(_))));
    assert_eq!(code(sandbox.write("/link/x", "x").await), ErrorCode::Policy);
    let blocked = "Policy denied: command blocked by policy (rule 'wget')";
    assert_eq!(execute(&handle, "true && /bin/busybox wget x").await, blocked);
    let within = SandboxPolicy { root_dir: Some("/src".to_owned()), ..SandboxPolicy::default() };
    let inner = sandbox.narrowed(within).expect("a root within the root narrows");
    inner.upload_bytes("/main.py", "x").await.expect("it is allowed");
    assert_eq!(inner.list("/").await.expect("it is listed")[0].path, "/main.py");
    assert_eq!(execute(&handle, "cat /app/src/main.py").await, "x");
    assert!(matches!(inner.stat("/../file.txt", true).await, Err(Error::PathEscapes(_))));
    soon("its end", provider.delete(handle.id.as_str(), true)).await.expect("it is deleted");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g7_all_calls_in_a_pod_are_audited_and_the_chain_of_hashes_holds() {
    let namespace = Namespace::create().await;
    let dir = tempfile::tempdir().expect("there is a directory");
    let mut config = config(&namespace, BUSYBOX);
    (config.audit_file, config.strict_audit) = (Some(dir.path().join("audit.jsonl")), true);
    let file = config.audit_file.clone().expect("it was just set");
    let provider = provider(&namespace, config).await;
    let handle =
        soon("a sandbox", provider.get_or_create(SandboxRequest::default())).await.expect("it is made");
    execute(&handle, "true").await;
    handle.sandbox.write("/tmp/a", "x").await.expect("it is written");
    soon("its end", provider.delete(handle.id.as_str(), true)).await.expect("it is deleted");
    provider.audit().expect("there is one").flush().await;
    let head = verify_audit(&file, None).expect("the file is unchanged");
    assert_eq!(head.lines, 8, "four operations, before and after");
    namespace.finish().await;
}

/// The events of an audit.
type Events = Arc<Mutex<Vec<AuditEvent>>>;

/// A sink that keeps all events and always returns the same result.
fn listener(answer: Result<(), String>) -> (Events, impl Fn(&[AuditEvent]) -> Result<(), String>) {
    let events = Events::default();
    let kept = events.clone();
    let sink = move |events: &[AuditEvent]| {
        kept.lock().expect("the lock is not poisoned").extend_from_slice(events);
        answer.clone()
    };
    (events, sink)
}

#[tokio::test(flavor = "multi_thread")]
async fn g7_the_setup_script_and_read_only_calls_are_audited() {
    let namespace = Namespace::create().await;
    let (events, sink) = listener(Ok(()));
    let audit = Audit::new(sink, AuditOptions::default()).expect("there is a thread");
    let mut config = config(&namespace, BUSYBOX);
    config.setup_script = Some("echo ready > /workspace/state".to_owned());
    let provider = provider(&namespace, config).await.with_audit(audit.clone());
    let handle =
        soon("a sandbox", provider.get_or_create(SandboxRequest::default())).await.expect("it is made");
    handle.sandbox.stats().await.expect("stats is audited");
    handle.sandbox.processes().await.expect("processes is audited");
    provider.info(handle.id.as_str()).await.expect("it is known");
    provider.list(ListOptions::default()).await.expect("it is listed");
    provider.stats(Duration::from_secs(300)).await.expect("it is counted");
    provider.pool_status().await.expect("there is none");
    provider.cleanup(None).await.expect("nothing is to be done");
    provider.clear().await.expect_err("it is used");
    soon("its end", provider.delete(handle.id.as_str(), true)).await.expect("it is deleted");
    audit.flush().await;

    let outcomes: Vec<_> = {
        let events = events.lock().expect("the lock is not poisoned");
        let outcomes = events.iter().filter(|event| event.phase == Phase::Outcome);
        outcomes.map(|event| (event.operation.as_str(), event.targets.clone())).collect()
    };
    let names: Vec<_> = outcomes.iter().map(|(name, _)| *name).collect();
    let (made, looked) = (["set_up", "create"], ["stats", "processes", "info", "list_sandboxes"]);
    let rest = ["count_sandboxes", "pool_status", "cleanup", "clear", "remove"];
    assert_eq!(names, [&made[..], &looked, &rest].concat());
    assert_eq!(outcomes[0].1, ["echo ready > /workspace/state"], "a script is a command");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g7_a_strict_audit_that_fails_prevents_the_creation() {
    let namespace = Namespace::create().await;
    let (events, sink) = listener(Err("the disk is full".to_owned()));
    let options = AuditOptions { strict: true, ..AuditOptions::default() };
    let audit = Audit::new(sink, options).expect("there is a thread");
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await.with_audit(audit);
    let error = provider.get_or_create(SandboxRequest::named("never")).await.expect_err("it is not made");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("the disk is full"), "{error}");
    let events = events.lock().expect("the lock is not poisoned").clone();
    assert_eq!((events[0].operation, events[0].decision), (Operation::Create, Decision::Allowed));
    assert_eq!(events.len(), 1, "what was not begun has no outcome");
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn required_policy_is_enforced_or_the_creation_fails() {
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let policy = SandboxPolicy {
        allow_prefixes: Some(texts(&["/workspace"])),
        network: Some(sandpod::Network::None),
        policy_required: true,
        ..SandboxPolicy::default()
    };
    let request = SandboxRequest { policy: Some(policy), ..SandboxRequest::default() };
    match soon("a sandbox", provider.get_or_create(request)).await {
        Ok(handle) => {
            assert!(handle.enforced.files && handle.enforced.network);
            assert!(execute(&handle, "echo x > /tmp/x").await.contains("Permission denied"));
            soon("its end", provider.delete(handle.id.as_str(), true)).await.expect("it is deleted");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    }
    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
}
