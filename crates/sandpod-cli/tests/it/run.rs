use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::user::is_root;
use super::{run, sandpod, stderr, stdout};
use crate::transcript::Stage;

#[test]
fn run_passes_a_line_to_a_shell_and_prints_its_output() {
    let output = run("echo hello | tr a-z A-Z; echo oops >&2");
    assert_eq!(stdout(&output), "HELLO\n");
    assert_eq!(stderr(&output), "oops\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn run_exits_with_the_code_of_the_command() {
    assert_eq!(run("exit 3").status.code(), Some(3));
    assert_eq!(run("kill -9 $$").status.code(), Some(137));
}

#[test]
fn arguments_after_two_dashes_run_without_a_shell() {
    let output = sandpod(&["run", "--", "echo", "$HOME", "a  b"]).output().unwrap();
    assert_eq!(stdout(&output), "$HOME a  b\n");
}

#[test]
fn a_missing_program_is_named_with_exit_code_125() {
    let output = sandpod(&["run", "--", "no-such-program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("no-such-program"), "{}", stderr(&output));
}

#[test]
fn large_output_is_complete() {
    let output = run("seq 1 500000");
    assert_eq!(stdout(&output).lines().count(), 500_000);
}

#[test]
fn commands_start_in_an_empty_writable_directory_with_a_home() {
    let output = run("pwd; ls | wc -l; touch here ~/there /tmp/x && echo $HOME");
    assert_eq!(stdout(&output), "/workspace\n0\n/home/sandbox\n");
}

#[test]
fn a_full_disk_can_be_freed_from_inside() {
    if !is_root() {
        return; // Only root may mount the small file system.
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
fn an_interrupted_create_keeps_an_existing_sandbox() {
    let stage = Stage::new();
    stage.run("sandpod create --id work --quiet; sandpod exec work -c 'echo kept > file'");
    let signal_guest = |signal: &str| {
        stage.run(&format!("kill -{signal} $(cat .local/state/sandpod/local/work/lock)"));
    };
    // The guest does not answer.
    signal_guest("STOP");
    let mut child = stage.command("exec sandpod create --id work").spawn().unwrap();
    // Wait until its signal handlers are installed, and then until it waits for the guest.
    let status = format!("/proc/{}/status", child.id());
    stage.run(&format!("until grep -q '^SigCgt:.*[2367abef]$' {status}; do sleep 0.01; done; sleep 0.5"));
    stage.run(&format!("kill -INT {}", child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    signal_guest("CONT");
    assert_eq!(stage.run("sandpod exec work -- cat file"), "kept\n");
    stage.run("sandpod delete work");
}

#[test]
fn an_interrupt_kills_the_command_and_its_descendants() {
    // A duration that no other sleep of this machine has.
    let duration = format!("{}.25", 100_000 + std::process::id());
    let mut child = sandpod(&["run", &format!("sleep {duration} & echo started; sleep {duration}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    // The shell continues before the background process has called exec.
    while !is_running(&duration) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!is_running(&duration));
}

/// Reports whether a process of this machine has the argument `word`.
fn is_running(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .any(|words| words.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes()))
}
