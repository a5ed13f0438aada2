//! Commands that go on by themselves.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use sandpod_client::{Event, ExecuteOptions, Exit, Process};

use super::{At, behaviours, within};

behaviours! {
    SHELL a_follower_gets_both_outputs_apart_and_then_the_end,
    SHELL late_followers_and_many_at_once_get_the_same,
    SHELL a_signal_reaches_all_that_was_started,
    SHELL a_started_command_has_its_time_too,
    SHELL paced_output_waits_for_its_follower,
    SHELL what_was_dropped_is_reported_and_offsets_stay_true,
    SHELL a_started_command_outlives_its_follower,
}

/// What a follower saw.
#[derive(Debug, Default, Eq, PartialEq)]
struct Seen {
    stdout: String,
    stderr: String,
    holes: u64,
    exit: Option<Exit>,
}

async fn follow(process: &Process, from: u64) -> Seen {
    let events: Vec<_> = process.attach(from).try_collect().await.unwrap();
    let (mut seen, mut next) = (Seen::default(), from);
    for event in events {
        match event {
            Event::Output { offset, data, stderr } => {
                assert_eq!(offset, next, "output does not go on where it ended");
                next += data.len() as u64;
                let output = if stderr { &mut seen.stderr } else { &mut seen.stdout };
                output.push_str(&String::from_utf8_lossy(&data));
            }
            Event::Hole { from, until } => {
                assert_eq!(from, next, "a hole begins where output ended");
                seen.holes += until - from;
                next = until;
            }
            Event::Exit(exit) => seen.exit = Some(exit),
        }
    }
    seen
}

fn exit(code: i32) -> Option<Exit> {
    Some(Exit { exit_code: Some(code), timed_out: false })
}

async fn start(at: &At<'_>, line: &str, options: ExecuteOptions) -> Process {
    let options = ExecuteOptions { working_dir: Some(at.dir.clone()), ..options };
    at.sandbox.start(line, options).await.unwrap()
}

async fn a_follower_gets_both_outputs_apart_and_then_the_end(at: At<'_>) {
    let process =
        start(&at, "echo out; echo err >&2; sleep 0.1; echo more; exit 5", ExecuteOptions::default()).await;
    let expected =
        Seen { stdout: "out\nmore\n".to_owned(), stderr: "err\n".to_owned(), holes: 0, exit: exit(5) };
    assert_eq!(follow(&process, 0).await, expected);
}

async fn late_followers_and_many_at_once_get_the_same(at: At<'_>) {
    let process =
        start(&at, "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done", ExecuteOptions::default()).await;
    let expected = Seen { stdout: "1\n2\n3\n4\n5\n".to_owned(), exit: exit(0), ..Seen::default() };
    let (one, other) = tokio::join!(follow(&process, 0), follow(&process, 0));
    assert_eq!((&one, &other), (&expected, &expected));
    assert_eq!(follow(&process, 0).await, expected);
    assert_eq!(follow(&process, 4).await.stdout, "3\n4\n5\n");
    assert_eq!(process.wait().await.unwrap().exit_code, Some(0));
}

async fn a_signal_reaches_all_that_was_started(at: At<'_>) {
    let process = start(&at, "sleep 600 & echo $!; wait", ExecuteOptions::default()).await;
    let first = process.attach(0).next().await.unwrap().unwrap();
    let Event::Output { data, .. } = first else { panic!("{first:?}") };
    process.signal(15).await.unwrap();
    assert_eq!(process.wait().await.unwrap().exit_code, Some(143));
    assert!(at.is_gone(&String::from_utf8_lossy(&data)).await, "the child lives on");
}

async fn a_started_command_has_its_time_too(at: At<'_>) {
    let process = start(&at, "sleep 600", within(Duration::from_millis(300))).await;
    let exit = process.wait().await.unwrap();
    assert_eq!((exit.exit_code, exit.timed_out), (Some(124), true));
}

async fn paced_output_waits_for_its_follower(at: At<'_>) {
    let process = at.sandbox.start_paced("seq 1 200000", ExecuteOptions::default()).await.unwrap();
    let seen = follow(&process, 0).await;
    assert_eq!((seen.stdout.lines().count(), seen.holes, seen.exit), (200_000, 0, exit(0)));
}

async fn what_was_dropped_is_reported_and_offsets_stay_true(at: At<'_>) {
    let process = start(&at, "head -c 1000000 /dev/zero; printf end", ExecuteOptions::default()).await;
    process.wait().await.unwrap();
    let seen = follow(&process, 0).await;
    assert!(seen.stdout.ends_with("end"));
    assert_eq!(seen.stdout.len() as u64 + seen.holes, 1_000_003);
}

async fn a_started_command_outlives_its_follower(at: At<'_>) {
    let process = start(
        &at,
        "echo begun; while ! [ -e go ]; do sleep 0.02; done; echo done",
        ExecuteOptions::default(),
    )
    .await;
    drop(process.attach(0).next().await);
    at.write("go", "").await;
    assert_eq!(follow(&process, 0).await.stdout, "begun\ndone\n");
}
