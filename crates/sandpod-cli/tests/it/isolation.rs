//! Each trick is first seen to work outside, so that its failure inside means something.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Output};

use super::{run, stdout};

fn outside(line: &str) -> Output {
    Command::new("/bin/sh").args(["-c", line]).output().expect("there is a shell")
}

fn works_outside_only(line: &str) {
    let free = outside(line);
    assert!(free.status.success(), "this should work outside: {line}\n{}", super::stderr(&free));
    let confined = run(line);
    assert!(!confined.status.success(), "this should not work inside: {line}\n{}", stdout(&confined));
}

#[test]
fn files_of_this_machine_can_not_be_read() {
    let secret = std::env::temp_dir().join(format!("sandpod-secret-{}", std::process::id()));
    fs::write(&secret, "secret").unwrap();
    works_outside_only(&format!("cat {}", secret.display()));
    works_outside_only("grep ^root: /etc/passwd");
    fs::remove_file(secret).unwrap();
}

#[test]
fn system_directories_can_not_be_written() {
    let output = run("touch /usr/sandpod-test || touch /usr/bin/sandpod-test");
    assert!(!output.status.success());
    assert!(!fs::exists("/usr/sandpod-test").unwrap());
}

#[test]
fn listeners_of_this_machine_can_not_be_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 2)'");
    works_outside_only(&connect);
}

#[test]
fn processes_of_this_machine_can_not_be_seen_or_signalled() {
    let own = std::process::id();
    works_outside_only(&format!("kill -0 {own}"));
    works_outside_only(&format!("test -d /proc/{own}"));
}

#[test]
fn there_are_no_privileges_to_regain() {
    let output = run("grep -E '^(CapEff|CapPrm|CapAmb|NoNewPrivs)' /proc/self/status");
    let expected =
        "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";
    assert_eq!(stdout(&output), expected);
}
