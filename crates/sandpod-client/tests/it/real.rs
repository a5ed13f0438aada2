//! The client against the real guest, in this process.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _};
use sandpod_client::{
    Binding, BoundFile, ByteStream, Bytes, Change, Connection, DialError, Dialer, Error, ErrorCode, Event,
    ExecuteOptions, Expected, FileChange, FileKind, GrepOptions, Network, Options, Page, Policy, Process,
    ReadOptions, Replacement, Sandbox, StartOptions, TerminalSize, TreeLimits, TreeProgress, TreeSummary,
};
use sandpod_guest::Guest;
use tokio::sync::Notify;

/// Dials a guest in this process over streams that can be broken.
#[derive(Clone)]
struct InProcess(Guest, Arc<Notify>);

impl Dialer for InProcess {
    fn dial(&self) -> BoxFuture<'_, Result<Box<dyn ByteStream>, DialError>> {
        let Self(guest, cut) = self.clone();
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            tokio::spawn(async move {
                tokio::select! {
                    _ = guest.serve_stream(theirs) => {}
                    () = cut.notified() => {}
                }
            });
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        })
    }
}

/// Returns a sandbox on this machine, and its directory, which is deleted when dropped.
fn sandbox() -> (tempfile::TempDir, Sandbox) {
    let (directory, here) = here();
    (directory, here.client())
}

fn here() -> (tempfile::TempDir, InProcess) {
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let guest =
        Guest::new(sandpod_guest::Options::new(directory.path().join("state"))).expect("a guest starts");
    (directory, InProcess(guest, Arc::default()))
}

impl InProcess {
    fn client(&self) -> Sandbox {
        Sandbox::new(Connection::new(self.clone(), Options::default()))
    }

    /// Breaks all streams.
    fn cut(&self) {
        self.1.notify_waiters();
    }
}

#[tokio::test]
async fn command_returns_its_output_and_exit_code() {
    let (_directory, sandbox) = sandbox();
    let executed =
        sandbox.execute("echo out; echo err >&2; exit 3", ExecuteOptions::default()).await.unwrap();
    assert_eq!(executed.output, "out\nerr\n");
    assert_eq!((executed.exit_code, executed.truncated, executed.timed_out), (Some(3), false, false));
}

#[tokio::test]
async fn command_ends_at_its_timeout() {
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
async fn started_command_is_followed_and_signalled() {
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
    assert!(matches!(&rest[..], [Event::Exit(exit)] if exit.exit_code == Some(143)), "{rest:?}");
}

/// Follows a process until its output contains a text.
async fn await_output(process: &Process, text: &str) -> String {
    let (mut events, mut output) = (process.attach(0), String::new());
    while !output.contains(text) {
        match events.next().await.unwrap().unwrap() {
            Event::Output { data, .. } => output.push_str(&String::from_utf8_lossy(&data)),
            event => panic!("{text:?} never came after {output:?}: {event:?}"),
        }
    }
    output
}

#[tokio::test]
async fn command_reads_all_its_input_despite_lost_streams() {
    let (_directory, here) = here();
    let sandbox = here.client();
    let process =
        sandbox.start("wc -c", StartOptions { stdin: true, ..StartOptions::default() }).await.unwrap();
    for _ in 0..5 {
        here.cut();
        process.write(vec![b'x'; 1 << 20]).await.unwrap();
    }
    here.cut();
    process.close_stdin().await.unwrap();
    await_output(&process, "5242880\n").await;
}

#[tokio::test]
async fn hundreds_of_followers_do_not_block_other_calls() {
    let (_directory, sandbox) = sandbox();
    let options = StartOptions { stdin: true, ..StartOptions::default() };
    let process = sandbox.start("read -r go; echo $go", options).await.unwrap();
    let follow = |_| tokio::spawn(process.attach(0).try_collect::<Vec<_>>());
    let followers: Vec<_> = (0..300).map(follow).collect();
    // The answer to this call comes after all that was sent before it.
    sandbox.stat("/", false).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), process.write("go\n")).await.expect("it hangs").unwrap();
    for follower in followers {
        let events = follower.await.unwrap().unwrap();
        assert!(
            matches!(&events[..], [Event::Output { data, .. }, Event::Exit(_)] if data == "go\n"),
            "{events:?}"
        );
    }
}

#[tokio::test]
async fn unread_output_does_not_block_other_calls() {
    let (_directory, sandbox) = sandbox();
    let mut unread = Vec::new();
    for _ in 0..8 {
        let process = sandbox.start("head -c 5000000 /dev/zero", ExecuteOptions::default()).await.unwrap();
        process.wait().await.unwrap();
        let mut events = process.attach(0);
        events.next().await.unwrap().unwrap();
        unread.push(events);
    }
    let execute = sandbox.execute("echo done", ExecuteOptions::default());
    let executed = tokio::time::timeout(Duration::from_secs(20), execute).await.expect("it hangs").unwrap();
    assert_eq!(executed.output, "done\n");
}

