//! Started commands.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use sandpod_client::{Event, ExecuteOptions, Exit, Process, StartOptions, TerminalSize};

use super::{Case, behaviours, within};

behaviours! {
    SHELL a_follower_gets_both_outputs_separately_and_then_the_exit,
    SHELL late_and_concurrent_followers_get_the_same_output,
    SHELL a_signal_reaches_all_that_was_started,
    SHELL a_started_command_has_a_timeout,
    SHELL paced_output_waits_for_a_follower,
    SHELL dropped_output_is_reported_and_offsets_stay_correct,
    SHELL a_started_command_survives_its_follower,
    SHELL both_outputs_can_be_combined,
    SHELL a_started_command_reads_all_its_input,
    SHELL_AND_LOSSES input_is_written_once_despite_lost_streams,
    SHELL a_started_command_runs_in_a_resizable_terminal,
    SHELL started_commands_are_listed_and_found_again,
}

/// The events that a follower received.
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
                assert_eq!(offset, next, "output does not continue where it ended");
                next += data.len() as u64;
                let output = if stderr { &mut seen.stderr } else { &mut seen.stdout };
                output.push_str(&String::from_utf8_lossy(&data));
            }
            Event::Hole { from, until } => {
                assert_eq!(from, next, "a gap does not begin where output ended");
                seen.holes += until - from;
                next = until;
            }
            Event::Exit(exit) => seen.exit = Some(exit),
        }
    }
    seen
}

fn ended(exit_code: i32) -> Exit {
    Exit { exit_code: Some(exit_code), timed_out: false, note: None }
}

async fn start(case: &Case<'_>, line: &str, options: impl Into<StartOptions>) -> Process {
    let mut options = options.into();
    options.run.working_dir = Some(case.dir.clone());
    case.sandbox.start(line, options).await.unwrap()
}

/// Follows a process until its output contains a text.
async fn await_output(process: &Process, text: &str) {
    let (mut events, mut output) = (process.attach(0), String::new());
    while !output.contains(text) {
        match events.next().await.unwrap().unwrap() {
            Event::Output { data, .. } => output.push_str(&String::from_utf8_lossy(&data)),
            event => panic!("{text:?} never came after {output:?}: {event:?}"),
        }
    }
}

async fn a_follower_gets_both_outputs_separately_and_then_the_exit(case: Case<'_>) {
    let process =
        start(&case, "echo out; echo err >&2; sleep 0.1; echo more; exit 5", ExecuteOptions::default()).await;
    let expected =
        Seen { stdout: "out\nmore\n".to_owned(), stderr: "err\n".to_owned(), holes: 0, exit: Some(ended(5)) };
    assert_eq!(follow(&process, 0).await, expected);
}

async fn late_and_concurrent_followers_get_the_same_output(case: Case<'_>) {
    let process =
        start(&case, "for i in 1 2 3 4 5; do echo $i; sleep 0.05; done", ExecuteOptions::default()).await;
    let expected = Seen { stdout: "1\n2\n3\n4\n5\n".to_owned(), exit: Some(ended(0)), ..Seen::default() };
    let (one, other) = tokio::join!(follow(&process, 0), follow(&process, 0));
    assert_eq!((&one, &other), (&expected, &expected));
    assert_eq!(follow(&process, 0).await, expected);
    assert_eq!(follow(&process, 4).await.stdout, "3\n4\n5\n");
    assert_eq!(process.wait().await.unwrap().exit_code, Some(0));
}

async fn a_signal_reaches_all_that_was_started(case: Case<'_>) {
    let process = start(&case, "sleep 600 & echo $!; wait", ExecuteOptions::default()).await;
    let first = process.attach(0).next().await.unwrap().unwrap();
    let Event::Output { data, .. } = first else { panic!("{first:?}") };
    process.signal(15).await.unwrap();
    assert_eq!(process.wait().await.unwrap().exit_code, Some(143));
    assert!(case.is_gone(&String::from_utf8_lossy(&data)).await, "the child still runs");
}

