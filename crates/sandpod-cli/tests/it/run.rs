use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::{run, sandpod, stderr, stdout};

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
