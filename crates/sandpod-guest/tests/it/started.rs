//! Commands that are started and followed.

use std::time::Duration;

use sandpod_protocol::v1::process_event::Event;
use sandpod_protocol::v1::{Command, ErrorCode, Exit, Operation, StartRequest};

use crate::execute::is_gone;
use crate::harness::{Client, argv, client, guest, line};
use crate::process_helpers::{exit, outputs};

#[tokio::test]
async fn a_follower_gets_both_outputs_separately_and_then_the_exit() {
    let (client, _dir) = client().await;
    let process = client.start(line("echo out; echo err >&2; sleep 0.1; echo more; exit 5")).await;
    let events = client.events(&process, 0).await;
    assert!(matches!(events.last(), Some(Event::Exit(_))));
    assert_eq!(outputs(&events), ("out\nmore\n".to_owned(), "err\n".to_owned(), Some(exit(5))));
}

#[tokio::test]
async fn late_and_concurrent_followers_get_the_same_output() {
    let (guest, _dir) = guest();
    let (first, second) = (Client::of(&guest).await, Client::of(&guest).await);
    let process = first.start(line("for i in 1 2 3 4 5; do echo $i; sleep 0.05; done")).await;
    let (one, other) = tokio::join!(first.events(&process, 0), second.events(&process, 0));
    let late = second.events(&process, 0).await;
    let expected = ("1\n2\n3\n4\n5\n".to_owned(), String::new(), Some(exit(0)));
    for events in [one, other, late] {
        assert_eq!(outputs(&events), expected);
    }
    assert_eq!(outputs(&first.events(&process, 4).await).0, "3\n4\n5\n");
}

#[tokio::test]
async fn the_output_of_a_paced_process_waits_for_its_follower() {
    let (client, _dir) = client().await;
    let operation = Some(client.operation());
    let request = StartRequest {
        operation,
        command: Some(line("seq 1 300000")),
        paced: true,
        ..StartRequest::default()
    };
    let process = client.process.clone().start(request).await.unwrap().into_inner().process;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (stdout, _, end) = outputs(&client.events(&process, 0).await);
    assert_eq!(stdout.lines().count(), 300_000);
    assert_eq!(end, Some(exit(0)));
}

#[tokio::test]
async fn dropped_output_is_reported_as_a_hole_with_correct_offsets() {
    let (client, _dir) = client().await;
    let process = client.start(line("head -c 20000000 /dev/zero; printf end")).await;
    client.wait(&process).await;
    let events = client.events(&process, 10).await;
    let Event::HoleUntil(begin) = events[0] else { panic!("{:?}", events[0]) };
    let mut offset = begin;
    for event in &events[1..] {
        if let Event::Output(output) = event {
            assert_eq!(output.offset, offset);
            offset += output.data.len() as u64;
        }
    }
    assert_eq!(offset, 20_000_003);
    // 16 MiB are on disk and 256 KiB in memory, less some overhead.
    assert!(begin > 2_500_000 && begin < 3_500_000, "{begin}");
}

#[tokio::test]
async fn a_slow_follower_delays_neither_the_process_nor_others() {
    let (client, _dir) = client().await;
    let process = client.start(line("head -c 50000000 /dev/zero; exit 6")).await;
    let _idle = client.attach(&process, 0).await.unwrap();
    assert_eq!(client.wait(&process).await, exit(6));
    assert_eq!(client.run("echo here").await.0, "here\n");
}

