//! Callers that share one stream.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use sandpod_client::{Binding, Error, ErrorCode, ExecuteOptions, Notice, ReadOptions, Sandbox};
use tokio::time::Instant;

use crate::fake::{Dial, Fault, sandbox};

#[tokio::test]
async fn sixteen_callers_share_one_stream() {
    let (fake, sandbox) = sandbox();
    let calls = (0..16).map(|caller| {
        let sandbox = sandbox.clone();
        tokio::spawn(async move {
            let line = format!("caller {caller}");
            assert_eq!(sandbox.execute(&*line, ExecuteOptions::default()).await.unwrap().output, line);
        })
    });
    for call in join_all(calls).await {
        call.unwrap();
    }
    assert_eq!((fake.runs(), fake.dials()), (16, 1));
}

#[tokio::test(start_paused = true)]
async fn only_one_dial_runs_for_many_waiting_callers() {
    let (fake, sandbox) = sandbox();
    for _ in 0..3 {
        fake.dial(Dial::Unreachable);
    }
    let calls = (0..16).map(|_| sandbox.stat("/f", false));
    assert!(join_all(calls).await.iter().all(Result::is_ok));
    assert_eq!(fake.dials(), 4);
    assert_eq!(fake.most_dialing.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn bind_and_greeting_need_no_operation_number() {
    let (fake, sandbox) = sandbox();
    sandbox.bind(Binding { claim: "mine".to_owned(), ..Binding::default() }).await.unwrap();
    assert_eq!(sandbox.connection().greeting().await.unwrap().boot_id, "boot-0");
    assert!(fake.operations().is_empty());
}

#[tokio::test]
async fn operations_report_which_answers_arrived() {
    let (fake, sandbox) = sandbox();
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.execute("wait", ExecuteOptions::default()).await }
    });
    fake.until(|world| !world.operations.lock().unwrap().is_empty()).await;
    sandbox.delete("/a").await.unwrap();
    sandbox.delete("/b").await.unwrap();
    fake.release.notify_one();
    waiting.await.unwrap().unwrap();
    sandbox.delete("/c").await.unwrap();
    let said: Vec<_> =
        fake.operations().into_iter().map(|o| (o.number, o.answered_up_to, o.waiting)).collect();
    let expected = [(1, 0, vec![1]), (2, 0, vec![1, 2]), (3, 0, vec![1, 3]), (4, 3, vec![4])];
    assert_eq!(said, expected);
}

#[tokio::test]
async fn error_of_the_guest_is_returned_with_its_code() {
    let (_, sandbox) = sandbox();
    let error = sandbox.stat("/missing", false).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no \\u{1b}[31mfile /missing");
    let Error::Failure(failure) = error else { panic!("{error}") };
    assert_eq!((failure.code(), failure.path()), (ErrorCode::NotFound, Some("/missing")));
}

#[tokio::test]
async fn call_that_the_guest_does_not_implement_is_unsupported() {
    let (_, sandbox) = sandbox();
    let Error::Failure(failure) = sandbox.list("/").await.unwrap_err() else { panic!() };
    assert_eq!(failure.code(), ErrorCode::Unsupported);
}

#[tokio::test]
async fn a_call_that_is_too_large_is_not_sent() {
    let (fake, sandbox) = sandbox();
    let error = sandbox.edit("/f", &"x".repeat(9 << 20), "", false).await.unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    assert_eq!(fake.dials(), 0);
}

#[tokio::test]
async fn dropping_an_execute_cancels_it() {
    let (fake, sandbox) = sandbox();
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.execute("wait", ExecuteOptions::default()).await }
    });
    fake.until(|world| !world.operations.lock().unwrap().is_empty()).await;
    waiting.abort();
    fake.until(|world| *world.cancelled.lock().unwrap() == [1]).await;
    assert_eq!(fake.dials(), 1);
}

#[tokio::test(start_paused = true)]
async fn guest_keeps_the_record_of_a_command_until_it_is_cancelled() {
    let (fake, sandbox) = sandbox();
    let execute = sandbox.execute("wait", ExecuteOptions::default());
    assert!(tokio::time::timeout(Duration::from_secs(1), execute).await.is_err());
    fake.fault(Fault::Stall);
    fake.until(|world| *world.cancelled.lock().unwrap() == [1]).await;
    sandbox.delete("/a").await.unwrap();
    assert_eq!(fake.operations()[1].answered_up_to, 0);
    tokio::time::sleep(Duration::from_secs(61)).await;
    sandbox.delete("/b").await.unwrap();
    assert_eq!(fake.operations()[2].answered_up_to, 2);
}

#[tokio::test(start_paused = true)]
async fn dropping_an_unsent_execute_sends_no_cancel() {
    let (fake, sandbox) = sandbox();
    fake.dial_always(Dial::Unreachable);
    let execute = sandbox.execute("true", ExecuteOptions::default());
    assert!(tokio::time::timeout(Duration::from_secs(3), execute).await.is_err());
    let dials = fake.dials();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(fake.dials(), dials);
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_closes_and_opens_again_for_the_next_call() {
    let (fake, sandbox) = sandbox();
    sandbox.stat("/f", false).await.unwrap();
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert_eq!(fake.open_streams.load(Ordering::SeqCst), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fake.open_streams.load(Ordering::SeqCst), 0);
    sandbox.stat("/f", false).await.unwrap();
    assert_eq!(fake.dials(), 2);
    assert_eq!(sandbox.take_notices(), Vec::<Notice>::new());
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_a_silent_command_is_not_idle() {
    let (fake, sandbox) = sandbox();
    let execute = sandbox.execute("wait", ExecuteOptions::default());
    let begun = Instant::now();
    let release = async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        fake.release.notify_one();
    };
    let (executed, ()) = tokio::join!(execute, release);
    assert_eq!(executed.unwrap().output, "wait");
    assert_eq!((fake.dials(), begun.elapsed().as_secs()), (1, 3600));
}

#[tokio::test]
async fn streams_close_when_the_last_clone_is_dropped() {
    let (fake, sandbox) = sandbox();
    sandbox.stat("/f", false).await.unwrap();
    drop(sandbox);
    fake.until(|world| world.open_streams.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn an_exit_code_that_is_none_is_unknown() {
    let (_, sandbox) = sandbox();
    let exit_code = async |line| sandbox.execute(line, ExecuteOptions::default()).await.unwrap().exit_code;
    assert_eq!(exit_code("exit 255").await, Some(255));
    assert_eq!(exit_code("exit -1").await, None);
    assert_eq!(exit_code("exit 70000").await, None);
}

#[test]
fn futures_can_move_between_threads() {
    fn can_move(_: impl Send) {}
    let check = |sandbox: &Sandbox| {
        can_move(sandbox.execute("true", ExecuteOptions::default()));
        can_move(sandbox.read("/f", ReadOptions::default()));
        can_move(sandbox.write("/f", "x"));
        can_move(sandbox.download("/f", 1));
        can_move(sandbox.start("true", ExecuteOptions::default()));
    };
    let _: &dyn Fn(&Sandbox) = &check;
}
