//! Shell sessions.

use std::time::Duration;

use sandpod_client::ExecuteOptions;

use super::{At, behaviours, text};

behaviours! {
    SHELL a_line_finds_what_the_one_before_left,
    SHELL a_line_of_a_session_ends_as_any_other,
    SHELL a_line_whose_time_is_up_leaves_its_session_as_it_was,
    SHELL_AND_LOSSES a_session_goes_on_when_the_stream_is_lost,
}

/// Runs a line in a session of the behaviour's own; answers its output and exit code.
async fn say(at: &At<'_>, line: &str) -> (String, Option<i32>) {
    say_within(at, line, None).await
}

async fn say_within(at: &At<'_>, line: &str, timeout: Option<Duration>) -> (String, Option<i32>) {
    let shell_session = Some(at.dir.clone());
    let options = ExecuteOptions { shell_session, timeout, ..ExecuteOptions::default() };
    let executed = at.sandbox.execute(line, options).await.unwrap();
    (text(&executed), executed.exit_code)
}

fn ok(output: &str) -> (String, Option<i32>) {
    (output.to_owned(), Some(0))
}

async fn a_line_finds_what_the_one_before_left(at: At<'_>) {
    let first = format!("cd {}; export COLOUR=\"deep  red's\"; umask 027; set -f", at.dir);
    assert_eq!(say(&at, &first).await, ok(""));
    let second = "pwd; echo \"$COLOUR\" *; umask";
    assert_eq!(say(&at, second).await, ok(&format!("{}\ndeep  red's *\n0027\n", at.dir)));
}

async fn a_line_of_a_session_ends_as_any_other(at: At<'_>) {
    assert_eq!(say(&at, "echo out; exit 3").await, ("out\n".to_owned(), Some(3)));
    assert_eq!(say(&at, "trap 'echo bye $?' EXIT; (exit 5)").await, ("bye 5\n".to_owned(), Some(5)));
    assert_eq!(say(&at, "set -e; export A=1; false; echo never").await, (String::new(), Some(1)));
    assert_eq!(say(&at, "echo $A; false; echo never").await, ("1\n".to_owned(), Some(1)));
}

async fn a_line_whose_time_is_up_leaves_its_session_as_it_was(at: At<'_>) {
    assert_eq!(say(&at, "export A=good").await, ok(""));
    let late = say_within(&at, "export A=bad; sleep 600", Some(Duration::from_millis(300))).await;
    assert_eq!(late.1, Some(124));
    assert_eq!(say(&at, "echo $A").await, ok("good\n"));
}

async fn a_session_goes_on_when_the_stream_is_lost(at: At<'_>) {
    assert_eq!(say(&at, "export A=1").await, ok(""));
    (at.place.lose_streams)();
    assert_eq!(say(&at, "echo $A").await, ok("1\n"));
}
