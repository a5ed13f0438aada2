//! Commands that are run to their end.

use std::fs;
use std::time::Duration;

use sandpod_protocol::limits;
use sandpod_protocol::v1::{CancelRequest, Command, ErrorCode, Operation};

use crate::harness::{Client, argv, client, guest, line};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn within(timeout_ms: u64, command: Command) -> Command {
    Command { timeout_ms, ..command }
}

/// Returns whether a process that wrote its number into a file is running.
fn is_there(file: &std::path::Path) -> bool {
    let pid = fs::read_to_string(file).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Waits until a process that wrote its number into a file is gone.
pub(crate) async fn is_gone(file: &std::path::Path) -> bool {
    for _ in 0..1500 {
        if !is_there(file) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// Returns the program name of a process that writes its number into a file, once it has.
fn comm(file: &std::path::Path) -> Option<String> {
    let pid = fs::read_to_string(file).ok()?;
    fs::read_to_string(format!("/proc/{}/comm", pid.trim())).ok()
}

#[tokio::test]
async fn both_outputs_come_back_as_one_in_the_order_written() {
    let (client, _dir) = client().await;
    let (output, code) = client.run("for i in 1 2 3; do echo out$i; echo err$i >&2; done; exit 3").await;
    assert_eq!((output.as_str(), code), ("out1\nerr1\nout2\nerr2\nout3\nerr3\n", 3));
}

#[tokio::test]
async fn a_command_that_a_signal_ends_has_128_and_its_number_as_exit_code() {
    let (client, _dir) = client().await;
    assert_eq!(client.run("kill -KILL $$").await.1, 137);
    assert_eq!(client.run("kill -TERM $$").await.1, 143);
}

#[tokio::test]
async fn an_argv_reaches_its_program_unchanged() {
    let (client, _dir) = client().await;
    let answer = client.execute(argv(&["printf", "%s|", "a b", "$HOME", "*", ""])).await.unwrap();
    assert_eq!(text(&answer.output), "a b|$HOME|*||");
}

#[tokio::test]
async fn a_command_that_cannot_start_has_exit_code_125_and_a_message() {
    let (client, _dir) = client().await;
    let missing = client.execute(argv(&["/no/such/program"])).await.unwrap();
    assert_eq!(missing.exit_code, 125);
    assert_eq!(text(&missing.output), "the command was not started: there is no program /no/such/program");
    let nowhere = Command { working_dir: "/no/such/dir".to_owned(), ..line("true") };
    let nowhere = client.execute(nowhere).await.unwrap();
    assert_eq!(nowhere.exit_code, 125);
    assert!(text(&nowhere.output).contains("the working directory /no/such/dir does not exist"));
    let denied = client.execute(argv(&["/etc/passwd"])).await.unwrap();
    assert_eq!(
        (denied.exit_code, text(&denied.output)),
        (125, "the command was not started: /etc/passwd may not be executed")
    );
}

#[tokio::test]
async fn invalid_commands_are_refused() {
    let (client, _dir) = client().await;
    let no_name = Command { env: [(String::new(), "x".to_owned())].into(), ..line("true") };
    for command in [Command::default(), argv(&[]), argv(&[""]), line("a\0b"), no_name] {
        assert_eq!(client.execute(command).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    }
    let huge = line(&" ".repeat(limits::MAX_COMMAND_BYTES + 1));
    assert_eq!(client.execute(huge).await.unwrap_err().code(), ErrorCode::TooLarge);
}

#[tokio::test]
async fn a_command_has_a_clean_environment_an_empty_input_and_a_session_of_its_own() {
    let (client, _dir) = client().await;
    let command = Command { env: [("COLOUR".to_owned(), "red".to_owned())].into(), ..argv(&["env"]) };
    let output = client.execute(command).await.unwrap().output;
    let mut names: Vec<_> = text(&output).lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["COLOUR", "HOME", "PATH"]);
    assert_eq!(client.run("cat; readlink /proc/self/fd/0").await.0, "/dev/null\n");
    let (ids, _) = client.run("set -- $(cat /proc/$$/stat); echo $1 $5 $6").await;
    let ids: Vec<_> = ids.split_whitespace().collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "process, group and session are {ids:?}");
}

#[tokio::test]
async fn no_file_of_the_guest_reaches_a_command() {
    let (client, _dir) = client().await;
    // The fourth is the directory that it lists.
    let answer = client.execute(argv(&["ls", "/proc/self/fd"])).await.unwrap();
    assert_eq!(text(&answer.output), "0\n1\n2\n3\n");
}

#[tokio::test]
async fn a_command_line_of_a_megabyte_runs_as_a_short_one_does() {
    let (client, _dir) = client().await;
    let filler = format!(": {}\n", "x".repeat(1 << 20));
    let body = "echo $0; cat <<'END'\n$here\nEND\ncat; read -r answer || echo no input\nexit 7\n";
    let short = client.run(body).await;
    assert_eq!(short, ("/bin/sh\n$here\nno input\n".to_owned(), 7));
    assert_eq!(client.run(&format!("{filler}{body}")).await, short);
}

#[tokio::test]
async fn a_timeout_keeps_the_output_and_adds_a_last_line() {
    let (client, _dir) = client().await;
    let answer = client.execute(within(3000, line("printf partial; sleep 60"))).await.unwrap();
    assert_eq!(text(&answer.output), "partial\nCommand timed out after 3s");
    assert_eq!((answer.exit_code, answer.timed_out), (124, true));
    let silent = client.execute(within(1000, line("sleep 60"))).await.unwrap();
    assert_eq!(text(&silent.output), "Command timed out after 1s");
}

#[tokio::test]
async fn a_timeout_kills_every_descendant() {
    let (client, dir) = client().await;
    let hidden = |name: &str| dir.path().join(name);
    let (child, left, orphan) = (hidden("child"), hidden("left"), hidden("orphan"));
    let script = format!(
        "sh -c 'echo $$ > {child}; exec sleep 600' &
         setsid sh -c 'echo $$ > {left}; exec sleep 600' &
         (setsid env -i sh -c 'trap \"\" TERM HUP; echo $$ > {orphan}; exec sleep 600' > /dev/null 2>&1 &)
         until [ -s {child} ] && [ -s {left} ] && [ -s {orphan} ]; do sleep 0.01; done
         sleep 600",
        child = child.display(),
        left = left.display(),
        orphan = orphan.display(),
    );
    let answer = client.execute(within(3000, line(&script))).await.unwrap();
    assert!(answer.timed_out);
    for file in [child, left, orphan] {
        assert!(is_gone(&file).await, "{} lives on", file.display());
    }
}

#[tokio::test]
async fn a_background_process_survives_and_delays_no_result() {
    let (client, dir) = client().await;
    let (pid, done) = (dir.path().join("pid"), dir.path().join("done"));
    let script = format!(
        "(for i in $(seq 12); do sleep 0.5; echo $i; done; echo > {}) & echo $! > {}; echo began",
        done.display(),
        pid.display()
    );
    let (output, code) = client.run(&script).await;
    assert!(!done.exists(), "the child was waited for");
    assert!(output.starts_with("began\n") && code == 0);
    assert!(is_gone(&pid).await);
    assert!(done.exists(), "it was ended when its output was no longer read");
}

#[tokio::test]
async fn output_beyond_the_limit_is_dropped_and_the_command_continues() {
    let (client, _dir) = client().await;
    let script = "i=0; while [ $i -lt 2000 ]; do printf 'ééééé'; i=$((i+1)); done; exit 4";
    let answer = client.execute(Command { max_output_bytes: 1001, ..line(script) }).await.unwrap();
    assert_eq!((answer.exit_code, answer.truncated, answer.output.len()), (4, true, 1000));
    assert_eq!(text(&answer.output), "é".repeat(500));
    let whole = client.execute(Command { max_output_bytes: 5, ..line("printf 12345") }).await.unwrap();
    assert_eq!((text(&whole.output), whole.truncated), ("12345", false));
}

#[tokio::test]
async fn a_cancelled_command_ends_like_a_timeout() {
    let (client, dir) = client().await;
    let pid = dir.path().join("pid");
    let operation = client.operation();
    let cancel = CancelRequest { session: operation.session.clone(), number: operation.number };
    let command = line(&format!("echo begun; echo $$ > {}; exec sleep 600", pid.display()));
    let execute = client.execute_as(operation, command);
    let cancel = async {
        while !fs::read(&pid).is_ok_and(|pid| !pid.is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.process.clone().cancel(cancel).await.unwrap();
    };
    let (answer, ()) = tokio::join!(execute, cancel);
    let answer = answer.unwrap();
    assert_eq!((answer.exit_code, answer.timed_out), (124, true));
    assert_eq!(text(&answer.output), "begun\nCommand timed out after 0s");
    assert!(is_gone(&pid).await);
}

#[tokio::test]
async fn a_repeated_call_runs_its_command_once_also_on_another_stream() {
    let (guest, dir) = guest();
    let (first, second) = (Client::of(&guest).await, Client::of(&guest).await);
    let file = dir.path().join("runs");
    let command = line(&format!("sleep 0.1; echo run | tee -a {}", file.display()));
    let operation = first.operation();
    let repeat = Operation { repeated: true, ..operation.clone() };
    let lost = tokio::time::timeout(Duration::from_millis(50), first.execute_as(operation, command.clone()));
    assert!(lost.await.is_err());
    assert_eq!(text(&second.execute_as(repeat.clone(), command.clone()).await.unwrap().output), "run\n");
    assert_eq!(text(&second.execute_as(repeat, command).await.unwrap().output), "run\n");
    assert_eq!(fs::read_to_string(file).unwrap(), "run\n");
}

#[tokio::test]
async fn an_abandoned_command_is_ended_after_the_grace_period() {
    let (client, dir) = client().await;
    let pid = dir.path().join("pid");
    let call = client.execute(line(&format!("echo $$ > {}; exec sleep 600", pid.display())));
    let sleeps = async {
        while comm(&pid).as_deref() != Some("sleep\n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        ended = call => panic!("{ended:?}"),
        () = sleeps => {}
    }
    tokio::time::pause();
    tokio::time::sleep(limits::ORPHAN_GRACE / 2).await;
    assert!(is_there(&pid), "it was ended at once");
    tokio::time::sleep(limits::ORPHAN_GRACE).await;
    tokio::time::resume();
    assert!(is_gone(&pid).await);
}

#[tokio::test]
async fn the_number_of_concurrent_commands_is_limited() {
    let (client, _dir) = client().await;
    let (gate, mut waiting) = (tempfile::tempdir().unwrap(), tokio::task::JoinSet::new());
    let script = format!("while [ -e {} ]; do sleep 1; done", gate.path().display());
    for _ in 0..limits::MAX_PROCESSES {
        let (mut process, operation) = (client.process.clone(), client.operation());
        let request = sandpod_protocol::v1::StartRequest {
            operation: Some(operation),
            command: Some(line(&script)),
            ..sandpod_protocol::v1::StartRequest::default()
        };
        waiting.spawn(async move { process.start(request).await.unwrap() });
    }
    waiting.join_all().await;
    assert_eq!(client.execute(line("true")).await.unwrap_err().code(), ErrorCode::Limit);
    drop(gate);
}
