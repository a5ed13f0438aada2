//! Restarted guests: the client binds them as before, because commands can change the guest's own record.

use std::time::Duration;

use sandpod_client::{Binding, BoundFile, Error, ErrorCode, ExecuteOptions, Policy};
use sandpod_protocol::Failure;

use crate::fake::sandbox;

fn binding() -> Binding {
    let file = BoundFile { path: "/f".to_owned(), content: "secret".into(), mode: 0 };
    Binding {
        claim: "me".to_owned(),
        ttl: Some(Duration::from_secs(600)),
        policy: Some(Policy::default()),
        files: vec![file],
        ..Binding::default()
    }
}

fn code(error: Error) -> ErrorCode {
    match error {
        Error::Failure(failure) => failure.code(),
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn restarted_guest_is_bound_as_before_any_call() {
    let (fake, sandbox) = sandbox();
    *fake.policy_sha256.lock().unwrap() = vec![7; 32].into();
    let bound = sandbox.bind(binding()).await.unwrap();
    assert_eq!(bound.policy_sha256, Some([7; 32]));

    fake.restart();
    // The outcome of a command on the old stream would be unknown.
    sandbox.stat("/f", false).await.unwrap();
    sandbox.execute("one", ExecuteOptions::default()).await.unwrap();

    let binds = fake.binds.lock().unwrap().clone();
    let [(0, first), (0, again)] = &binds[..] else { panic!("{binds:?}") };
    assert!(first.policy_sha256.is_empty() && first.files.len() == 1);
    assert_eq!(*again.policy_sha256, [7; 32], "the request has the hash of the earlier policy");
    assert_eq!((&again.claim, &again.policy), (&first.claim, &first.policy));
    assert!(again.files.is_empty(), "files may have been changed since");
    assert!((1..=600).contains(&again.ttl_seconds));
}

#[tokio::test]
async fn lost_stream_alone_sends_no_second_bind() {
    let (fake, sandbox) = sandbox();
    sandbox.bind(binding()).await.unwrap();
    fake.cut();
    sandbox.stat("/f", false).await.unwrap();
    assert_eq!(fake.binds.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn guest_that_refuses_the_old_binding_gets_no_call() {
    let (fake, sandbox) = sandbox();
    sandbox.bind(binding()).await.unwrap();
    *fake.bind_refusal.lock().unwrap() = Some(Failure::new(ErrorCode::NotYours, "it lost its policy"));
    fake.restart();
    assert_eq!(code(sandbox.stat("/f", false).await.unwrap_err()), ErrorCode::NotYours);
    for _ in 0..2 {
        let refused = sandbox.execute("one", ExecuteOptions::default()).await.unwrap_err();
        assert!(refused.to_string().contains("it lost its policy"), "{refused}");
        assert_eq!(code(sandbox.write("/f", "x").await.unwrap_err()), ErrorCode::NotYours);
    }
    assert_eq!(fake.runs(), 0);
    *fake.bind_refusal.lock().unwrap() = None;
    sandbox.execute("one", ExecuteOptions::default()).await.unwrap();
    assert_eq!(fake.runs(), 1);
}

#[tokio::test]
async fn guest_bound_to_another_policy_after_a_restart_gets_no_call() {
    let (fake, sandbox) = sandbox();
    *fake.policy_sha256.lock().unwrap() = vec![7; 32].into();
    sandbox.bind(binding()).await.unwrap();
    *fake.policy_sha256.lock().unwrap() = vec![8; 32].into();
    fake.restart();
    assert_eq!(code(sandbox.stat("/f", false).await.unwrap_err()), ErrorCode::NotYours);
    let refused = sandbox.execute("one", ExecuteOptions::default()).await.unwrap_err();
    assert_eq!(code(refused), ErrorCode::NotYours);
    assert_eq!(fake.runs(), 0);
}

#[tokio::test]
async fn known_policy_is_compared_with_the_one_that_holds() {
    let (fake, sandbox) = sandbox();
    *fake.policy_sha256.lock().unwrap() = vec![8; 32].into();
    let known = Binding { policy_sha256: Some([7; 32]), ..binding() };
    assert_eq!(code(sandbox.bind(known).await.unwrap_err()), ErrorCode::NotYours);
    let known = Binding { policy_sha256: Some([8; 32]), ..binding() };
    sandbox.bind(known).await.unwrap();
}
