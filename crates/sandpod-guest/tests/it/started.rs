//! Commands that are started and followed.

use std::time::Duration;

use sandpod_protocol::Failure;
use sandpod_protocol::v1::process_event::Event;
use sandpod_protocol::v1::{
    AttachRequest, Command, ErrorCode, Exit, Operation, ProcessEvent, SignalRequest, StartRequest,
    WaitRequest,
};

use crate::harness::{Client, argv, client, guest, line};

impl Client {
    async fn start(&self, command: Command) -> String {
        self.start_as(self.operation(), command).await.unwrap()
    }

    async fn start_as(&self, operation: Operation, command: Command) -> Result<String, Failure> {
        let request =
            StartRequest { operation: Some(operation), command: Some(command), ..StartRequest::default() };
        let answer = self.process.clone().start(request).await;
        answer.map(|answer| answer.into_inner().process).map_err(|status| Failure::from(&status))
    }

    async fn wait(&self, process: &str) -> Exit {
        let request = WaitRequest { process: process.to_owned() };
        self.process.clone().wait(request).await.unwrap().into_inner().exit.unwrap()
    }

    async fn signal(&self, process: &str, signal: i32) -> Result<(), Failure> {
        let request =
            SignalRequest { operation: Some(self.operation()), process: process.to_owned(), signal };
        self.process.clone().signal(request).await.map(drop).map_err(|status| Failure::from(&status))
    }

    async fn attach(
        &self,
        process: &str,
        from_offset: u64,
    ) -> Result<tonic::Streaming<ProcessEvent>, Failure> {
        let request = AttachRequest { process: process.to_owned(), from_offset };
        let answer = self.process.clone().attach(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Failure::from(&status))
    }

    /// All events from an offset on, to the end.
    async fn events(&self, process: &str, from_offset: u64) -> Vec<Event> {
        let mut stream = self.attach(process, from_offset).await.unwrap();
        let mut events = Vec::new();
        while let Some(event) = stream.message().await.unwrap() {
            events.push(event.event.unwrap());
        }
        events
    }
}

/// Both outputs as text, and the exit.
fn outputs(events: &[Event]) -> (String, String, Option<Exit>) {
    let (mut stdout, mut stderr, mut exit) = (Vec::new(), Vec::new(), None);
    for event in events {
        match event {
            Event::Output(output) if output.stderr => stderr.extend_from_slice(&output.data),
            Event::Output(output) => stdout.extend_from_slice(&output.data),
            Event::Exit(last) => exit = Some(last.clone()),
            Event::HoleUntil(_) => panic!("there is a hole"),
        }
    }
    (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap(), exit)
}

fn exit(exit_code: i32) -> Exit {
    Exit { exit_code, ..Exit::default() }
}

#[tokio::test]
async fn a_follower_gets_both_outputs_apart_and_then_the_end() {
    let (client, _dir) = client().await;
    let process = client.start(line("echo out; echo err >&2; sleep 0.1; echo more; exit 5")).await;
    let events = client.events(&process, 0).await;
    assert!(matches!(events.last(), Some(Event::Exit(_))));
    assert_eq!(outputs(&events), ("out\nmore\n".to_owned(), "err\n".to_owned(), Some(exit(5))));
}

#[tokio::test]
async fn a_late_follower_and_many_at_once_get_the_same() {
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
async fn output_that_was_dropped_is_reported_as_a_hole_and_offsets_stay_true() {
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
    // 16 MiB are on disk and 256 KiB in memory, less what it takes to find them.
    assert!(begin > 2_500_000 && begin < 3_500_000, "{begin}");
}

#[tokio::test]
async fn a_follower_that_does_not_read_holds_up_neither_the_process_nor_others() {
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
async fn a_signal_reaches_all_that_a_process_started() {
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
    let process = client.start(Command { timeout_ms: 100, ..line("echo begun; sleep 600") }).await;
    assert_eq!(client.wait(&process).await, Exit { exit_code: 124, timed_out: true, ..Exit::default() });
    assert_eq!(outputs(&client.events(&process, 0).await).0, "begun\n");
}

#[tokio::test]
async fn a_process_that_cannot_start_ends_with_125_and_a_sentence() {
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
async fn the_end_of_a_process_does_not_wait_for_a_child_that_holds_its_output() {
    let (client, dir) = client().await;
    let done = dir.path().join("done");
    let process =
        client.start(line(&format!("(sleep 3; echo late; echo > {}) & echo soon", done.display()))).await;
    let ended = tokio::time::timeout(Duration::from_secs(2), client.wait(&process)).await;
    assert_eq!(ended.unwrap(), exit(0));
    assert_eq!(outputs(&client.events(&process, 0).await).0, "soon\n");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(done.exists(), "it was ended when its output was no longer read");
}

#[tokio::test]
async fn an_unknown_process_is_not_found_and_old_ones_are_forgotten() {
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
