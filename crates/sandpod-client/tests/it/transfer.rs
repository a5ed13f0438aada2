//! Transfers of contents of any size, complete or not at all.

use std::io::Cursor;

use bytes::Bytes;
use sandpod_client::{Error, ErrorCode};

use crate::fake::{Fake, Fault, Lie, sandbox};

const SIZE: usize = 3 << 19;

fn content() -> Bytes {
    // No two chunks are equal.
    b"0123456789abcdef!".repeat(SIZE.div_ceil(17))[..SIZE].to_vec().into()
}

fn code(error: Error) -> ErrorCode {
    match error {
        Error::Failure(failure) => failure.code(),
        error => panic!("{error}"),
    }
}

fn with_file() -> (Fake, sandpod_client::Sandbox) {
    let (fake, sandbox) = sandbox();
    fake.holds(content());
    (fake, sandbox)
}

#[tokio::test]
async fn small_contents_use_the_main_stream_and_large_ones_a_second_stream() {
    let (fake, sandbox) = sandbox();
    assert!(sandbox.write("/f", "small").await.unwrap().atomic);
    assert_eq!(*fake.file.lock().unwrap(), "small");
    assert_eq!(sandbox.download("/f", 100).await.unwrap(), "small");
    assert_eq!(fake.dials(), 1);
    assert!(sandbox.upload("/f", Cursor::new(content())).await.unwrap().atomic);
    assert_eq!(*fake.file.lock().unwrap(), content());
    assert_eq!(sandbox.download("/f", u64::MAX).await.unwrap(), content());
    assert_eq!(fake.dials(), 2);
}

#[tokio::test]
async fn an_upload_whose_answer_is_lost_is_done_once() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::CutBeforeAnswer);
    sandbox.write("/f", content()).await.unwrap();
    assert_eq!(*fake.file.lock().unwrap(), content());
    assert_eq!(fake.runs(), 1);
    let sent: Vec<_> = fake.operations().iter().map(|o| (o.number, o.repeated)).collect();
    assert_eq!(sent, [(1, false), (1, true)]);
}

#[tokio::test]
async fn upload_restarts_after_the_loss_of_its_stream() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::CutOnTheWay);
    fake.fault(Fault::CutOnTheWay);
    sandbox.write("/f", content()).await.unwrap();
    assert!(*fake.file.lock().unwrap() == content());
    assert_eq!((fake.runs(), fake.dials()), (1, 3));
    let operation = &fake.operations()[0];
    assert_eq!((operation.number, operation.repeated), (1, true));
}

#[tokio::test]
async fn failing_source_is_a_local_error_and_writes_nothing() {
    let (fake, sandbox) = sandbox();
    let directory = tokio::fs::File::open("/").await.unwrap();
    let error = sandbox.upload("/f", directory).await.unwrap_err();
    assert!(matches!(error, Error::Local(_)), "{error}");
    assert_eq!(fake.runs(), 0);
}

#[tokio::test]
async fn incomplete_download_is_an_error() {
    let (fake, sandbox) = with_file();
    for lie in [Lie::Short, Lie::NoTrailer, Lie::Checksum] {
        fake.lie(lie);
        assert_eq!(code(sandbox.download("/f", u64::MAX).await.unwrap_err()), ErrorCode::Corrupt, "{lie:?}");
    }
}

#[tokio::test]
async fn a_download_that_breaks_the_protocol_is_an_error() {
    let (fake, sandbox) = with_file();
    for lie in [Lie::TooMuch, Lie::EmptyChunks, Lie::NoHeader] {
        fake.lie(lie);
        let error = sandbox.download("/f", u64::MAX).await.unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{lie:?}: {error}");
    }
}

#[tokio::test]
async fn file_above_the_limit_is_refused_before_its_download() {
    let (_, sandbox) = with_file();
    assert_eq!(code(sandbox.download("/f", SIZE as u64 - 1).await.unwrap_err()), ErrorCode::TooLarge);
}

#[tokio::test]
async fn download_far_larger_than_stat_is_refused_before_any_byte() {
    let (fake, sandbox) = with_file();
    fake.lie(Lie::Larger);
    let mut target = Vec::new();
    let error = sandbox.download_to("/f", &mut target).await.unwrap_err();
    assert_eq!(code(error), ErrorCode::TooLarge);
    assert!(target.is_empty());
}

#[tokio::test]
async fn download_restarts_after_a_lost_stream_and_returns_each_byte_once() {
    let (fake, sandbox) = with_file();
    fake.lie(Lie::Cut);
    fake.lie(Lie::Cut);
    let mut target = Vec::new();
    assert_eq!(sandbox.download_to("/f", &mut target).await.unwrap(), SIZE as u64);
    assert!(target == content());
    assert_eq!(fake.lies.lock().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn download_that_always_loses_its_stream_fails() {
    let (fake, sandbox) = with_file();
    fake.lies.lock().unwrap().extend([Lie::Cut; 50]);
    let error = sandbox.download("/f", u64::MAX).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[tokio::test]
async fn file_that_changes_between_attempts_is_not_mixed() {
    let (fake, sandbox) = with_file();
    fake.lie(Lie::Cut);
    let mut target = Vec::new();
    let download = sandbox.download_to("/f", &mut target);
    let change = async {
        fake.until(|world| world.lies.lock().unwrap().is_empty()).await;
        *fake.file.lock().unwrap() = vec![9; SIZE].into();
    };
    let (downloaded, ()) = tokio::join!(download, change);
    assert_eq!(code(downloaded.unwrap_err()), ErrorCode::Changed);
}

#[tokio::test(start_paused = true)]
async fn download_without_progress_stalls() {
    let (fake, sandbox) = with_file();
    fake.lie(Lie::Stall);
    let error = sandbox.download("/f", u64::MAX).await.unwrap_err();
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
}
