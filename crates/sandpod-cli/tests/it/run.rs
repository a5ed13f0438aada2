use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::user::is_root;
use super::{run, sandpod, stderr, stdout};
use crate::transcript::Stage;

#[test]
fn a_line_runs_in_a_shell_and_its_output_comes_back() {
    let output = run("echo hello | tr a-z A-Z; echo oops >&2");
    assert_eq!(stdout(&output), "HELLO\n");
    assert_eq!(stderr(&output), "oops\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_exit_code_is_the_commands_own() {
    assert_eq!(run("exit 3").status.code(), Some(3));
    assert_eq!(run("kill -9 $$").status.code(), Some(137));
}

#[test]
fn words_after_two_dashes_run_without_a_shell() {
    let output = sandpod(&["run", "--", "echo", "$HOME", "a  b"]).output().unwrap();
    assert_eq!(stdout(&output), "$HOME a  b\n");
}

#[test]
fn a_program_that_is_not_there_is_named_and_the_exit_code_says_that_nothing_started() {
    let output = sandpod(&["run", "--", "no-such-program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("no-such-program"), "{}", stderr(&output));
}

#[test]
fn no_output_is_lost_however_much_there_is() {
    let output = run("seq 1 500000");
    assert_eq!(stdout(&output).lines().count(), 500_000);
}

#[test]
fn commands_start_in_an_empty_writable_place_with_a_home_of_their_own() {
    let output = run("pwd; ls | wc -l; touch here ~/there /tmp/x && echo $HOME");
    assert_eq!(stdout(&output), "/workspace\n0\n/home/sandbox\n");
}

#[test]
fn whoever_has_filled_the_disk_can_make_room_again() {
    if !is_root() {
        return; // Only root has a file system of its own for that.
    }
    let stage = Stage::new();
    let printed = stage.run(
        "mkdir .local; unshare -m sh -c \"
        mount -t tmpfs -o size=3m none .local
        sandpod create --id one --quiet; sandpod create --id two --quiet
        sandpod exec one -c 'cat /dev/zero > big' 2> /dev/null
        sandpod exec one -c 'rm big; echo removed; cat /dev/zero > big' 2> /dev/null
        sandpod gc --max-idle 0s | tail -1
        sandpod list --quiet\"",
    );
    assert_eq!(printed, "one\ntwo\nremoved\n2 deleted, 0 kept\n");
}

#[test]
fn an_interrupt_while_a_sandbox_is_taken_that_was_there_before_leaves_it() {
    let stage = Stage::new();
    stage.run("sandpod create --id work --quiet; sandpod exec work -c 'echo kept > file'");
    let tell_guest = |signal: &str| {
        stage.run(&format!("kill -{signal} $(cat .local/state/sandpod/local/work/lock)"));
    };
    // It answers nobody.
    tell_guest("STOP");
    let mut child = stage.command("exec sandpod create --id work").spawn().unwrap();
    // Until it listens for the interrupt, and then waits for the guest.
    let status = format!("/proc/{}/status", child.id());
    stage.run(&format!("until grep -q '^SigCgt:.*[2367abef]$' {status}; do sleep 0.01; done; sleep 0.5"));
    stage.run(&format!("kill -INT {}", child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    tell_guest("CONT");
    assert_eq!(stage.run("sandpod exec work -- cat file"), "kept\n");
    stage.run("sandpod delete work");
}

#[test]
fn an_interrupt_ends_the_command_and_all_that_it_started() {
    // A length that no other sleep of this machine has.
    let length = format!("{}.25", 100_000 + std::process::id());
    let mut child = sandpod(&["run", &format!("sleep {length} & echo started; sleep {length}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    // Its shell goes on before the program in the background has begun.
    while !is_running(&length) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!is_running(&length));
}

/// Whether some process of this machine has the argument `word`.
fn is_running(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|words| words.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes()))
}