async fn a_started_command_has_a_timeout(case: Case<'_>) {
    let process = start(&case, "sleep 600", within(Duration::from_millis(300))).await;
    let exit = process.wait().await.unwrap();
    assert_eq!((exit.exit_code, exit.timed_out), (Some(124), true));
}

async fn paced_output_waits_for_a_follower(case: Case<'_>) {
    let process = start(&case, "seq 1 200000", StartOptions { paced: true, ..StartOptions::default() }).await;
    let seen = follow(&process, 0).await;
    assert_eq!((seen.stdout.lines().count(), seen.holes, seen.exit), (200_000, 0, Some(ended(0))));
}

async fn dropped_output_is_reported_and_offsets_stay_correct(case: Case<'_>) {
    let process = start(&case, "head -c 20000000 /dev/zero; printf end", ExecuteOptions::default()).await;
    process.wait().await.unwrap();
    let seen = follow(&process, 0).await;
    assert!(seen.stdout.ends_with("end"));
    assert_eq!(seen.stdout.len() as u64 + seen.holes, 20_000_003);
    assert!(seen.holes > 2_000_000, "only {} bytes were dropped", seen.holes);
}

async fn a_started_command_survives_its_follower(case: Case<'_>) {
    let process = start(
        &case,
        "echo begun; while ! [ -e go ]; do sleep 0.02; done; echo done",
        ExecuteOptions::default(),
    )
    .await;
    drop(process.attach(0).next().await);
    case.write("go", "").await;
    assert_eq!(follow(&process, 0).await.stdout, "begun\ndone\n");
}

async fn both_outputs_can_be_combined(case: Case<'_>) {
    let options = StartOptions { combined: true, ..StartOptions::default() };
    let process = start(&case, "for i in 1 2 3; do echo out$i; echo err$i >&2; done", options).await;
    assert_eq!(follow(&process, 0).await.stdout, "out1\nerr1\nout2\nerr2\nout3\nerr3\n");
}

async fn a_started_command_reads_all_its_input(case: Case<'_>) {
    let process =
        start(&case, "cat; echo end", StartOptions { stdin: true, ..StartOptions::default() }).await;
    process.write("one\n").await.unwrap();
    await_output(&process, "one\n").await;
    process.write("two\n").await.unwrap();
    process.close_stdin().await.unwrap();
    let seen = follow(&process, 0).await;
    assert_eq!((seen.stdout.as_str(), seen.exit), ("one\ntwo\nend\n", Some(ended(0))));
}

async fn input_is_written_once_despite_lost_streams(case: Case<'_>) {
    let process = start(&case, "wc -c", StartOptions { stdin: true, ..StartOptions::default() }).await;
    for _ in 0..5 {
        let lose = async { (case.place.lose_streams)() };
        let (written, ()) = tokio::join!(process.write(vec![b'x'; 1 << 20]), lose);
        written.unwrap();
    }
    process.close_stdin().await.unwrap();
    assert_eq!(follow(&process, 0).await.stdout.trim(), "5242880");
}

async fn a_started_command_runs_in_a_resizable_terminal(case: Case<'_>) {
    let terminal = Some(TerminalSize { rows: 30, columns: 90 });
    let line = "test -t 1 && stty size; read -r go; stty size";
    let process = start(&case, line, StartOptions { terminal, ..StartOptions::default() }).await;
    await_output(&process, "30 90").await;
    process.resize(TerminalSize { rows: 40, columns: 120 }).await.unwrap();
    process.write("go\n").await.unwrap();
    await_output(&process, "40 120").await;
    assert_eq!(process.wait().await.unwrap().exit_code, Some(0));
}

async fn started_commands_are_listed_and_found_again(case: Case<'_>) {
    let line = format!(": {}; read -r word; exit $word", case.dir);
    let started = start(&case, &line, StartOptions { stdin: true, ..StartOptions::default() }).await;
    let listed = case.sandbox.processes().await.unwrap();
    let found = listed.into_iter().find(|info| info.process.name() == started.name()).unwrap();
    assert!(found.command.starts_with(&line[..20]) && found.exit.is_none(), "{found:?}");
    found.process.write("7\n").await.unwrap();
    assert_eq!(found.process.wait().await.unwrap().exit_code, Some(7));
}
