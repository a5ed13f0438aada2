//! Templates without our guest: the guest is pushed by exec, and the template's program continues.

use sandpod::{AgentSandboxConfig, ErrorKind, GuestDelivery, SandboxHandle};
use sandpod_kube::agent_sandbox::SandboxClaim;
use sandpod_testbed::{Namespace, wait_until_none};
use serde_json::{Value, json};

use super::setup::{TEMPLATE, config, finish, make_template, named, pod_spec, provider};
use crate::setup::{execute, soon};

/// A stand-in for a runtime: it writes a line every second.
const RUNTIME: &str = "while true; do date +%s > /tmp/alive; sleep 1; done";

/// A namespace with a template without a guest, whose image may be empty.
async fn namespace(read_only: bool) -> Namespace {
    let namespace = Namespace::create().await;
    let mut spec = pod_spec(&[]);
    let container = &mut spec["containers"][0];
    container["name"] = json!("runtime");
    container["command"] = json!(["sh", "-c", RUNTIME]);
    container["env"] = json!([]);
    container["securityContext"]["readOnlyRootFilesystem"] = json!(read_only);
    container["volumeMounts"] = json!([{ "name": "workspace", "mountPath": "/workspace" }]);
    spec["volumes"] = json!([{ "name": "workspace", "emptyDir": {} }]);
    make_template(&namespace, TEMPLATE, spec).await;
    namespace
}

/// A namespace with a template of agent-sandbox's Python runtime, as in its documents: without a volume.
async fn stock() -> Namespace {
    let namespace = Namespace::create().await;
    let mut spec = pod_spec(&[]);
    let container = &mut spec["containers"][0];
    container["name"] = json!("python-runtime");
    container["image"] = json!("sandpod.test/stock-python:1");
    container["command"] = Value::Null;
    container["env"] = json!([]);
    container["volumeMounts"] = json!([]);
    container["ports"] = json!([{ "containerPort": 8888 }]);
    spec["volumes"] = json!([]);
    make_template(&namespace, TEMPLATE, spec).await;
    namespace
}

/// Checks that the first process is the template's, and that it still works.
async fn runtime_lives(handle: &SandboxHandle) {
    let first = execute(handle, "tr '\\0' ' ' < /proc/1/cmdline").await;
    assert!(first.contains(RUNTIME), "{first}");
    let went_on = "before=$(cat /tmp/alive); while [ \"$(cat /tmp/alive)\" = \"$before\" ]; do sleep 0.1; done; echo on";
    assert_eq!(execute(handle, went_on).await, "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_missing_in_the_template_is_pushed_by_exec_and_the_runtime_continues() {
    let namespace = namespace(false).await;
    let one = provider(&namespace, config(&namespace)).await;
    let handle =
        soon("claiming", one.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(execute(&handle, "echo hello > file; id -u; pwd").await, "1000\n/workspace\n");
    let large = vec![b'x'; 3 << 20];
    handle.sandbox.write("/workspace/large", large.clone()).await.expect("a file is written");
    assert_eq!(execute(&handle, "wc -c < large").await, format!("{}\n", large.len()));
    runtime_lives(&handle).await;
    let info = one.info("a").await.expect("it is known");
    assert_eq!(info.connection.as_deref(), Some("exec"));
    assert_eq!(info.guest_delivery, Some(GuestDelivery::Push));
    let why = info.guest_delivery_reason.expect("a reason is recorded");
    assert!(why.starts_with("template: no container of Pod "), "{why}");

    let other = provider(&namespace, config(&namespace)).await;
    let again = soon("finding", other.reconnect("a")).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&again, "cat file").await, "hello\n");
    runtime_lives(&again).await;
    soon("deleting", one.delete("a", true)).await.expect("it is deleted");
    finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_start_in_the_directory_of_a_stock_runtime_with_a_writable_home() {
    let namespace = stock().await;
    let one = provider(&namespace, config(&namespace)).await;
    let handle =
        soon("claiming", one.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(execute(&handle, "echo hello > file; pwd; id -u").await, "/app\n1000\n");
    assert_eq!(execute(&handle, "touch \"$HOME/.rc\" && ls \"$HOME/.rc\"").await, "/app/.rc\n");
    handle.sandbox.write("/app/src/hello.py", "print('from python')").await.expect("a file is written");
    assert_eq!(execute(&handle, "python3 src/hello.py; cat file").await, "from python\nhello\n");
    let error = handle.sandbox.write("/large_tool_results/1", "long").await.map(drop).unwrap_err();
    assert!(error.to_string().to_lowercase().contains("permission denied"), "{error}");
    let first = execute(&handle, "tr '\\0' ' ' < /proc/1/cmdline").await;
    assert!(first.contains("uvicorn main:app"), "{first}");
    let info = one.info("a").await.expect("it is known");
    assert_eq!((info.connection.as_deref(), info.guest_delivery), (Some("exec"), Some(GuestDelivery::Push)));

    let other = provider(&namespace, config(&namespace)).await;
    let again = soon("finding", other.reconnect("a")).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&again, "cat file; pwd").await, "hello\n/app\n");
    soon("deleting", one.delete("a", true)).await.expect("it is deleted");
    finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn working_directory_is_created_or_rejected_with_the_sandbox() {
    let namespace = stock().await;
    let named_dir = |dir: &str| AgentSandboxConfig { workdir: Some(dir.to_owned()), ..config(&namespace) };
    let refusing = provider(&namespace, named_dir("/data/here")).await;
    let error = soon("failing", refusing.get_or_create(named("a"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let said = error.to_string();
    assert!(
        said.starts_with("Sandbox 'a' cannot have the working directory '/data/here': it does not"),
        "{said}"
    );
    wait_until_none(&namespace.api::<SandboxClaim>()).await;

    let one = provider(&namespace, named_dir("/tmp/here")).await;
    let handle =
        soon("claiming", one.get_or_create(named("b"))).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&handle, "pwd").await, "/tmp/here\n");
    soon("deleting", one.delete("b", true)).await.expect("it is deleted");
    finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_start_in_the_working_directory_of_the_pod() {
    let namespace = Namespace::create().await;
    let mut spec = pod_spec(&[]);
    let container = &mut spec["containers"][0];
    container["command"] = json!(["sh", "-c", RUNTIME]);
    container["env"] = json!([]);
    container["workingDir"] = json!("/tmp/project");
    container["volumeMounts"] = json!([{ "name": "workspace", "mountPath": "/workspace" }]);
    spec["volumes"] = json!([{ "name": "workspace", "emptyDir": {} }]);
    make_template(&namespace, TEMPLATE, spec).await;
    let one = provider(&namespace, config(&namespace)).await;
    let handle =
        soon("claiming", one.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&handle, "pwd; touch \"$HOME/file\" && echo home").await, "/tmp/project\nhome\n");
    soon("deleting", one.delete("a", true)).await.expect("it is deleted");
    finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guest_is_installed_in_any_writable_directory_of_a_container() {
    let namespace = namespace(true).await;
    let one = provider(&namespace, config(&namespace)).await;
    let handle =
        soon("claiming", one.get_or_create(named("a"))).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        execute(&handle, "ls -d /workspace/.sandpod/bin/boot").await,
        "/workspace/.sandpod/bin/boot\n"
    );
    soon("deleting", one.delete("a", true)).await.expect("it is deleted");
    finish(namespace, &one).await;
}
