//! A template that knows nothing of our guest: it is placed by exec, beside what runs there and goes on.

use sandpod::{GuestRung, SandboxHandle};
use sandpod_testbed::Namespace;
use serde_json::json;

use super::setup::{TEMPLATE, config, finish, make_template, named, pod_spec, provider};
use crate::setup::{execute, soon};

/// What stands for somebody's own runtime: it says every second that it is there.
const RUNTIME: &str = "while true; do date +%s > /tmp/alive; sleep 1; done";

/// A namespace with a template that has no guest in it, and may have nothing at all to put one into.
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

/// The first process is what the template started, and it still works.
async fn runtime_lives(handle: &SandboxHandle) {
    let first = execute(handle, "tr '\\0' ' ' < /proc/1/cmdline").await;
    assert!(first.contains(RUNTIME), "{first}");
    let went_on = "before=$(cat /tmp/alive); while [ \"$(cat /tmp/alive)\" = \"$before\" ]; do sleep 0.1; done; echo on";
    assert_eq!(execute(handle, went_on).await, "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_no_template_brought_is_placed_by_exec_and_the_runtime_goes_on() {
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
    assert_eq!(info.guest_rung, Some(GuestRung::Push));
    let why = info.guest_rung_reason.expect("it says why");
    assert!(why.starts_with("template: no container of Pod "), "{why}");

    let other = provider(&namespace, config(&namespace)).await;
    let again = soon("finding", other.reconnect("a")).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(execute(&again, "cat file").await, "hello\n");
    runtime_lives(&again).await;
    soon("deleting", one.delete("a", true)).await.expect("it is deleted");
    finish(namespace, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_placed_wherever_a_container_can_be_written_to() {
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
