//! The client against the real guest, in this process.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _};
use sandpod_client::{
    ByteStream, Bytes, Change, Connection, DialError, Dialer, Error, ErrorCode, Event, ExecuteOptions,
    Expected, FileChange, FileKind, GrepOptions, Options, Page, ReadOptions, Replacement, Sandbox,
    TreeLimits, TreeProgress, TreeSummary,
};
use sandpod_guest::Guest;

struct Here(Guest);

impl Dialer for Here {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        let guest = self.0.clone();
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            tokio::spawn(async move { guest.serve_stream(theirs).await });
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        })
    }
}

/// A sandbox that is this machine, and a directory that goes when it is dropped.
fn sandbox() -> (tempfile::TempDir, Sandbox) {
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let guest =
        Guest::new(sandpod_guest::Options::new(directory.path().join("state"))).expect("a guest starts");
    (directory, Sandbox::new(Connection::new(Here(guest), Options::default())))
}

#[tokio::test]
async fn commands_run_and_say_how_they_ended() {
    let (_directory, sandbox) = sandbox();
    let executed =
        sandbox.execute("echo out; echo err >&2; exit 3", ExecuteOptions::default()).await.unwrap();
    assert_eq!(executed.output, "out\nerr\n");
    assert_eq!((executed.exit_code, executed.truncated, executed.timed_out), (Some(3), false, false));
}

#[tokio::test]
async fn a_command_ends_when_its_time_is_up() {
    let (_directory, sandbox) = sandbox();
    let options = ExecuteOptions { timeout: Some(Duration::from_millis(100)), ..ExecuteOptions::default() };
    let executed = sandbox.execute("sleep 60", options).await.unwrap();
    assert_eq!((executed.exit_code, executed.timed_out), (Some(124), true));
}

