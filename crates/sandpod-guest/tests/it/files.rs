//! File calls over a stream: the policy of the binding, and clients that disconnect.

use std::fs;
use std::path::Path;

use futures_util::{StreamExt as _, stream};
use sandpod_guest::{DisabledKernelFeatures, Guest, Options};
use sandpod_protocol::Failure;
use sandpod_protocol::v1::file_change::Change;
use sandpod_protocol::v1::upload_request::Part;
use sandpod_protocol::v1::{
    ApplyEditsRequest, BindRequest, DownloadTreeRequest, ErrorCode, FileChange, GrepRequest, MoveRequest,
    Policy, ReadRequest, UploadHeader, UploadRequest, WriteRequest, download_tree_response,
};

use crate::harness::Client;

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn code<T>(answer: Result<tonic::Response<T>, tonic::Status>) -> ErrorCode {
    match answer {
        Ok(_) => panic!("it must fail"),
        Err(status) => Failure::from(&status).code(),
    }
}

/// A client of a guest that resolves paths with or without openat2, bound to write in `w` only.
async fn bound(dir: &Path, disabled: DisabledKernelFeatures) -> Client {
    fs::create_dir_all(dir.join("w/secret")).unwrap();
    fs::create_dir_all(dir.join("out")).unwrap();
    fs::write(dir.join("out/file"), "needle").unwrap();
    fs::write(dir.join("w/secret/file"), "needle").unwrap();
    let guest = Guest::new(Options { disabled_kernel_features: disabled, ..Options::new(dir.join("state")) })
        .unwrap();
    let client = Client::of(&guest).await;
    let policy = Policy {
        writable: vec![text(&dir.join("w"))],
        denied: vec![text(&dir.join("w/secret"))],
        denied_for_files_only: true,
        ..Policy::default()
    };
    let request = BindRequest { claim: "c".to_owned(), policy: Some(policy), ..BindRequest::default() };
    client.bind(request).await.unwrap();
    client
}

#[tokio::test]
async fn file_calls_obey_the_policy_with_and_without_openat2() {
    for openat2 in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let client =
            bound(dir.path(), DisabledKernelFeatures { openat2, ..DisabledKernelFeatures::default() }).await;
        let write = |path: &str| WriteRequest {
            operation: Some(client.operation()),
            path: text(&dir.path().join(path)),
            content: "x".into(),
        };
        let mut files = client.files.clone();
        files.write(write("w/file")).await.unwrap();
        let read =
            ReadRequest { path: text(&dir.path().join("out/file")), line_limit: 1, ..ReadRequest::default() };
        files.read(read.clone()).await.unwrap();
        for path in ["out/file", "w/../out/new", "w/secret/new"] {
            assert_eq!(code(files.write(write(path)).await), ErrorCode::Policy, "{path}");
        }
        let secret = ReadRequest { path: text(&dir.path().join("w/secret/file")), ..read };
        assert_eq!(code(files.read(secret).await), ErrorCode::Policy);
        let found =
            GrepRequest { pattern: "needle".to_owned(), root: text(dir.path()), ..GrepRequest::default() };
        let found = files.grep(found).await.unwrap().into_inner().matches;
        assert_eq!(found.len(), 1);
        let change = FileChange {
            path: text(&dir.path().join("out/file")),
            expected: None,
            change: Some(Change::Delete(true)),
        };
        let set = ApplyEditsRequest { operation: Some(client.operation()), changes: vec![change] };
        assert_eq!(code(files.apply_edits(set).await), ErrorCode::Policy);
        let (from, to) = (text(&dir.path().join("w/file")), text(&dir.path().join("out/moved")));
        let request = MoveRequest { operation: Some(client.operation()), from, to, replace: true };
        assert_eq!(code(files.r#move(request).await), ErrorCode::Policy);
        assert_eq!(names(&dir.path().join("out")), ["file"]);
        assert_eq!(names(&dir.path().join("w/secret")), ["file"]);
    }
}

#[tokio::test]
async fn a_tree_streams_entry_by_entry() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    fs::write(dir.path().join("tree/sub/file"), "content").unwrap();
    let guest = Guest::new(Options::new(dir.path().join("state"))).unwrap();
    let request = DownloadTreeRequest { path: text(&dir.path().join("tree")) };
    let stream = Client::of(&guest).await.files.download_tree(request).await.unwrap().into_inner();
    let parts: Vec<_> = stream.map(|part| part.unwrap().part.unwrap()).collect().await;
    let [
        download_tree_response::Part::Entry(sub),
        download_tree_response::Part::Entry(file),
        download_tree_response::Part::Chunk(chunk),
        download_tree_response::Part::Trailer(_),
        download_tree_response::Part::Summary(summary),
    ] = parts.as_slice()
    else {
        panic!("{parts:?}")
    };
    assert_eq!(
        (&sub.path[..], &file.path[..], chunk.as_ref()),
        (&b"sub"[..], &b"sub/file"[..], &b"content"[..])
    );
    assert_eq!((summary.files, summary.directories, summary.bytes), (1, 1, 7));
}

#[tokio::test]
async fn a_client_that_disconnects_during_an_upload_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let guest = Guest::new(Options::new(dir.path().join("state"))).unwrap();
    let target = dir.path().join("work");
    fs::create_dir(&target).unwrap();
    let client = Client::of(&guest).await;
    let header = UploadHeader {
        operation: Some(client.operation()),
        path: text(&target.join("deep/file")),
        ..UploadHeader::default()
    };
    let parts = stream::iter([Part::Header(header), Part::Chunk(vec![7; 100_000].into())]);
    let parts = parts.map(|part| UploadRequest { part: Some(part) }).chain(stream::pending());
    let mut files = client.files.clone();
    let upload = tokio::spawn(async move { files.upload(parts).await });
    while !target.join("deep").exists() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    upload.abort();
    drop(client);
    // Another client can use the guest, and the directory is empty.
    let mut files = Client::of(&guest).await.files;
    let request = sandpod_protocol::v1::ListRequest { path: text(&target.join("deep")) };
    assert_eq!(files.list(request).await.unwrap().into_inner().entries, []);
}
