//! Every loss is reported by name, and no call is executed twice.

use std::time::Duration;

use futures::future::join_all;
use sandpod_client::{Error, ExecuteOptions, Notice, Sandbox};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::fake::{Dial, Fault, sandbox};

fn wait_in_background(sandbox: &Sandbox) -> JoinHandle<Result<sandpod_client::Executed, Error>> {
    let sandbox = sandbox.clone();
    tokio::spawn(async move { sandbox.execute("wait", ExecuteOptions::default()).await })
}

#[tokio::test]
async fn call_whose_answer_is_lost_runs_once_and_is_answered() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::CutBeforeAnswer);
    let executed = sandbox.execute("hello", ExecuteOptions::default()).await.unwrap();
    assert_eq!(executed.output, "hello");
    assert_eq!(executed.notices, []);
    assert_eq!((fake.runs(), fake.dials()), (1, 2));
    let sent: Vec<_> = fake.operations().iter().map(|o| (o.number, o.repeated)).collect();
    assert_eq!(sent, [(1, false), (1, true)]);
}

#[tokio::test]
async fn stream_loss_does_not_cancel_a_call() {
    let (fake, sandbox) = sandbox();
    let waiting = wait_in_background(&sandbox);
    for losses in 1..=3 {
        fake.until(|world| world.operations.lock().unwrap().len() == losses).await;
        fake.cut();
    }
    fake.until(|world| world.operations.lock().unwrap().len() == 4).await;
    fake.release.notify_one();
    assert_eq!(waiting.await.unwrap().unwrap().output, "wait");
    assert_eq!(fake.runs(), 1);
    assert!(fake.cancelled.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_call_that_the_guest_abandons_is_sent_again_on_the_same_stream() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::Abandon);
    sandbox.delete("/f").await.unwrap();
    assert_eq!((fake.runs(), fake.dials()), (1, 1));
    assert_eq!(fake.operations().len(), 2);
}

#[tokio::test]
async fn outcome_is_unknown_after_a_restart_and_the_next_result_reports_it() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::RestartBeforeAnswer);
    let error = sandbox.execute("rm -r /x", ExecuteOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert_eq!(fake.operations().len(), 1);
    let next = sandbox.execute("true", ExecuteOptions::default()).await.unwrap();
    assert_eq!(next.notices, [Notice::GuestRestarted]);
    let after = sandbox.execute("true", ExecuteOptions::default()).await.unwrap();
    assert_eq!(after.notices, []);
}

#[tokio::test]
async fn call_is_not_repeated_on_a_guest_without_the_session() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::ForgetBeforeAnswer);
    let error = sandbox.delete("/f").await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert_eq!(fake.operations().len(), 1);
    assert_eq!(sandbox.take_notices(), []);
}

#[tokio::test]
async fn idempotent_call_is_repeated_even_after_a_restart() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::RestartBeforeAnswer);
    sandbox.stat("/f", false).await.unwrap();
    assert_eq!(sandbox.take_notices(), [Notice::GuestRestarted]);
}

#[tokio::test]
async fn gone_sandbox_ends_every_call_at_once_and_permanently() {
    let (fake, sandbox) = sandbox();
    let waiting: Vec<_> = (0..4).map(|_| wait_in_background(&sandbox)).collect();
    fake.until(|world| world.operations.lock().unwrap().len() == 4).await;
    fake.dial_always(Dial::Gone);
    fake.cut();
    for call in join_all(waiting).await {
        let error = call.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the sandbox is gone: the Pod was evicted. Create a new one");
    }
    let dials = fake.dials();
    assert!(matches!(sandbox.stat("/f", false).await, Err(Error::Gone { .. })));
    assert_eq!(fake.dials(), dials);
}

#[tokio::test]
async fn gone_sandbox_ends_calls_on_the_other_stream_too() {
    let (fake, sandbox) = sandbox();
    let waiting = wait_in_background(&sandbox);
    fake.until(|world| world.operations.lock().unwrap().len() == 1).await;
    fake.dial_always(Dial::Gone);
    let upload = sandbox.write("/f", vec![0; 2 << 20]).await;
    assert!(matches!(upload, Err(Error::Gone { .. })));
    assert!(matches!(waiting.await.unwrap(), Err(Error::Gone { .. })));
}

