//! Lost files of a local sandbox that no client was attached to: the first call afterwards reports the loss, in any process.

use std::io::Cursor;
use std::time::Duration;

use futures::future::join_all;
use sandpod::{
    CallError, ExecuteOptions, GrepOptions, LocalConfig, Notice, Provider, SandboxHandle, SandboxRequest,
    StartOptions, TreeLimits,
};
use sandpod_client::{Change, FileChange, ReadOptions};

use crate::support::guest;

const REPLACED: Notice = Notice::Replaced { kept: Vec::new() };

/// A provider as another process would open it.
fn provider(state_dir: &tempfile::TempDir) -> Provider {
    let state_dir = Some(state_dir.path().to_owned());
    Provider::local(&LocalConfig { program: Some(guest()), state_dir, ..LocalConfig::default() }).unwrap()
}

/// Creates the sandbox `work` and lets it lose its files after its creator has closed.
async fn lost(state_dir: &tempfile::TempDir) {
    let maker = provider(state_dir);
    let request = SandboxRequest { ttl: Some(Duration::from_secs(1)), ..SandboxRequest::named("work") };
    let first = maker.get_or_create(request).await.unwrap();
    let written = first.sandbox.write("/workspace/note", "kept").await;
    assert!(written.is_ok() || has_ended(&first).await, "{written:?}");
    while !has_ended(&first).await {}
    maker.close().await;
}

async fn has_ended(handle: &SandboxHandle) -> bool {
    handle.sandbox.execute("sleep 0.1", ExecuteOptions::default()).await.is_err()
}

/// The sandbox `work`, as another process asks for it.
async fn again(provider: &Provider) -> SandboxHandle {
    let request = SandboxRequest { ttl: Some(Duration::from_secs(3600)), ..SandboxRequest::named("work") };
    provider.get_or_create(request).await.unwrap()
}

/// Makes a call of the named kind; none of these kinds has a field for notices in its result.
async fn call(handle: &SandboxHandle, kind: &str) -> Result<(), CallError> {
    let (sandbox, file, dir) = (&handle.sandbox, "/workspace/file", tempfile::tempdir().unwrap());
    let change = FileChange { path: file.to_owned(), expected: None, change: Change::Content("new".into()) };
    match kind {
        "start" => sandbox.start("true", StartOptions::default()).await.map(drop),
        "processes" => sandbox.processes().await.map(drop),
        "stat" => sandbox.stat(file, true).await.map(drop),
        "list" => sandbox.list("/workspace").await.map(drop),
        "read" => sandbox.read(file, ReadOptions::default()).await.map(drop),
        "read_bytes" => sandbox.read_bytes(file, 1024).await.map(drop),
        "write" => sandbox.write(file, "new").await.map(drop),
        "edit" => sandbox.edit(file, "file", "edited", false).await.map(drop),
        "apply_edits" => sandbox.apply_edits(vec![change]).await.map(drop),
        "delete" => sandbox.delete(file).await,
        "move" => sandbox.move_path(file, "/workspace/moved", false).await.map(drop),
        "upload" => sandbox.upload(file, Cursor::new(b"new".to_vec())).await.map(drop),
        "download" => sandbox.download(file, 1024).await.map(drop),
        "upload_tree" => sandbox.upload_tree(dir.path(), "/workspace/tree", |_| ()).await.map(drop),
        "download_tree" => {
            let limits = TreeLimits::default();
            sandbox.download_tree("/workspace", dir.path(), limits, |_| ()).await.map(drop)
        }
        "glob" => sandbox.glob("*", "/workspace").await.map(drop),
        "grep" => sandbox.grep("file", GrepOptions::default()).await.map(drop),
        _ => unreachable!("{kind}"),
    }
}

const KINDS: [&str; 17] = [
    "start",
    "processes",
    "stat",
    "list",
    "read",
    "read_bytes",
    "write",
    "edit",
    "apply_edits",
    "upload",
    "download",
    "upload_tree",
    "download_tree",
    "glob",
    "grep",
    "move",
    "delete",
];

