//! Started commands.

use futures::TryStreamExt as _;
use sandpod_client::{Bytes, Error, Event, ExecuteOptions, Exit, StartOptions, TerminalSize};
use sandpod_protocol::limits;
use sandpod_protocol::v1::{self, ProcessEvent, process_event::Event as Wire};

use crate::fake::{Fault, Said, sandbox};

fn output(offset: u64, data: &'static str) -> Said {
    let output = v1::Output { offset, data: data.into(), stderr: false };
    Said::Event(ProcessEvent { event: Some(Wire::Output(output)) })
}

fn hole_until(offset: u64) -> Said {
    Said::Event(ProcessEvent { event: Some(Wire::HoleUntil(offset)) })
}

fn exit() -> Said {
    Said::Event(ProcessEvent { event: Some(Wire::Exit(v1::Exit { exit_code: 0, ..v1::Exit::default() })) })
}

#[tokio::test]
async fn attach_continues_after_a_lost_stream_and_reports_gaps() {
    let (fake, sandbox) = sandbox();
    fake.events(vec![output(0, "one"), Said::Cut]);
    fake.events(vec![hole_until(10), output(10, "two"), Said::Cut]);
    fake.events(vec![exit()]);
    let process = sandbox.start("job", ExecuteOptions::default()).await.unwrap();
    let events: Vec<_> = process.attach(0).try_collect().await.unwrap();
    let output = |offset, data| Event::Output { offset, data: Bytes::from_static(data), stderr: false };
    let exit = Event::Exit(Exit { exit_code: Some(0), timed_out: false, note: None });
    assert_eq!(events, [output(0, b"one"), Event::Hole { from: 3, until: 10 }, output(10, b"two"), exit]);
    assert_eq!(*fake.attached_from.lock().unwrap(), [0, 3, 13]);
    assert_eq!(fake.runs(), 1);
}

#[tokio::test]
async fn inconsistent_output_offsets_are_an_error() {
    let (fake, sandbox) = sandbox();
    let process = sandbox.start("job", ExecuteOptions::default()).await.unwrap();
    let max = u64::MAX;
    let lies = [
        (0, vec![output(5, "a gap without a report")]),
        (5, vec![output(0, "output before the offset")]),
        (0, vec![output(0, "")]),
        (5, vec![hole_until(5)]),
        (max - 1, vec![output(max - 1, "too much")]),
        (0, vec![Said::Event(ProcessEvent::default())]),
        (0, vec![]),
    ];
    for (from, events) in lies {
        fake.events(events);
        let error = process.attach(from).try_collect::<Vec<_>>().await.unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}");
    }
}

#[tokio::test]
async fn wait_survives_a_lost_stream() {
    let (fake, sandbox) = sandbox();
    let process = sandbox.start("job", ExecuteOptions::default()).await.unwrap();
    let wait = tokio::spawn({
        let process = process.clone();
        async move { process.wait().await }
    });
    process.signal(15).await.unwrap();
    fake.cut();
    sandbox.stat("/f", false).await.unwrap();
    fake.release.notify_waiters();
    fake.release.notify_one();
    assert_eq!(wait.await.unwrap().unwrap().exit_code, Some(3));
}

#[tokio::test]
async fn process_of_an_earlier_boot_is_not_confused_with_a_new_one() {
    let (fake, sandbox) = sandbox();
    let process = sandbox.start("job", ExecuteOptions::default()).await.unwrap();
    fake.restart();
    for error in [
        process.signal(9).await.unwrap_err(),
        process.write("x").await.unwrap_err(),
        process.resize(TerminalSize::default()).await.unwrap_err(),
        process.wait().await.unwrap_err(),
        process.attach(0).try_collect::<Vec<_>>().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    }
    assert_eq!(fake.runs(), 1);
}

#[tokio::test]
async fn command_is_started_with_the_requested_streams() {
    let (fake, sandbox) = sandbox();
    let run = ExecuteOptions { shell_session: Some("agent".to_owned()), ..ExecuteOptions::default() };
    let terminal = Some(TerminalSize { rows: 24, columns: 80 });
    let options = StartOptions { run, paced: true, stdin: true, combined: true, terminal };
    sandbox.start("job", options).await.unwrap();
    let asked = fake.started.lock().unwrap().clone().unwrap();
    assert!(asked.paced && asked.stdin && asked.combined);
    assert_eq!(asked.terminal, Some(v1::Terminal { rows: 24, columns: 80 }));
    assert_eq!(asked.command.unwrap().shell_session, "agent");
}

#[tokio::test]
async fn input_is_written_once_and_in_order_despite_lost_streams() {
    let (fake, sandbox) = sandbox();
    let process = sandbox.start("job", ExecuteOptions::default()).await.unwrap();
    for _ in 0..2 {
        fake.fault(Fault::CutBeforeAnswer);
    }
    let large = vec![b'x'; 2 * limits::MAX_INPUT_BYTES + 5];
    process.write(large.clone()).await.unwrap();
    fake.fault(Fault::CutBeforeAnswer);
    process.write("last").await.unwrap();
    process.close_stdin().await.unwrap();
    fake.fault(Fault::CutBeforeAnswer);
    process.resize(TerminalSize { rows: 2, columns: 3 }).await.unwrap();
    let expected = [&large[..], b"last<end>"].concat();
    assert!(*fake.input.lock().unwrap() == expected, "input was written twice or out of order");
    assert_eq!(*fake.sizes.lock().unwrap(), [v1::Terminal { rows: 2, columns: 3 }]);
}

#[tokio::test]
async fn invalid_values_in_a_list_of_processes_are_sanitized() {
    let (fake, sandbox) = sandbox();
    let info = v1::ProcessInfo {
        process: "p7".to_owned(),
        command: "evil \u{1b}[31mred".to_owned(),
        started_ms: i64::MIN,
        exit: Some(v1::Exit { exit_code: 137, note: "too \u{1b}[2J much".to_owned(), ..v1::Exit::default() }),
        ..v1::ProcessInfo::default()
    };
    *fake.processes.lock().unwrap() = vec![info.clone()];
    fake.fault(Fault::CutBeforeAnswer);
    let listed = sandbox.processes().await.unwrap();
    assert_eq!((listed[0].process.name(), listed[0].pid), ("p7", None));
    assert_eq!(listed[0].command, "evil \\u{1b}[31mred");
    let note = Some("too \\u{1b}[2J much".to_owned());
    assert_eq!(listed[0].exit, Some(Exit { exit_code: Some(137), timed_out: false, note }));
    *fake.processes.lock().unwrap() = vec![v1::ProcessInfo { process: String::new(), ..info }];
    assert!(matches!(sandbox.processes().await.unwrap_err(), Error::Protocol(_)));
}

#[tokio::test]
async fn a_process_found_by_another_client_is_followed_to_its_end() {
    let (fake, sandbox) = sandbox();
    *fake.processes.lock().unwrap() =
        vec![v1::ProcessInfo { process: "p1".to_owned(), ..v1::ProcessInfo::default() }];
    fake.events(vec![output(0, "one"), Said::Cut]);
    fake.events(vec![output(3, "two"), exit()]);
    let found = sandbox.processes().await.unwrap().remove(0).process;
    let events: Vec<_> = found.attach(0).try_collect().await.unwrap();
    assert_eq!(events.len(), 3);
}
