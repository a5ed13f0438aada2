//! Shell sessions.

use std::time::Duration;

use sandpod_client::ExecuteOptions;

use super::{Case, behaviours, text};

behaviours! {
    SHELL a_line_starts_with_the_state_that_the_previous_one_left,
    SHELL a_line_of_a_session_has_the_exit_code_of_any_other_line,
    SHELL a_line_that_times_out_leaves_its_session_unchanged,
    SHELL the_last_of_concurrent_lines_to_end_sets_the_session,
    SHELL a_line_without_changes_keeps_those_of_concurrent_lines,
    SHELL_AND_LOSSES a_session_survives_a_lost_stream,
}

/// Runs a line in a session of the behaviour's own; answers its output and exit code.
async fn say(case: &Case<'_>, line: &str) -> (String, Option<i32>) {
    say_within(case, line, None).await
}

async fn say_within(case: &Case<'_>, line: &str, timeout: Option<Duration>) -> (String, Option<i32>) {
    let shell_session = Some(case.dir.clone());
    let options = ExecuteOptions { shell_session, timeout, ..ExecuteOptions::default() };
    let executed = case.sandbox.execute(line, options).await.unwrap();
    (text(&executed), executed.exit_code)
}

fn ok(output: &str) -> (String, Option<i32>) {
    (output.to_owned(), Some(0))
}

async fn a_line_starts_with_the_state_that_the_previous_one_left(case: Case<'_>) {
    let first = format!("cd {}; export COLOUR=\"deep  red's\"; umask 027; set -f", case.dir);
    assert_eq!(say(&case, &first).await, ok(""));
    let second = "pwd; echo \"$COLOUR\" *; umask";
    assert_eq!(say(&case, second).await, ok(&format!("{}\ndeep  red's *\n0027\n", case.dir)));
}

async fn a_line_of_a_session_has_the_exit_code_of_any_other_line(case: Case<'_>) {
    assert_eq!(say(&case, "echo out; exit 3").await, ("out\n".to_owned(), Some(3)));
    assert_eq!(say(&case, "trap 'echo bye $?' EXIT; (exit 5)").await, ("bye 5\n".to_owned(), Some(5)));
    assert_eq!(say(&case, "set -e; export A=1; false; echo never").await, (String::new(), Some(1)));
    assert_eq!(say(&case, "echo $A; false; echo never").await, ("1\n".to_owned(), Some(1)));
}

async fn a_line_that_times_out_leaves_its_session_unchanged(case: Case<'_>) {
    assert_eq!(say(&case, "export A=good").await, ok(""));
    let late = say_within(&case, "export A=bad; sleep 600", Some(Duration::from_millis(300))).await;
    assert_eq!(late.1, Some(124));
    assert_eq!(say(&case, "echo $A").await, ok("good\n"));
}

/// Runs `during` in the session while a line that begins with `before` runs in it, too.
async fn beside(case: &Case<'_>, before: &str, during: &str) {
    let alone = async |line: String| {
        let executed = case.sandbox.execute(line.as_str(), ExecuteOptions::default()).await.unwrap();
        assert_eq!(executed.exit_code, Some(0), "{line}");
    };
    let until = |name: &str| format!("while ! [ -e {}/{name} ]; do sleep 0.1; done", case.dir);
    let long = format!("{before}; : > {}/begun; {}", case.dir, until("end"));
    let (long, ()) = tokio::join!(say(case, &long), async {
        alone(until("begun")).await;
        assert_eq!(say(case, during).await, ok(""));
        alone(format!(": > {}/end", case.dir)).await;
    });
    assert_eq!(long, ok(""));
}

async fn the_last_of_concurrent_lines_to_end_sets_the_session(case: Case<'_>) {
    beside(&case, "export A=long", "export A=short B=short").await;
    assert_eq!(say(&case, "echo $A [$B]").await, ok("long []\n"));
}

async fn a_line_without_changes_keeps_those_of_concurrent_lines(case: Case<'_>) {
    beside(&case, ":", "export A=1").await;
    assert_eq!(say(&case, "echo $A").await, ok("1\n"));
}

async fn a_session_survives_a_lost_stream(case: Case<'_>) {
    assert_eq!(say(&case, "export A=1").await, ok(""));
    (case.place.lose_streams)();
    assert_eq!(say(&case, "echo $A").await, ok("1\n"));
}