#[tokio::test]
async fn an_offset_that_was_never_written_is_refused() {
    let (client, _dir) = client().await;
    let process = client.start(line("printf 12345")).await;
    client.wait(&process).await;
    assert_eq!(client.attach(&process, 6).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    assert_eq!(client.events(&process, 5).await, [Event::Exit(exit(0))]);
}

#[tokio::test]
async fn a_signal_reaches_every_descendant() {
    let (client, _dir) = client().await;
    let process = client.start(line("trap 'echo parent' TERM; sh -c 'trap \"echo child; exit\" TERM; echo ready; while :; do sleep 0.05; done'")).await;
    let mut events = client.attach(&process, 0).await.unwrap();
    events.message().await.unwrap();
    client.signal(&process, 15).await.unwrap();
    client.wait(&process).await;
    let (output, _, _) = outputs(&client.events(&process, 0).await);
    assert!(output.contains("parent\n") && output.contains("child\n"), "{output}");
}

#[tokio::test]
async fn a_killed_process_has_137_as_exit_code() {
    let (client, _dir) = client().await;
    let process = client.start(argv(&["sleep", "600"])).await;
    assert_eq!(client.signal(&process, 4096).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    client.signal(&process, 9).await.unwrap();
    assert_eq!(client.wait(&process).await, exit(137));
    assert_eq!(client.signal(&process, 9).await.unwrap_err().code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn a_started_process_has_its_timeout() {
    let (client, _dir) = client().await;
    let process = client.start(Command { timeout_ms: 2000, ..line("echo begun; sleep 600") }).await;
    assert_eq!(client.wait(&process).await, Exit { exit_code: 124, timed_out: true, ..Exit::default() });
    assert_eq!(outputs(&client.events(&process, 0).await).0, "begun\n");
}

#[tokio::test]
async fn a_process_that_cannot_start_ends_with_125_and_a_message() {
    let (client, _dir) = client().await;
    let process = client.start(argv(&["/no/such/program"])).await;
    let (_, why, end) = outputs(&client.events(&process, 0).await);
    assert_eq!(
        (why.as_str(), end),
        ("the command was not started: there is no program /no/such/program", Some(exit(125)))
    );
}

#[tokio::test]
async fn a_repeated_start_names_the_same_process() {
    let (client, _dir) = client().await;
    let operation = client.operation();
    let first = client.start_as(operation.clone(), line("echo once")).await.unwrap();
    let repeat = Operation { repeated: true, ..operation };
    assert_eq!(client.start_as(repeat, line("echo once")).await.unwrap(), first);
}

#[tokio::test]
async fn the_exit_does_not_wait_for_a_background_process_with_the_output() {
    let (client, dir) = client().await;
    let (pid, done) = (dir.path().join("pid"), dir.path().join("done"));
    let script =
        format!("(sleep 6; echo late; echo > {}) & echo $! > {}; echo soon", done.display(), pid.display());
    let process = client.start(line(&script)).await;
    assert_eq!(client.wait(&process).await, exit(0));
    assert_eq!(outputs(&client.events(&process, 0).await).0, "soon\n");
    assert!(!done.exists(), "the child was waited for");
    assert!(is_gone(&pid).await);
    assert!(done.exists(), "it was ended when its output was no longer read");
}

#[tokio::test]
async fn unknown_and_old_processes_are_not_found() {
    let (client, _dir) = client().await;
    for name in ["", "p", "p99", "q1"] {
        assert_eq!(client.attach(name, 0).await.unwrap_err().code(), ErrorCode::NotFound);
    }
    let first = client.start(line("true")).await;
    client.wait(&first).await;
    for _ in 0..66 {
        let process = client.start(argv(&["true"])).await;
        client.wait(&process).await;
    }
    assert_eq!(client.attach(&first, 0).await.unwrap_err().code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn combined_outputs_keep_the_order_written() {
    let (client, _dir) = client().await;
    let script = "for i in 1 2 3; do echo out$i; echo err$i >&2; done";
    let request = StartRequest { combined: true, ..StartRequest::default() };
    let process = client.start_with(line(script), request).await;
    let (output, nothing, _) = outputs(&client.events(&process, 0).await);
    assert_eq!((output.as_str(), nothing.as_str()), ("out1\nerr1\nout2\nerr2\nout3\nerr3\n", ""));
}

#[tokio::test]
async fn another_client_can_list_and_follow_a_process() {
    let (guest, _dir) = guest();
    let first = Client::of(&guest).await;
    let process = first.start(line("echo one; sleep 0.2; echo two; exec sleep 600")).await;
    first.await_output(&process, "one").await;
    drop(first);
    let second = Client::of(&guest).await.named("another");
    let listed = second.list().await;
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].process.as_str(), &listed[0].exit), (process.as_str(), &None));
    assert!(listed[0].command.starts_with("echo one;") && listed[0].output_end >= 4);
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", listed[0].pid)).unwrap();
    assert!(["sh\n", "sleep\n"].contains(&comm.as_str()), "{comm:?} is not the command");
    assert!(listed[0].started_ms > 1_600_000_000_000);
    second.await_output(&process, "one\ntwo\n").await;
    second.signal(&process, 9).await.unwrap();
    second.wait(&process).await;
    let ended = second.list().await;
    assert_eq!((ended[0].pid, ended[0].exit.clone()), (0, Some(exit(137))));
}

#[tokio::test]
async fn a_long_command_is_cut_where_it_is_listed() {
    let (client, _dir) = client().await;
    let process = client.start(line(&format!("true {}", "é".repeat(5000)))).await;
    client.wait(&process).await;
    let command = &client.list().await[0].command;
    assert!(command.ends_with("é…") && command.chars().count() == 201, "{command}");
}

#[tokio::test]
async fn output_leaves_no_file_behind() {
    let (client, dir) = client().await;
    let process = client.start(line("head -c 3000000 /dev/zero")).await;
    client.wait(&process).await;
    let total: usize = client
        .events(&process, 0)
        .await
        .iter()
        .map(|event| match event {
            Event::Output(output) => output.data.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(total, 3_000_000);
    assert_eq!(std::fs::read_dir(dir.path().join("output")).unwrap().count(), 0);
}

#[tokio::test]
async fn an_unwritable_output_directory_shortens_the_history() {
    let (client, dir) = client().await;
    std::fs::write(dir.path().join("output"), "in the way").unwrap();
    let process = client.start(line("head -c 1000000 /dev/zero; printf end")).await;
    client.wait(&process).await;
    let events = client.events(&process, 0).await;
    let Event::HoleUntil(begin) = events[0] else { panic!("{:?}", events[0]) };
    assert!(begin > 700_000 && begin < 900_000, "{begin}");
    let Some(Event::Output(last)) = events.iter().rev().nth(1) else { panic!("no output") };
    assert!(last.data.ends_with(b"end"));
}
