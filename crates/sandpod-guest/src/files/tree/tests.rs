use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures_util::stream;
use sandpod_protocol::v1::download_tree_response::Part;
use sandpod_protocol::v1::upload_tree_request::Part as Sent;
use sandpod_protocol::v1::{
    ErrorCode, FileKind, Operation, Policy, Trailer, TreeEntry, TreeSummary, UploadHeader, UploadTreeRequest,
};
use sandpod_protocol::{Checksum, Failure};

use super::*;
use crate::files::resolver::PathResolver;
use crate::files::rules::FileRules;
use crate::files::testing::{chmod, code, fifo, mode, names, text};
use crate::session::records::Records;

fn write(path: &Path, parts: impl IntoIterator<Item = Part>) -> Result<TreeSummary, Failure> {
    let mut writer = TreeWriter::new(&text(path), None, &PathResolver::default())?;
    parts.into_iter().try_for_each(|part| writer.take(part))?;
    writer.finish()
}

fn read(path: &Path) -> Result<Vec<Part>, Failure> {
    TreeReader::new(&text(path), &PathResolver::default())?.collect()
}

fn entry(path: impl AsRef<[u8]>, kind: FileKind) -> TreeEntry {
    let path = path.as_ref().to_vec().into();
    TreeEntry { path, kind: kind.into(), mode: 0o755, ..TreeEntry::default() }
}

fn directory(path: &str) -> Part {
    Part::Entry(entry(path, FileKind::Directory))
}

fn link(path: &str, target: &str) -> Part {
    let link_target = target.as_bytes().to_vec().into();
    Part::Entry(TreeEntry { link_target, ..entry(path, FileKind::Link) })
}

fn file(path: impl AsRef<[u8]>, content: &str) -> [Part; 3] {
    let header = TreeEntry { size: content.len() as u64, ..entry(path, FileKind::File) };
    let checksum = Checksum::of(content.as_bytes());
    [Part::Entry(header), Part::Chunk(content.to_owned().into()), Part::Trailer(Trailer { checksum })]
}

fn summary(files: u64, directories: u64, links: u64, bytes: u64) -> Part {
    Part::Summary(TreeSummary { files, directories, links, bytes, skipped: 0 })
}

/// Makes a directory with everything that a transfer must preserve.
fn sample(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("sub/deep/large"), vec![7; 600_000]).unwrap();
    fs::write(tree.join("sub/run"), "#!/bin/sh\n").unwrap();
    chmod(&tree.join("sub/run"), 0o4751);
    fs::write(tree.join(Path::new(std::ffi::OsStr::from_bytes(b"new\nline \xff"))), "").unwrap();
    symlink("../nowhere/at all", tree.join("sub/link")).unwrap();
    symlink("/etc", tree.join("absolute")).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_600_000_000_123_456_789);
    for path in ["sub/run", "sub/deep", "sub"] {
        fs::File::open(tree.join(path)).unwrap().set_modified(time).unwrap();
    }
    chmod(&tree.join("sub/deep"), 0o555);
    tree
}

/// Returns the contents and metadata of a tree, for comparison.
fn shape(root: &Path) -> Vec<(PathBuf, u32, i64, Vec<u8>)> {
    let mut shape = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let (path, metadata) = (entry.path(), entry.metadata().unwrap());
            let content = if metadata.is_dir() {
                pending.push(path.clone());
                Vec::new()
            } else if metadata.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let time = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
            shape.push((path.strip_prefix(root).unwrap().to_owned(), metadata.mode(), time, content));
        }
    }
    shape.sort();
    shape
}

#[test]
fn a_tree_is_transferred_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let tree = sample(dir.path());
    let copy = dir.path().join("a/new/copy");
    for _ in 0..2 {
        // The second round writes over the first.
        let written = write(&copy, read(&tree).unwrap()).unwrap();
        let expected = TreeSummary { files: 3, directories: 3, links: 2, bytes: 600_010, skipped: 0 };
        assert_eq!(written, expected);
        assert_eq!(shape(&copy), shape(&tree));
    }
}