/// Edits a file of its own until `enough` is set; returns the number of edits.
async fn edit_until(enough: Arc<AtomicBool>, sandbox: Sandbox, path: String) -> usize {
    sandbox.write(&path, "|").await.unwrap();
    let mut edits = 0;
    while !enough.load(Ordering::SeqCst) {
        sandbox.edit(&path, "|", "x|", false).await.unwrap();
        edits += 1;
    }
    edits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_are_answered_once_despite_lost_streams() {
    let (directory, here) = here();
    let (sandbox, enough) = (here.client(), Arc::new(AtomicBool::new(false)));
    let path = |caller| format!("{}/file-{caller}", directory.path().display());
    let edit = |caller| tokio::spawn(edit_until(enough.clone(), sandbox.clone(), path(caller)));
    let callers: Vec<_> = (0..12).map(edit).collect();
    for loss in 0..300 {
        // Far apart and close together, but no closer than a stream takes to open.
        tokio::time::sleep(Duration::from_micros(2_000 + loss * 7_919 % 13_000)).await;
        here.cut();
    }
    enough.store(true, Ordering::SeqCst);
    for (caller, edits) in callers.into_iter().enumerate() {
        let edits = tokio::time::timeout(Duration::from_secs(30), edits).await.expect("it hangs").unwrap();
        assert_eq!(std::fs::read_to_string(path(caller)).unwrap(), "x".repeat(edits) + "|");
    }
}

#[tokio::test]
async fn a_terminal_has_its_size_also_after_the_stream_was_lost() {
    let (_directory, here) = here();
    let sandbox = here.client();
    let terminal = Some(TerminalSize { rows: 30, columns: 90 });
    let script = "stty size; read -r go; stty size";
    let process = sandbox.start(script, StartOptions { terminal, ..StartOptions::default() }).await.unwrap();
    await_output(&process, "30 90").await;
    here.cut();
    process.resize(TerminalSize { rows: 40, columns: 120 }).await.unwrap();
    process.write("go\n").await.unwrap();
    await_output(&process, "40 120").await;
    assert_eq!(process.wait().await.unwrap().exit_code, Some(0));
}

#[tokio::test]
async fn a_process_outlives_its_client_and_another_one_finds_it() {
    let (_directory, here) = here();
    let first = here.client();
    let options = StartOptions { stdin: true, combined: true, ..StartOptions::default() };
    let process = first.start("echo ready; read -r word; echo got $word; exit 4", options).await.unwrap();
    await_output(&process, "ready").await;
    here.cut();
    drop((first, process));
    let second = here.client();
    let mut found = second.processes().await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].pid.is_some() && found[0].exit.is_none() && found[0].command.starts_with("echo ready"));
    let process = found.remove(0).process;
    process.write("hello\n").await.unwrap();
    assert_eq!(process.wait().await.unwrap().exit_code, Some(4));
    let events: Vec<_> = process.attach(0).try_collect().await.unwrap();
    assert!(matches!(events.last(), Some(Event::Exit(exit)) if exit.exit_code == Some(4)), "{events:?}");
    await_output(&process, "got hello\n").await;
}

#[tokio::test]
async fn a_shell_session_goes_on_with_another_client() {
    let (_directory, here) = here();
    let session = || ExecuteOptions { shell_session: Some("agent".to_owned()), ..ExecuteOptions::default() };
    here.client().execute("cd /usr; export COLOUR=red", session()).await.unwrap();
    here.cut();
    let executed = here.client().execute("pwd; echo $COLOUR", session()).await.unwrap();
    assert_eq!(executed.output, "/usr\nred\n");
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
async fn large_files_are_uploaded_and_downloaded_completely() {
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
async fn directories_are_uploaded_and_downloaded_unchanged() {
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

#[tokio::test]
async fn a_bound_policy_files_and_time_are_the_sandboxs() {
    let (directory, sandbox) = sandbox();
    let path = format!("{}/brought", directory.path().display());
    let file = BoundFile { path: path.clone(), content: "hello".into(), mode: 0o640 };
    let policy = Policy { network: Some(Network::None), required: true, ..Policy::default() };
    let binding = Binding {
        claim: "mine".to_owned(),
        ttl: Some(Duration::from_secs(1000)),
        policy: Some(policy),
        files: vec![file],
        token_sha256: Some([7; 32]),
        ..Binding::default()
    };
    sandbox.bind(binding).await.unwrap();
    assert_eq!(sandbox.stat(&path, false).await.unwrap().mode & 0o777, 0o640);
    let (info, stats) = (sandbox.info().await.unwrap(), sandbox.stats().await.unwrap());
    assert_eq!(info.enforced, stats.enforced);
    assert!(stats.enforced.network && stats.ttl_left.unwrap() > Duration::from_secs(900), "{stats:?}");
    assert_eq!((stats.commands, stats.command_exit), (0, None));
}

#[tokio::test]
async fn command_has_its_own_policy_which_cannot_be_wider() {
    let (directory, sandbox) = sandbox();
    let policy = Policy { writable: vec!["/nowhere".to_owned()], ..Policy::default() };
    let bound =
        Policy { network: Some(Network::Ports { connect: vec![443], listen: vec![] }), ..policy.clone() };
    sandbox.bind(Binding { claim: "a".to_owned(), policy: Some(bound), ..Binding::default() }).await.unwrap();
    let options = |policy| ExecuteOptions { policy: Some(policy), ..ExecuteOptions::default() };
    let line = format!("echo x > {}/new", directory.path().display());
    let executed = sandbox.execute(line, options(policy)).await.unwrap();
    assert_eq!(executed.exit_code != Some(0), sandbox.info().await.unwrap().enforced.files);
    let open = Policy { network: Some(Network::Open), ..Policy::default() };
    let Error::Failure(failure) = sandbox.execute("true", options(open)).await.unwrap_err() else { panic!() };
    assert_eq!(failure.code(), ErrorCode::Policy);
}
