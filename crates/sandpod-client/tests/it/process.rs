//! Started commands.

use futures::TryStreamExt as _;
use sandpod_client::{Bytes, Error, Event, ExecuteOptions, Exit};
use sandpod_protocol::v1::{self, ProcessEvent, process_event::Event as Wire};

use crate::fake::{Said, sandbox};

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
async fn a_lost_stream_is_taken_up_where_it_broke_and_holes_are_reported() {
    let (fake, sandbox) = sandbox();
    fake.events(vec![output(0, "one"), Said::Cut]);
    fake.events(vec![hole_until(10), output(10, "two"), Said::Cut]);
    fake.events(vec![exit()]);
    let process = sandbox.start("job", ExecuteOptions::default()).await.unwrap();
    let events: Vec<_> = process.attach(0).try_collect().await.unwrap();
    let output = |offset, data| Event::Output { offset, data: Bytes::from_static(data), stderr: false };
    let exit = Event::Exit(Exit { exit_code: Some(0), timed_out: false });
    assert_eq!(events, [output(0, b"one"), Event::Hole { from: 3, until: 10 }, output(10, b"two"), exit]);
    assert_eq!(*fake.attached_from.lock().unwrap(), [0, 3, 13]);
    assert_eq!(fake.runs(), 1);
}

#[tokio::test]
async fn output_that_does_not_fit_together_is_refused() {
    let (fake, sandbox) = sandbox();
    let process = sandbox.start("job", ExecuteOptions::default()).await.unwrap();
    let max = u64::MAX;
    let lies = [
        (0, vec![output(5, "a gap that nobody reported")]),
        (5, vec![output(0, "what the caller has")]),
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
async fn waiting_survives_a_lost_stream() {
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
async fn a_process_of_an_earlier_boot_is_not_mistaken_for_another() {
    let (fake, sandbox) = sandbox();
    let process = sandbox.start("job", ExecuteOptions::default()).await.unwrap();
    fake.restart();
    for error in [
        process.signal(9).await.unwrap_err(),
        process.wait().await.unwrap_err(),
        process.attach(0).try_collect::<Vec<_>>().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    }
    assert_eq!(fake.runs(), 1);
}