pub(super) async fn the_first_call_of_every_kind_reports_lost_files_and_does_nothing() {
    let state_dir = tempfile::tempdir().unwrap();
    lost(&state_dir).await;
    // All handles are opened before any of them has reported the loss.
    let provider = provider(&state_dir);
    let handles = join_all(KINDS.map(|_| again(&provider))).await;
    for (kind, handle) in KINDS.iter().zip(&handles) {
        let first = call(handle, kind).await;
        assert!(matches!(first, Err(CallError::Replaced(_))), "{kind}: {first:?}");
        assert!(first.unwrap_err().to_string().contains("its files and processes are gone"), "{kind}");
        let there =
            handle.sandbox.execute("ls /workspace; echo file > /workspace/file", ExecuteOptions::default());
        let there = there.await.unwrap();
        assert_eq!((there.notices, there.output.is_empty()), (Vec::new(), *kind == KINDS[0]), "{kind}");
        let second = call(handle, kind).await;
        assert!(second.is_ok(), "{kind}: {second:?}");
        let emptied = handle
            .sandbox
            .execute("rm -r /workspace/*; echo file > /workspace/file", ExecuteOptions::default());
        emptied.await.unwrap();
    }
    provider.delete("work", true).await.unwrap();
}

pub(super) async fn a_first_command_reports_lost_files_beside_its_output() {
    let state_dir = tempfile::tempdir().unwrap();
    lost(&state_dir).await;
    let next = provider(&state_dir);
    let handle = again(&next).await;
    assert!(handle.sandbox.has_report());
    let calls = ["ls", "ls"].map(|line| handle.sandbox.execute(line, ExecuteOptions::default()));
    for executed in join_all(calls).await {
        assert_eq!(executed.unwrap().notices, [REPLACED], "both calls began before either had returned");
    }
    let later = handle.sandbox.execute("echo later", ExecuteOptions::default()).await.unwrap();
    assert_eq!((later.notices, &later.output[..]), (Vec::new(), &b"later\n"[..]));
    next.close().await;

    let third = provider(&state_dir);
    assert!(!again(&third).await.sandbox.has_report(), "another process has reported it");
    third.delete("work", true).await.unwrap();
}

pub(super) async fn lost_files_are_reported_until_a_caller_receives_the_report() {
    let state_dir = tempfile::tempdir().unwrap();
    lost(&state_dir).await;
    let dying = provider(&state_dir);
    drop(again(&dying).await);
    let given_up = again(&dying).await;
    let (calls, receipt) = given_up.sandbox.with_receipt().unwrap();
    assert!(matches!(calls.write("/workspace/file", "new").await, Err(CallError::Replaced(_))));
    drop(receipt);
    dying.close().await;

    let next = provider(&state_dir);
    let handle = again(&next).await;
    assert_eq!(handle.sandbox.without_reports().list("/workspace").await.unwrap().len(), 0);
    assert_eq!(handle.sandbox.take_notices(), [REPLACED]);
    handle.sandbox.write("/workspace/file", "new").await.unwrap();
    next.delete("work", true).await.unwrap();
}

pub(super) async fn a_sandbox_created_instead_of_a_missing_one_reports_that() {
    let state_dir = tempfile::tempdir().unwrap();
    let provider = provider(&state_dir);
    let made = provider.get_or_create(SandboxRequest::of("deleted")).await.unwrap();
    assert!(made.is_new && made.id.as_str() != "deleted");
    let said = made.sandbox.write("/workspace/file", "new").await.unwrap_err().to_string();
    assert!(said.contains("no sandbox 'deleted' was found"), "{said}");
    made.sandbox.write("/workspace/file", "new").await.unwrap();

    let found = provider.get_or_create(SandboxRequest::of(made.id.as_str())).await.unwrap();
    assert!(!found.is_new && found.place == made.place && !found.sandbox.has_report());
    found.sandbox.report_replaced();
    let executed = found.sandbox.execute("cat file", ExecuteOptions::default()).await.unwrap();
    assert_eq!((executed.notices, &executed.output[..]), (vec![REPLACED], &b"new"[..]));
    provider.delete(made.id.as_str(), true).await.unwrap();
}
