//! Clients that are killed during an operation leave nothing half done.
//!
//! A client is this test binary, started in the role that a variable names. The guest's own tests prove, with a paused
//! clock, that a command without a client ends after `limits::ORPHAN_GRACE`.

#![expect(clippy::print_stdout, reason = "a client prints its progress for the test that started it")]

use std::io::{self, Cursor};
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::Duration;

use sandpod::{
    AgentSandboxConfig, CallError, ErrorKind, ExecuteOptions, Notice, Provider, RawConfig, SandboxHandle,
    SandboxRequest,
};
use sandpod_kube::k8s_openapi::api::coordination::v1::Lease;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use sandpod_testbed::agent_sandbox::TEMPLATE;
use sandpod_testbed::{Namespace, wait_for, wait_until_none};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncSeek, BufReader, ReadBuf};
use tokio::process::{Child, Command};

use crate::calm;
use crate::setup::{BUSYBOX, config, execute, provider, soon};

const ROLE: &str = "SANDPOD_FAULT_ROLE";
const NAMESPACE: &str = "SANDPOD_FAULT_NAMESPACE";
pub(crate) const ID: &str = "thread-1";
const BIG: usize = 128 << 20;
const HALF_READ: &str = "half of it is read";

/// Starts this test binary as a client.
pub(crate) fn client(role: &str, namespace: &Namespace) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", "clients::a_client_that_will_be_killed", "--ignored", "--nocapture"]);
    command.env(ROLE, role).env(NAMESPACE, &namespace.name);
    command.stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("this program can be run")
}

/// A file whose second half never comes. Less than half of it fits in buffers, so part of it has arrived by then.
struct Half(Cursor<Vec<u8>>);

impl AsyncRead for Half {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.position() >= BIG as u64 / 2 {
            println!("{HALF_READ}");
            return Poll::Pending;
        }
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncSeek for Half {
    fn start_seek(mut self: Pin<&mut Self>, to: io::SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.0).start_seek(to)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.0).poll_complete(context)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "other tests start it in a process of its own"]
async fn a_client_that_will_be_killed() {
    let role = std::env::var(ROLE).expect("the parent test sets the role");
    let kubeconfig = std::env::var_os("SANDPOD_TEST_KUBECONFIG").map(Into::into);
    let namespace = std::env::var(NAMESPACE).unwrap();
    let provider = if role.starts_with("claim") {
        let config =
            AgentSandboxConfig { kubeconfig, namespace, ..AgentSandboxConfig::of_template(TEMPLATE) };
        Provider::agent_sandbox(config).await.unwrap()
    } else {
        // A Pod with a scheduling gate never starts.
        let gates = json!({ "schedulingGates": [{ "name": "example.com/held" }] });
        let pod_template_overrides = (role == "create-held").then_some(gates);
        let image = BUSYBOX.to_owned();
        let config =
            RawConfig { kubeconfig, namespace, image, pod_template_overrides, ..RawConfig::default() };
        Provider::connect(config).await.unwrap()
    };
    let ttl = ["create-held", "claim"].contains(&role.as_str()).then_some(Duration::from_secs(600));
    let handle = provider.get_or_create(SandboxRequest { ttl, ..SandboxRequest::named(ID) }).await.unwrap();
    match role.as_str() {
        "create" | "create-held" | "claim" => {}
        "attach" | "claim-attach" => println!("client result: generation {}", handle.generation),
        "write" | "claim-write" => match handle.sandbox.write("/workspace/note", "kept").await {
            Ok(_) => println!("client result: written"),
            Err(CallError::Replaced(Notice::Replaced { .. })) => println!("client result: files lost"),
            Err(error) => println!("client result: {error}"),
        },
        "upload" => {
            let source = Half(Cursor::new(vec![b'x'; BIG]));
            handle.sandbox.upload("/workspace/target", source).await.unwrap();
        }
        "command" => {
            let line = "echo begun >> log; sleep 3; echo ended >> log";
            handle.sandbox.execute(line, ExecuteOptions::default()).await.unwrap();
        }
        other => panic!("there is no role {other}"),
    }
    provider.close().await;
}

/// Waits until a shell condition holds in the sandbox.
async fn until(handle: &SandboxHandle, condition: &str) {
    let line = format!("until {condition}; do sleep 0.02; done");
    let options = ExecuteOptions { timeout: Some(Duration::from_secs(60)), ..ExecuteOptions::default() };
    let waited = handle.sandbox.execute(line, options).await.expect("the sandbox works");
    assert_eq!(waited.exit_code, Some(0), "{condition}: {waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn next_request_for_the_id_finishes_the_sandbox_of_a_killed_creator() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;

    let mut creator = client("create", &namespace);
    let pod = wait_for(&namespace.api::<Pod>(), "thread-1-1", "exist", |pod| pod.is_some()).await.unwrap();
    creator.kill().await.unwrap();

    let lease = namespace.api::<Lease>().get(ID).await.unwrap();
    assert!(
        !lease.annotations().contains_key("sandpod.dev/created-at"),
        "the creator was too quick: {lease:?}"
    );
    let handle = soon("taking over", provider.get_or_create(SandboxRequest::of(ID))).await.unwrap();
    assert_eq!((handle.id.as_str(), handle.generation), (ID, 1));
    let taken = namespace.api::<Pod>().get("thread-1-1").await.unwrap();
    assert_eq!(taken.uid(), pod.uid(), "the Pod that was there is used");
    assert_eq!(execute(&handle, "echo hello").await, "hello\n");
    soon("deleting", provider.delete(ID, true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_of_a_killed_creator_can_be_deleted_by_its_id() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;

    let mut creator = client("create", &namespace);
    wait_for(&namespace.api::<Lease>(), ID, "exist", |lease| lease.is_some()).await;
    creator.kill().await.unwrap();

    soon("deleting", provider.delete(ID, true)).await.unwrap();
    wait_until_none(&namespace.api::<Pod>()).await;
    assert_eq!(provider.reconnect(ID).await.unwrap_err().kind(), ErrorKind::NotFound);
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_of_a_killed_client_leaves_the_old_file_and_no_temporary_file() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::named(ID))).await.unwrap();
    handle.sandbox.write("/workspace/target", "old").await.unwrap();

    let mut uploader = client("upload", &namespace);
    let mut said = BufReader::new(uploader.stdout.take().unwrap()).lines();
    let reading = async { while said.next_line().await.unwrap().expect("it reads on") != HALF_READ {} };
    soon("uploading", reading).await;
    uploader.kill().await.unwrap();

    assert_eq!(execute(&handle, "cat target").await, "old", "the upload was done, or half done");
    assert_eq!(execute(&handle, "ls -A").await, "target\n");
    soon("deleting", provider.delete(ID, true)).await.unwrap();
    namespace.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn command_of_a_killed_client_continues_and_runs_once() {
    let _calm = calm().await;
    let namespace = Namespace::create().await;
    let provider = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let handle = soon("creating", provider.get_or_create(SandboxRequest::named(ID))).await.unwrap();

    let mut client = client("command", &namespace);
    until(&handle, "[ -s log ]").await;
    client.kill().await.unwrap();

    until(&handle, "grep -q ended log").await;
    assert_eq!(execute(&handle, "cat log").await, "begun\nended\n");
    soon("deleting", provider.delete(ID, true)).await.unwrap();
    namespace.finish().await;
}
