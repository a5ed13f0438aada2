//! The client against the real guest, in this process.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _};
use sandpod_client::{
    Binding, BoundFile, ByteStream, Bytes, Connection, DialError, Dialer, Error, ErrorCode, Event,
    ExecuteOptions, FileKind, GrepOptions, Network, Options, Page, Policy, ReadOptions, Sandbox,
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
async fn a_command_is_held_to_a_policy_of_its_own_that_can_not_be_wider() {
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