#[test]
fn random_trees_are_transferred_unchanged() {
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("tree");
        fs::create_dir(&root).unwrap();
        let mut directories = vec![root.clone()];
        for _ in 0..random.usize(0..40) {
            let parent = random.choice(&directories).unwrap().clone();
            let name: Vec<u8> =
                (0..random.usize(1..20)).map(|_| *random.choice(b"ab .\n\\\xff\x01*").unwrap()).collect();
            let path = parent.join(std::ffi::OsStr::from_bytes(&name));
            match random.u8(0..3) {
                0 if fs::create_dir(&path).is_ok() => directories.push(path),
                1 => drop(symlink("some/where", &path)),
                _ if !path.is_dir() && !path.is_symlink() => {
                    fs::write(&path, "x".repeat(random.usize(0..30_000))).unwrap();
                }
                _ => {}
            }
        }
        let copy = dir.path().join("copy");
        write(&copy, read(&root).unwrap()).unwrap();
        assert_eq!(shape(&copy), shape(&root), "round {round}");
    }
}

#[test]
fn pipes_and_sockets_are_counted_and_skipped() {
    let dir = tempfile::tempdir().unwrap();
    fifo(dir.path());
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    let parts = read(dir.path()).unwrap();
    assert_eq!(parts, [Part::Summary(TreeSummary { skipped: 2, ..TreeSummary::default() })]);
}

#[test]
fn a_tree_writes_nothing_outside_its_root() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    for path in ["../outside/x", "a/../../outside/x", "/etc/x", "", ".", "a/.", "a//b", "a/", "./a", "nul\0"]
    {
        let root = dir.path().join("root");
        let parts = [directory("a")].into_iter().chain(file(path, "x"));
        assert_eq!(code(write(&root, parts)), ErrorCode::InvalidArgument, "{path:?}");
    }
    let long = "x/".repeat(3000) + "x";
    assert_eq!(code(write(&dir.path().join("root"), file(long, ""))), ErrorCode::InvalidArgument);
    assert!(names(&outside).is_empty());
}

#[test]
fn a_tree_does_not_write_through_its_own_or_existing_links() {
    let dir = tempfile::tempdir().unwrap();
    let (outside, root) = (dir.path().join("outside"), dir.path().join("root"));
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(&root).unwrap();
    let target = text(&outside);
    let brought = [link("a", &target)].into_iter().chain(file("a/x", "x"));
    assert_eq!(code(write(&root, brought)), ErrorCode::NotADirectory);
    let as_directory = [link("a", &target), directory("a")].into_iter().chain(file("a/x", "x"));
    assert_eq!(code(write(&root, as_directory)), ErrorCode::NotADirectory);
    symlink(&outside, root.join("found")).unwrap();
    assert_eq!(code(write(&root, file("found/x", "x"))), ErrorCode::NotADirectory);
    // A file replaces a link of the same name.
    fs::write(outside.join("kept"), "kept").unwrap();
    symlink(outside.join("kept"), root.join("file")).unwrap();
    write(&root, file("file", "new").into_iter().chain([summary(1, 0, 0, 3)])).unwrap();
    assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "new");
    assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
    assert_eq!(names(&outside), ["kept"]);
}

#[test]
fn the_last_entry_of_a_name_wins_and_directories_are_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let parts =
        file("a", "first").into_iter().chain(file("a", "second")).chain([link("b", "x"), link("b", "y")]);
    write(dir.path(), parts.chain([summary(2, 0, 2, 11)])).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "second");
    assert_eq!(fs::read_link(dir.path().join("b")).unwrap(), Path::new("y"));
    fs::create_dir(dir.path().join("dir")).unwrap();
    assert_eq!(code(write(dir.path(), file("dir", "x"))), ErrorCode::IsDirectory);
    assert_eq!(code(write(dir.path(), [link("dir", "x")])), ErrorCode::IsDirectory);
    assert_eq!(names(dir.path()), ["a", "b", "dir"]);
}

