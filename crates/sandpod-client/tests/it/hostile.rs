//! A hostile guest can lie or stall, but cannot crash the client or exhaust its memory.

use std::time::Duration;

use sandpod_client::{Error, ErrorCode, FileKind, GrepOptions, Incomplete, PathBounds, ReadOptions};
use tokio::time::Instant;

use crate::fake::{Dial, Fault, sandbox};

#[tokio::test]
async fn unexpected_output_before_the_preamble_is_quoted_in_the_error() {
    let (fake, sandbox) = sandbox();
    fake.dial(Dial::Says(b"\x1b[31mOCI runtime exec failed: no such file\n"));
    let error = sandbox.stat("/f", false).await.unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    assert!(error.to_string().contains(r"\x1b[31mOCI runtime exec failed: no such file\n"), "{error}");
    sandbox.stat("/f", false).await.unwrap();
}

#[tokio::test]
async fn endless_unexpected_output_is_quoted_in_part() {
    static NOISE: [u8; 100_000] = [b'x'; 100_000];
    let (fake, sandbox) = sandbox();
    fake.dial(Dial::Says(&NOISE));
    let error = sandbox.stat("/f", false).await.unwrap_err().to_string();
    assert!(error.contains("xxxxxxxxxxxxxxxx") && error.len() < 600, "{error}");
}

#[tokio::test(start_paused = true)]
async fn half_a_preamble_and_silence_are_retried() {
    let (fake, sandbox) = sandbox();
    fake.dial(Dial::Says(b"sandpod-"));
    fake.dial(Dial::Silent);
    sandbox.stat("/f", false).await.unwrap();
    assert_eq!(fake.dials(), 3);
}

#[tokio::test(start_paused = true)]
async fn preamble_without_an_answer_to_hello_times_out() {
    let (fake, sandbox) = sandbox();
    fake.dial_always(Dial::Says(b"sandpod-guest/1\n"));
    let begun = Instant::now();
    let error = sandbox.stat("/f", false).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(begun.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn call_to_a_silent_guest_stalls() {
    let (fake, sandbox) = sandbox();
    fake.fault(Fault::Stall);
    let begun = Instant::now();
    let error = sandbox.stat("/f", false).await.unwrap_err();
    assert!(matches!(error, Error::Stalled { .. }), "{error}");
    assert_eq!(begun.elapsed(), Duration::from_secs(60));
}

#[tokio::test]
async fn invalid_answer_violates_the_protocol() {
    let (fake, sandbox) = sandbox();
    for fault in [Fault::Garbage, Fault::Huge] {
        fake.fault(fault);
        let error = sandbox.stat("/f", false).await.unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}");
    }
    assert!(matches!(sandbox.read("/f", ReadOptions::default()).await, Err(Error::Protocol(_))));
    sandbox.stat("/f", false).await.unwrap();
    assert_eq!(fake.dials(), 1);
}

#[tokio::test]
async fn out_of_range_values_are_clamped() {
    let (_, sandbox) = sandbox();
    let info = sandbox.stat("/f", false).await.unwrap();
    assert_eq!((info.kind, info.mode, info.modified_ns), (FileKind::Other, 0o7777, i64::MIN));
    let found = sandbox.glob("*", "/").await.unwrap();
    assert_eq!(found.incomplete, Some(Incomplete::Budget));
    assert!(!sandbox.grep("x", GrepOptions::default()).await.unwrap().truncated);
}

#[tokio::test]
async fn bounded_calls_are_not_sent_to_a_guest_without_bounds() {
    let (fake, sandbox) = sandbox();
    let bounds = PathBounds { within: vec!["/app".to_owned()], denied: Vec::new() };
    let bounded = sandbox.within(bounds).unwrap();
    let Error::Failure(failure) = bounded.write("/app/f", "x").await.unwrap_err() else { panic!() };
    assert_eq!(failure.code(), ErrorCode::Unsupported);
    assert!(fake.operations().is_empty());
    sandbox.within(PathBounds::default()).unwrap().stat("/f", false).await.unwrap();
    let long = PathBounds { within: vec!["/x".repeat(5000)], denied: Vec::new() };
    assert!(matches!(sandbox.within(long), Err(Error::InvalidArgument(_))));
}

#[tokio::test]
async fn errors_of_the_guest_keep_their_code() {
    let (_, sandbox) = sandbox();
    let Error::Failure(failure) = sandbox.download("/missing", 10).await.unwrap_err() else { panic!() };
    assert_eq!(failure.code(), ErrorCode::NotFound);
}