#[tokio::test]
async fn refusal_is_reported_at_once_and_later_calls_dial_again() {
    let (fake, sandbox) = sandbox();
    fake.dial(Dial::Denied);
    let error = sandbox.stat("/f", false).await.unwrap_err();
    assert!(error.to_string().contains("pods/exec is forbidden"), "{error}");
    sandbox.stat("/f", false).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn first_dial_starts_without_delay() {
    // tokio's timers round up to whole milliseconds; this instant is between two.
    tokio::time::advance(Duration::from_micros(300)).await;
    let (_fake, sandbox) = sandbox();
    let begun = Instant::now();
    sandbox.stat("/f", false).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn refusal_after_a_success_is_retried() {
    let (fake, sandbox) = sandbox();
    sandbox.stat("/f", false).await.unwrap();
    fake.cut();
    for _ in 0..3 {
        fake.dial(Dial::Denied);
    }
    sandbox.stat("/f", false).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lasting_refusal_is_reported_long_before_the_reconnect_timeout() {
    let (fake, sandbox) = sandbox();
    sandbox.stat("/f", false).await.unwrap();
    fake.cut();
    fake.dial_always(Dial::Denied);
    let begun = Instant::now();
    let error = sandbox.stat("/f", false).await.unwrap_err();
    assert!(matches!(error, Error::Denied(_)), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_change_that_was_sent_before_a_refusal_may_have_been_done() {
    let (fake, sandbox) = sandbox();
    sandbox.stat("/f", false).await.unwrap();
    fake.dial_always(Dial::Denied);
    fake.fault(Fault::CutBeforeAnswer);
    let error = sandbox.delete("/f").await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(error.to_string().contains("pods/exec is forbidden"), "{error}");
    assert_eq!(fake.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn call_waits_a_minute_for_a_stream_and_reports_why_there_is_none() {
    let (fake, sandbox) = sandbox();
    fake.dial_always(Dial::Unreachable);
    let begun = Instant::now();
    let calls = join_all((0..4).map(|_| sandbox.stat("/f", false))).await;
    for call in calls {
        let error = call.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("for 60s, so nothing was done: the node is rebooting"), "{error}");
    }
    assert_eq!(begun.elapsed().as_secs(), 60);
    assert!((12..60).contains(&fake.dials()), "{} dials", fake.dials());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_sent_and_not_answered_in_time_is_lost() {
    let (fake, sandbox) = sandbox();
    sandbox.stat("/f", false).await.unwrap();
    fake.fault(Fault::CutBeforeAnswer);
    fake.dial_always(Dial::Unreachable);
    let begun = Instant::now();
    let error = sandbox.execute("true", ExecuteOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn guest_that_breaks_every_stream_cannot_hold_a_call_forever() {
    let (fake, sandbox) = sandbox();
    *fake.fault_default.lock().unwrap() = Some(Fault::CutBeforeAnswer);
    let begun = Instant::now();
    let error = sandbox.delete("/f").await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!((59..65).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert!(fake.dials() < 60, "{} dials", fake.dials());
    assert_eq!(fake.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn guest_that_abandons_every_call_cannot_hold_one_forever() {
    let (fake, sandbox) = sandbox();
    *fake.fault_default.lock().unwrap() = Some(Fault::Abandon);
    let begun = Instant::now();
    let error = sandbox.delete("/f").await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 60);
    assert_eq!((fake.runs(), fake.dials()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_the_guest_over_the_next_stream() {
    let (fake, sandbox) = sandbox();
    let waiting = wait_in_background(&sandbox);
    fake.until(|world| world.operations.lock().unwrap().len() == 1).await;
    for _ in 0..3 {
        fake.dial(Dial::Unreachable);
    }
    fake.cut();
    tokio::time::sleep(Duration::from_millis(50)).await;
    waiting.abort();
    fake.until(|world| *world.cancelled.lock().unwrap() == [1]).await;
}
