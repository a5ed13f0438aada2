//! A timeout limits the duration of a call, whatever the network does.

use std::time::Duration;

use futures::StreamExt as _;
use sandpod_client::{Error, Event, ExecuteOptions, Process, Sandbox};
use sandpod_protocol::v1::{self, ProcessEvent, process_event::Event as Wire};
use tokio::time::Instant;

use crate::fake::{Dial, Fault, Said, sandbox};

const TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout and the grace period, in seconds.
const BOUND: u64 = 15;

fn within(timeout: Duration) -> ExecuteOptions {
    ExecuteOptions { timeout: Some(timeout), ..ExecuteOptions::default() }
}

async fn process(sandbox: &Sandbox) -> Process {
    sandbox.start("job", within(TIMEOUT)).await.unwrap()
}

fn output(offset: u64, data: &'static str) -> Said {
    let output = v1::Output { offset, data: data.into(), stderr: false };
    Said::Event(ProcessEvent { event: Some(Wire::Output(output)) })
}

#[tokio::test(start_paused = true)]
async fn refused_connections_end_a_command_at_its_timeout_and_nothing_was_done() {
    let (fake, sandbox) = sandbox();
    fake.dial_always(Dial::Unreachable);
    let begun = Instant::now();
    let error = sandbox.execute("true", within(Duration::from_secs(20))).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("for 30s, so nothing was done: the node is rebooting"), "{error}");
    assert_eq!(fake.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn refused_connections_after_a_loss_leave_the_outcome_unknown() {
    let (fake, sandbox) = sandbox();
    sandbox.stat("/f", false).await.unwrap();
    fake.fault(Fault::CutBeforeAnswer);
    fake.dial_always(Dial::Unreachable);
    let begun = Instant::now();
    let error = sandbox.execute("true", within(TIMEOUT)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "the outcome of a command is unknown: no answer came within 15s, its timeout and a grace period: the \
         node is rebooting. It may still finish, and is not repeated; check whether it was done before you repeat it"
    );
    assert!(error.is_outcome_unknown());
}

#[tokio::test(start_paused = true)]
async fn command_without_network_ends_at_its_timeout_and_is_cancelled_but_not_repeated() {
    let (fake, sandbox) = sandbox();
    let waiting = sandbox.clone();
    let begun = Instant::now();
    let call = tokio::spawn(async move { waiting.execute("wait", within(TIMEOUT)).await });
    fake.until(|world| world.operations.lock().unwrap().len() == 1).await;
    fake.drop_packets();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    assert!(error.to_string().starts_with("the outcome of a command is unknown:"), "{error}");

    fake.deliver_packets_again();
    let next = sandbox.execute("next", within(TIMEOUT)).await.unwrap();
    assert_eq!(next.output, "next");
    fake.until(|world| *world.cancelled.lock().unwrap() == [1]).await;
    fake.release.notify_one();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let sent: Vec<_> = fake.operations().into_iter().filter(|sent| sent.number == 1).collect();
    assert_eq!((sent.len(), fake.runs()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn command_sent_while_packets_are_dropped_ends_at_its_timeout() {
    let (fake, sandbox) = sandbox();
    sandbox.stat("/f", false).await.unwrap();
    fake.drop_packets();
    let begun = Instant::now();
    let error = sandbox.execute("true", within(TIMEOUT)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn command_ends_at_its_timeout_if_packets_of_new_streams_are_dropped() {
    let (fake, sandbox) = sandbox();
    fake.drop_packets();
    let begun = Instant::now();
    let error = sandbox.execute("true", within(TIMEOUT)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn silent_guest_holds_a_command_no_longer_than_its_timeout() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::Stall);
    let begun = Instant::now();
    let error = sandbox.execute("true", within(TIMEOUT)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    fake.until(|world| *world.cancelled.lock().unwrap() == [1]).await;
}

#[tokio::test(start_paused = true)]
async fn guest_that_breaks_every_stream_holds_a_command_no_longer_than_its_timeout() {
    let (fake, sandbox) = sandbox();
    *fake.fault_default.lock().unwrap() = Some(Fault::CutBeforeAnswer);
    let begun = Instant::now();
    let error = sandbox.execute("true", within(TIMEOUT)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    assert_eq!(fake.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn starting_a_command_takes_no_longer_than_its_timeout() {
    let (fake, sandbox) = sandbox();
    fake.dial_always(Dial::Unreachable);
    let begun = Instant::now();
    let error = sandbox.start("job", within(TIMEOUT)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn calls_on_a_started_command_end_at_its_timeout_if_packets_are_dropped() {
    let (fake, sandbox) = sandbox();
    let process = process(&sandbox).await;
    fake.drop_packets();
    let begun = Instant::now();
    let mut events = process.attach(0);
    let (waited, attached, written, signalled) =
        tokio::join!(process.wait(), events.next(), process.write("input"), process.signal(15));
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    for error in
        [waited.unwrap_err(), attached.unwrap().unwrap_err(), written.unwrap_err(), signalled.unwrap_err()]
    {
        assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn attaching_again_and_again_ends_at_the_timeout() {
    let (fake, sandbox) = sandbox();
    let process = process(&sandbox).await;
    for _ in 0..100 {
        fake.events(vec![Said::Cut]);
    }
    let begun = Instant::now();
    let error = process.attach(0).next().await.unwrap().unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), BOUND);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    assert_eq!(fake.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn slow_reader_gets_the_output_of_a_command_that_timed_out() {
    let (fake, sandbox) = sandbox();
    let process = process(&sandbox).await;
    fake.events(vec![output(0, "one"), output(3, "two")]);
    let mut events = process.attach(0);
    for expected in ["one", "two"] {
        let event = events.next().await.unwrap().unwrap();
        assert!(matches!(&event, Event::Output { data, .. } if data == expected), "{event:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
}
