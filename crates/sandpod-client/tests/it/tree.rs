//! A sandbox that sends a tree can lie, but cannot write outside of the target or without a limit.

#![expect(clippy::unwrap_used, reason = "only tests use it")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use sandpod_client::{Error, ErrorCode, TreeLimits, TreeSummary};
use sandpod_protocol::Checksum;
use sandpod_protocol::v1::{self, FileKind, TreeEntry};

use crate::fake::{Fake, TreePart, sandbox};

fn entry(path: &str, kind: FileKind) -> TreeEntry {
    let path = path.as_bytes().to_vec().into();
    TreeEntry { path, kind: kind.into(), mode: 0o7755, modified_ns: -5, ..TreeEntry::default() }
}

fn directory(path: &str) -> TreePart {
    TreePart::Entry(entry(path, FileKind::Directory))
}

fn link(path: &str, target: &str) -> TreePart {
    let link_target = target.as_bytes().to_vec().into();
    TreePart::Entry(TreeEntry { link_target, ..entry(path, FileKind::Link) })
}

fn file(path: &str, content: &'static str) -> [TreePart; 3] {
    let header = TreeEntry { size: content.len() as u64, ..entry(path, FileKind::File) };
    let checksum = Checksum::of(content.as_bytes());
    [TreePart::Entry(header), TreePart::Chunk(content.into()), TreePart::Trailer(v1::Trailer { checksum })]
}

fn summary(files: u64, directories: u64, links: u64, bytes: u64) -> TreePart {
    TreePart::Summary(v1::TreeSummary { files, directories, links, bytes, skipped: 3 })
}

fn sends(fake: &Fake, parts: impl IntoIterator<Item = TreePart>) {
    fake.trees.lock().unwrap().push_back(parts.into_iter().collect());
}

/// Downloads a tree of `parts` to the directory `target` in `dir`.
async fn download(dir: &Path, parts: impl IntoIterator<Item = TreePart>) -> Result<TreeSummary, Error> {
    let (fake, sandbox) = sandbox();
    sends(&fake, parts);
    let limits = TreeLimits { entries: 10, bytes: 100 };
    sandbox.download_tree("/tree", dir.join("target"), limits, |_| ()).await
}

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn tree_is_written_without_setuid_and_setgid_bits() {
    let dir = tempfile::tempdir().unwrap();
    let parts = [directory("a")].into_iter().chain(file("a/b", "content")).chain([summary(1, 1, 0, 7)]);
    let written = download(dir.path(), parts).await.unwrap();
    assert_eq!((written.files, written.directories, written.bytes, written.skipped), (1, 1, 7, 3));
    let path = dir.path().join("target/a/b");
    assert_eq!(fs::read_to_string(&path).unwrap(), "content");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
}

#[tokio::test]
async fn paths_outside_of_the_target_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["../x", "/tmp/x", "a/../../x", "", ".", "a//x", "a/", "nul\0"] {
        let parts = [directory("a")].into_iter().chain(file(path, "x")).chain([summary(1, 1, 0, 1)]);
        let error = download(dir.path(), parts).await.unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{path:?}: {error}");
    }
    assert_eq!(names(dir.path()), ["target"]);
    assert_eq!(names(&dir.path().join("target")), ["a"]);
}

#[tokio::test]
async fn links_to_the_outside_are_omitted_and_no_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (outside, target) = (dir.path().join("outside"), dir.path().join("target"));
    fs::create_dir_all(&outside).unwrap();
    let links = [
        directory("d"),
        link("d/up", ".."),
        link("d/out", "../.."),
        link("d/absolute", outside.to_str().unwrap()),
        link("d/trick", "up/../../outside"),
        link("inside", "d"),
        summary(0, 1, 5, 0),
    ];
    let written = download(dir.path(), links).await.unwrap();
    assert_eq!((written.links, written.links_left_out), (2, 3));
    assert_eq!(
        (names(&target), names(&target.join("d"))),
        (vec!["d".to_owned(), "inside".to_owned()], vec!["up".to_owned()])
    );
    // An existing link is not followed either.
    symlink(&outside, target.join("old")).unwrap();
    for below in ["inside/x", "old/x"] {
        let error = download(dir.path(), file(below, "x")).await.unwrap_err();
        assert!(error.to_string().contains("follows no links"), "{error}");
    }
    let parts = [directory("old")].into_iter().chain(file("old/x", "x"));
    assert!(download(dir.path(), parts).await.is_err());
    // A file replaces a link at its path.
    symlink(outside.join("kept"), target.join("file")).unwrap();
    download(dir.path(), file("file", "x").into_iter().chain([summary(1, 0, 0, 1)])).await.unwrap();
    assert!(names(&outside).is_empty());
}

#[tokio::test]
async fn entries_beyond_the_limits_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let many = (0..11).map(|number| directory(&number.to_string()));
    let large = TreePart::Entry(TreeEntry { size: 101, ..entry("large", FileKind::File) });
    let links = (0..11).map(|number| link(&number.to_string(), "/out"));
    for parts in [many.collect::<Vec<_>>(), vec![large], links.collect()] {
        let Error::Failure(failure) = download(dir.path(), parts).await.unwrap_err() else { panic!() };
        assert_eq!(failure.code(), ErrorCode::TooLarge);
    }
}

#[tokio::test]
async fn incomplete_or_disordered_tree_is_an_error_and_leaves_no_temporary_file() {
    let dir = tempfile::tempdir().unwrap();
    let [header, chunk, trailer] = file("a", "content");
    let other = TreePart::Trailer(v1::Trailer { checksum: Checksum::of(b"other") });
    let wrong = [
        vec![header.clone(), chunk.clone(), other],
        vec![header.clone(), trailer.clone()],
        vec![header.clone(), chunk.clone(), chunk.clone()],
        vec![header.clone(), TreePart::Chunk(sandpod_client::Bytes::new())],
        vec![header.clone(), header.clone()],
        vec![header.clone(), chunk.clone()],
        vec![chunk],
        vec![trailer],
        vec![summary(1, 0, 0, 7)],
        vec![summary(0, 0, 0, 0), directory("late")],
        vec![TreePart::Entry(entry("pipe", FileKind::Other))],
        vec![],
    ];
    for (number, parts) in wrong.into_iter().enumerate() {
        let error = download(dir.path(), parts).await.unwrap_err();
        let is_corrupt = matches!(&error, Error::Failure(failure) if failure.code() == ErrorCode::Corrupt);
        assert!(is_corrupt || matches!(error, Error::Protocol(_)), "{number}: {error}");
        assert!(names(&dir.path().join("target")).is_empty(), "{number}");
    }
}

#[tokio::test]
async fn tree_transfer_restarts_after_a_lost_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (fake, sandbox) = sandbox();
    let [header, chunk, trailer] = file("a", "content");
    sends(&fake, [header.clone(), chunk.clone()]);
    sends(&fake, [header, chunk, trailer, summary(1, 0, 0, 7)]);
    let target = dir.path().join("target");
    let mut most = 0;
    let limits = TreeLimits::default();
    let written =
        sandbox.download_tree("/tree", &target, limits, |progress| most = progress.bytes.max(most)).await;
    assert_eq!(written.unwrap().files, 1);
    assert_eq!((names(&target), most), (vec!["a".to_owned()], 7));
    assert_eq!(fake.dials(), 2);
}