#[test]
fn a_damaged_or_misordered_tree_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [header, chunk, trailer] = file("a", "content");
    let other = Part::Trailer(Trailer { checksum: Checksum::of(b"other") });
    let broken = [
        vec![header.clone(), chunk.clone(), other],
        vec![header.clone(), trailer.clone()],
        vec![header.clone(), chunk.clone(), chunk.clone()],
        vec![header.clone(), header.clone()],
        vec![header.clone(), chunk.clone(), summary(1, 0, 0, 7)],
        vec![header.clone(), chunk.clone()],
        vec![chunk],
        vec![trailer],
        vec![summary(1, 0, 0, 7)],
        vec![summary(0, 0, 0, 0), directory("late")],
        vec![Part::Entry(entry("pipe", FileKind::Other))],
        vec![],
    ];
    for parts in broken {
        assert_eq!(code(write(dir.path(), parts)), ErrorCode::Corrupt);
        assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
    }
}

#[test]
fn a_tree_with_too_many_levels_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("d/".repeat(MAX_DEPTH + 1))).unwrap();
    let failure = read(dir.path()).unwrap_err();
    assert_eq!(failure.code(), ErrorCode::TooLarge);
    assert!(failure.message().contains("levels"), "{failure}");
}

#[test]
fn the_policy_holds_for_every_entry_of_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("secret")).unwrap();
    fs::write(dir.path().join("secret/key"), "").unwrap();
    let policy = Policy { denied: vec![text(&dir.path().join("secret"))], ..Policy::default() };
    let resolver = PathResolver::default().with_rules(FileRules::new(&policy).into());
    let read: Result<Vec<_>, _> = TreeReader::new(&text(dir.path()), &resolver).unwrap().collect();
    assert_eq!(code(read), ErrorCode::Policy);
    let mut writer = TreeWriter::new(&text(dir.path()), None, &resolver).unwrap();
    let [header, ..] = file("secret/key", "x");
    assert_eq!(code(writer.take(header)), ErrorCode::Policy);
    assert_eq!(
        code(TreeWriter::new(&text(&dir.path().join("secret/new")), None, &resolver)),
        ErrorCode::Policy
    );
    assert_eq!(names(&dir.path().join("secret")), ["key"]);
}

fn sent(part: Part) -> UploadTreeRequest {
    let part = match part {
        Part::Entry(entry) => Sent::Entry(entry),
        Part::Chunk(chunk) => Sent::Chunk(chunk),
        Part::Trailer(trailer) => Sent::Trailer(trailer),
        Part::Summary(summary) => Sent::Summary(summary),
    };
    UploadTreeRequest { part: Some(part) }
}

fn header(path: &Path, repeated: bool) -> UploadTreeRequest {
    let operation = Operation { session: "s".to_owned(), number: 1, repeated, ..Operation::default() };
    let header = UploadHeader { operation: Some(operation), path: text(path), mode: Some(0o750) };
    UploadTreeRequest { part: Some(Sent::Header(header)) }
}

#[tokio::test]
async fn a_tree_is_sent_again_after_a_lost_stream_and_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let uploads = TreeUploads::new(Records::default());
    let [entry, chunk, trailer] = file("a", "content").map(sent);
    let lost = Err(tonic::Status::unavailable("lost"));
    let broken = [Ok(header(&root, false)), Ok(entry.clone()), Ok(chunk.clone()), lost];
    let status = uploads.upload(stream::iter(broken), PathResolver::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert!(names(&root).is_empty());
    let whole = [header(&root, true), entry, chunk, trailer, sent(summary(1, 0, 0, 7))].map(Ok);
    for _ in 0..2 {
        let answer = uploads.upload(stream::iter(whole.clone()), PathResolver::default()).await.unwrap();
        assert_eq!(answer.summary.unwrap().files, 1);
        assert_eq!(mode(&root), 0o750);
    }
    // The repeat of a completed call is answered and changes nothing.
    fs::write(root.join("a"), "changed since").unwrap();
    uploads.upload(stream::iter(whole), PathResolver::default()).await.unwrap();
    assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "changed since");
}
