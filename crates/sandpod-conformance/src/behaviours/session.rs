//! What holds between calls: who the guest is, whose it is, and what a lost stream may cost.

use std::time::Duration;

use futures::StreamExt as _;
use sandpod_client::{Binding, ErrorCode, Event, ExecuteOptions};

use super::{At, behaviours, code};

behaviours! {
    NOTHING the_guest_says_who_it_is_and_stays_it,
    NOTHING another_claim_is_refused,
    LOSSES an_edit_is_done_once_although_streams_are_lost,
    SHELL_AND_LOSSES a_command_is_run_once_although_its_stream_is_lost,
    SHELL_AND_LOSSES output_goes_on_where_a_lost_stream_ended,
}

async fn the_guest_says_who_it_is_and_stays_it(at: At<'_>) {
    let first = at.sandbox.connection().greeting().await.unwrap();
    assert!(!first.boot_id.is_empty() && !first.guest_version.is_empty());
    let again = at.sandbox.connection().greeting().await.unwrap();
    assert_eq!((first.boot_id, first.version), (again.boot_id, again.version));
}

async fn another_claim_is_refused(at: At<'_>) {
    let other = Binding { claim: "somebody else".to_owned(), ..Binding::default() };
    assert_eq!(code(at.sandbox.bind(other).await), ErrorCode::NotYours);
}

async fn an_edit_is_done_once_although_streams_are_lost(at: At<'_>) {
    let path = at.write("file", "|").await;
    let edits = async {
        for _ in 0..40 {
            at.sandbox.edit(&path, "|", "x|", false).await.unwrap();
        }
    };
    let losses = async {
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(15)).await;
            (at.place.lose_streams)();
        }
    };
    tokio::join!(edits, losses);
    assert_eq!(at.content(&path).await, "x".repeat(40) + "|");
}

async fn a_command_is_run_once_although_its_stream_is_lost(at: At<'_>) {
    let command = at.run("echo run >> log; touch begun; while ! [ -e go ]; do sleep 0.02; done; cat log");
    let loss = async {
        while at.sandbox.stat(&at.path("begun"), false).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (at.place.lose_streams)();
        at.write("go", "").await;
    };
    let ((output, code), ()) = tokio::join!(command, loss);
    assert_eq!((output.as_str(), code), ("run\n", Some(0)));
}

async fn output_goes_on_where_a_lost_stream_ended(at: At<'_>) {
    let options = ExecuteOptions { working_dir: Some(at.dir.clone()), ..ExecuteOptions::default() };
    let line = "echo one; while ! [ -e go ]; do sleep 0.02; done; echo two";
    let process = at.sandbox.start(line, options).await.unwrap();
    let mut events = process.attach(0);
    let first = events.next().await.unwrap().unwrap();
    assert!(matches!(first, Event::Output { offset: 0, ref data, .. } if data == "one\n"), "{first:?}");
    (at.place.lose_streams)();
    at.write("go", "").await;
    let next = events.next().await.unwrap().unwrap();
    assert!(matches!(next, Event::Output { offset: 4, ref data, .. } if data == "two\n"), "{next:?}");
}