#[tokio::test]
async fn a_dropped_command_is_killed() {
    let (directory, sandbox) = sandbox();
    let line = format!("echo $$ > {0}/pid; mv {0}/pid {0}/started; sleep 60", directory.path().display());
    let started = directory.path().join("started");
    let execute = sandbox.execute(line, ExecuteOptions::default());
    tokio::select! {
        executed = execute => panic!("{executed:?}"),
        () = async { while !started.exists() { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
    }
    let pid = std::fs::read_to_string(&started).unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{}", pid.trim()));
    let gone = async {
        while process.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
}

#[tokio::test]
async fn a_started_command_is_heard_and_ended() {
    let (_directory, sandbox) = sandbox();
    let process = sandbox.start("echo hello; exec sleep 60", ExecuteOptions::default()).await.unwrap();
    let mut events = process.attach(0);
    let first = events.next().await.unwrap().unwrap();
    assert!(
        matches!(first, Event::Output { offset: 0, ref data, stderr: false } if data == "hello\n"),
        "{first:?}"
    );
    process.signal(15).await.unwrap();
    assert_eq!(process.wait().await.unwrap().exit_code, Some(143));
    let rest: Vec<_> = events.try_collect().await.unwrap();
    assert!(matches!(rest[..], [Event::Exit(exit)] if exit.exit_code == Some(143)), "{rest:?}");
}

#[tokio::test]
async fn files_are_written_edited_found_read_and_deleted() {
    let (directory, sandbox) = sandbox();
    let root = directory.path().to_str().unwrap();
    let path = format!("{root}/deep/notes.txt");
    assert!(sandbox.write(&path, "one\ntwo\n").await.unwrap().atomic);
    assert_eq!(sandbox.edit(&path, "two", "zwei", false).await.unwrap().occurrences, 1);
    let Page::Text(page) = sandbox.read(&path, ReadOptions::default()).await.unwrap() else { panic!() };
    assert_eq!((page.start_line, page.end_line), (1, 2));
    assert!(page.content.starts_with("one\nzwei"));
    let info = sandbox.stat(&path, false).await.unwrap();
    assert_eq!((info.kind, info.size), (FileKind::File, 9));
    assert_eq!(sandbox.list(&format!("{root}/deep")).await.unwrap().len(), 1);
    assert_eq!(sandbox.glob("**/*.txt", root).await.unwrap().matches.len(), 1);
    let options = GrepOptions { root: Some(root.to_owned()), ..GrepOptions::default() };
    assert_eq!(sandbox.grep("zwei", options).await.unwrap().matches[0].line, 2);
    sandbox.delete(&path).await.unwrap();
    let Error::Failure(failure) = sandbox.stat(&path, false).await.unwrap_err() else { panic!() };
    assert_eq!(failure.code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn large_files_go_up_and_come_down_whole() {
    let (directory, sandbox) = sandbox();
    let path = format!("{}/large", directory.path().display());
    let content: Bytes = (0..2_000_000_u32).map(|index| u8::try_from(index % 251).unwrap()).collect();
    assert!(sandbox.write(&path, content.clone()).await.unwrap().atomic);
    assert!(sandbox.download(&path, u64::MAX).await.unwrap() == content);
}

#[tokio::test]
async fn files_are_uploaded_with_a_mode_read_in_part_and_moved() {
    let (directory, sandbox) = sandbox();
    let root = directory.path().to_str().unwrap();
    let (tool, moved) = (format!("{root}/tool"), format!("{root}/bin/tool"));
    let content = std::io::Cursor::new("#!/bin/sh\n");
    sandbox.upload_with_mode(&tool, Some(0o750), content).await.unwrap();
    assert_eq!(sandbox.read_range(&tool, 2, 4).await.unwrap(), "/bin");
    assert_eq!(sandbox.read_range(&tool, 99, 4).await.unwrap(), "");
    assert!(sandbox.move_path(&tool, &moved, false).await.unwrap().atomic);
    let (_, info) = sandbox.read_with_info(&moved, ReadOptions::default()).await.unwrap();
    let info = info.unwrap();
    assert_eq!((info.mode, info.size, info.uid), (0o750, 10, directory.path().metadata().unwrap().uid()));
    std::os::unix::fs::symlink("bin/tool", directory.path().join("link")).unwrap();
    let link = sandbox.stat(&format!("{root}/link"), false).await.unwrap();
    assert_eq!(link.link_target.as_deref(), Some("bin/tool"));
    assert_eq!(info.link_target, None);
}

#[tokio::test]
async fn sets_of_changes_are_made_or_not() {
    let (directory, sandbox) = sandbox();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let change = |name: &str, change| FileChange { path: path(name), expected: None, change };
    let replacement =
        Replacement { old_text: "two".to_owned(), new_text: "zwei".to_owned(), replace_all: false };
    sandbox.write(&path("a"), "one two").await.unwrap();
    let set = vec![
        change("a", Change::Replace(vec![replacement.clone()])),
        FileChange { expected: Some(Expected::Missing), ..change("b", Change::Content("new".into())) },
    ];
    let applied = sandbox.apply_edits(set.clone()).await.unwrap();
    assert_eq!((applied[0].occurrences, applied[1].occurrences), (1, 0));
    assert_eq!(std::fs::read_to_string(path("a")).unwrap(), "one zwei");
    let Error::Failure(failure) = sandbox.apply_edits(set).await.unwrap_err() else { panic!() };
    assert_eq!(failure.code(), ErrorCode::NoMatch);
    let hash = applied[1].sha256.unwrap();
    let delete = FileChange { expected: Some(Expected::Sha256(hash)), ..change("b", Change::Delete) };
    assert_eq!(sandbox.apply_edits(vec![delete]).await.unwrap()[0].sha256, None);
    let huge = change("c", Change::Content(vec![0; 9 << 20].into()));
    let Error::Failure(failure) = sandbox.apply_edits(vec![huge]).await.unwrap_err() else { panic!() };
    assert_eq!(failure.code(), ErrorCode::TooLarge);
}

#[tokio::test]
async fn whole_directories_go_up_and_come_down_as_they_are() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let (directory, sandbox) = sandbox();
    let (local, remote, back) =
        (directory.path().join("local"), directory.path().join("remote"), directory.path().join("back"));
    std::fs::create_dir_all(local.join("sub/empty")).unwrap();
    std::fs::write(local.join("sub/large"), vec![7; 3_000_000]).unwrap();
    std::fs::write(local.join("run\nme"), "x").unwrap();
    std::fs::set_permissions(local.join("run\nme"), std::fs::Permissions::from_mode(0o751)).unwrap();
    symlink("../run\nme", local.join("sub/link")).unwrap();
    symlink("/etc", local.join("out")).unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_nanos(1_600_000_000_123_456_789);
    std::fs::File::open(local.join("sub")).unwrap().set_modified(time).unwrap();
    let remote = remote.to_str().unwrap();
    let mut last = TreeProgress::default();
    let sent = sandbox.upload_tree(&local, remote, |progress| last = progress).await.unwrap();
    let expected =
        TreeSummary { files: 2, directories: 2, links: 2, bytes: 3_000_001, ..TreeSummary::default() };
    assert_eq!(sent, expected);
    assert_eq!(last, TreeProgress { entries: 6, bytes: 3_000_001 });
    let received =
        sandbox.download_tree(remote, &back, TreeLimits::default(), |progress| last = progress).await;
    assert_eq!(received.unwrap(), TreeSummary { links: 1, links_left_out: 1, ..expected });
    assert_eq!(last, TreeProgress { entries: 6, bytes: 3_000_001 });
    for path in ["sub/empty", "sub/large", "run\nme", "sub"] {
        let (ours, theirs) = (local.join(path).metadata().unwrap(), back.join(path).metadata().unwrap());
        assert_eq!(
            (ours.mode(), ours.modified().unwrap()),
            (theirs.mode(), theirs.modified().unwrap()),
            "{path}"
        );
    }
    assert!(std::fs::read(back.join("sub/large")).unwrap() == vec![7; 3_000_000]);
    assert_eq!(std::fs::read_link(back.join("sub/link")).unwrap(), std::path::Path::new("../run\nme"));
    assert_eq!(
        std::fs::read_link(std::path::Path::new(remote).join("out")).unwrap(),
        std::path::Path::new("/etc")
    );
    assert!(back.join("out").symlink_metadata().is_err());
    let missing = sandbox.upload_tree(local.join("no"), remote, |_| ()).await.unwrap_err();
    assert!(matches!(missing, Error::Local(_)), "{missing}");
}
