//! State between calls: the identity of the guest, its claim, and operations after lost streams.

use std::time::Duration;

use futures::StreamExt as _;
use sandpod_client::{Binding, ErrorCode, Event, ExecuteOptions};

use super::{Case, behaviours, code};

behaviours! {
    NOTHING the_greeting_identifies_the_guest_and_stays_the_same,
    NOTHING another_claim_is_refused,
    LOSSES an_edit_is_made_once_despite_lost_streams,
    SHELL_AND_LOSSES a_command_runs_once_despite_a_lost_stream,
    SHELL_AND_LOSSES output_continues_where_a_lost_stream_ended,
}

async fn the_greeting_identifies_the_guest_and_stays_the_same(case: Case<'_>) {
    let first = case.sandbox.connection().greeting().await.unwrap();
    assert!(!first.boot_id.is_empty() && !first.guest_version.is_empty());
    let again = case.sandbox.connection().greeting().await.unwrap();
    assert_eq!((first.boot_id, first.version), (again.boot_id, again.version));
}

async fn another_claim_is_refused(case: Case<'_>) {
    let other = Binding { claim: "another".to_owned(), ..Binding::default() };
    assert_eq!(code(case.sandbox.bind(other).await), ErrorCode::NotYours);
}

async fn an_edit_is_made_once_despite_lost_streams(case: Case<'_>) {
    let path = case.write("file", "|").await;
    let edits = async {
        for _ in 0..40 {
            case.sandbox.edit(&path, "|", "x|", false).await.unwrap();
        }
    };
    let losses = async {
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(15)).await;
            (case.place.lose_streams)();
        }
    };
    tokio::join!(edits, losses);
    assert_eq!(case.content(&path).await, "x".repeat(40) + "|");
}

async fn a_command_runs_once_despite_a_lost_stream(case: Case<'_>) {
    let command = case.run("echo run >> log; touch begun; while ! [ -e go ]; do sleep 0.02; done; cat log");
    let loss = async {
        while case.sandbox.stat(&case.path("begun"), false).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        (case.place.lose_streams)();
        case.write("go", "").await;
    };
    let ((output, code), ()) = tokio::join!(command, loss);
    assert_eq!((output.as_str(), code), ("run\n", Some(0)));
}

async fn output_continues_where_a_lost_stream_ended(case: Case<'_>) {
    let options = ExecuteOptions { working_dir: Some(case.dir.clone()), ..ExecuteOptions::default() };
    let line = "echo one; while ! [ -e go ]; do sleep 0.02; done; echo two";
    let process = case.sandbox.start(line, options).await.unwrap();
    let mut events = process.attach(0);
    let first = events.next().await.unwrap().unwrap();
    assert!(matches!(first, Event::Output { offset: 0, ref data, .. } if data == "one\n"), "{first:?}");
    (case.place.lose_streams)();
    case.write("go", "").await;
    let next = events.next().await.unwrap().unwrap();
    assert!(matches!(next, Event::Output { offset: 4, ref data, .. } if data == "two\n"), "{next:?}");
}
