//! Commands that exhaust the sandbox's memory or tasks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandpod_guest::{Guest, Options};
use sandpod_protocol::v1::Command;
use tempfile::TempDir;

use crate::harness::{Client, line, options};
use crate::programs::{Container, GUEST, install_script};

/// A guest that reads its limits from files in a directory.
async fn limited(files: &[(&str, &str)]) -> (Client, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content).unwrap();
    }
    let options = Options { cgroups: dir.path().to_owned(), ..options(&dir.path().join("state")) };
    (Client::of(&Guest::new(options).unwrap()).await, dir)
}

/// Replaces a file's content atomically, as the kernel does.
fn set(dir: &TempDir, name: &str, content: &str) {
    fs::write(dir.path().join("new"), content).unwrap();
    fs::rename(dir.path().join("new"), dir.path().join(name)).unwrap();
}

async fn until_there(file: &Path) {
    while !file.exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn only_the_command_with_the_most_memory_is_ended() {
    let limit = (1000 * MIB).to_string();
    let (client, dir) =
        limited(&[("memory.max", &limit), ("memory.current", "1"), ("memory.stat", "")]).await;
    let small = client.start(line("sleep 600")).await;
    let ready = dir.path().join("ready");
    let large = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); printf begun; : >";
    let large = line(&format!("{large} {}; sleep 600", ready.display()));
    let high = async {
        until_there(&ready).await;
        set(&dir, "memory.current", &(960 * MIB).to_string());
    };
    let (answer, ()) = tokio::join!(client.execute(large), high);
    let answer = answer.unwrap();
    assert_eq!((answer.exit_code, answer.timed_out), (137, false));
    let sentence = "The command was ended because it used the most memory, ";
    assert!(
        answer.note.starts_with(sentence)
            && answer.note.ends_with("when 960 of the sandbox's 1000 MiB were used.")
    );
    let output = String::from_utf8(answer.output.to_vec()).unwrap();
    assert_eq!(output, format!("begun\n{}", answer.note));
    set(&dir, "memory.current", "1");
    assert_eq!(client.list().await[0].exit, None);
    client.signal(&small, 9).await.unwrap();
}

#[tokio::test]
async fn the_page_cache_does_not_count_as_memory_usage() {
    let stat = format!("inactive_file {}\nactive_file {}\n", 500 * MIB, 300 * MIB);
    let (limit, used) = ((1000 * MIB).to_string(), (990 * MIB).to_string());
    let files = [("memory.max", limit.as_str()), ("memory.current", &used), ("memory.stat", &stat)];
    let (client, _dir) = limited(&files).await;
    assert_eq!(client.run("sleep 1; echo alive").await, ("alive\n".to_owned(), 0));
    let stats = client.stats().await;
    assert_eq!((stats.memory_bytes, stats.memory_limit_bytes), (190 * MIB, 1000 * MIB));
}

#[tokio::test]
async fn the_command_with_the_most_tasks_is_ended_near_the_limit() {
    let (client, dir) = limited(&[("pids.max", "100"), ("pids.current", "5")]).await;
    let small = client.start(line("sleep 600")).await;
    let ready = dir.path().join("ready");
    let script = format!("for i in 1 2 3 4 5; do sleep 600 & done; : > {}; wait", ready.display());
    let many = client.start(line(&script)).await;
    until_there(&ready).await;
    set(&dir, "pids.current", "96");
    let exit = client.wait(&many).await;
    assert_eq!(exit.exit_code, 137);
    assert!(
        exit.note.contains("the most processes and threads, 6, when 96 of the sandbox's 100"),
        "{}",
        exit.note
    );
    set(&dir, "pids.current", "5");
    client.signal(&small, 9).await.unwrap();
    client.wait(&small).await;
    assert_eq!(client.list().await[0].exit.as_ref().unwrap().note, "");
}

#[tokio::test]
async fn without_limits_memory_is_not_guarded() {
    let (client, _dir) = limited(&[("memory.max", "max"), ("memory.current", "5")]).await;
    assert!(!client.hello(1, 1).await.unwrap().enforced.unwrap().memory);
    let (client, _dir) = limited(&[("memory.max", "1000"), ("memory.current", "5")]).await;
    assert!(client.hello(1, 1).await.unwrap().enforced.unwrap().memory);
}

#[tokio::test]
async fn stats_report_the_number_of_commands() {
    let (client, dir) = limited(&[("pids.max", "100"), ("pids.current", "5")]).await;
    let process = client.start(line("sleep 600")).await;
    let now = client.stats().await;
    assert_eq!((now.commands, now.tasks, now.task_limit, now.memory_limit_bytes), (1, 5, 100, 0));
    client.signal(&process, 9).await.unwrap();
    client.wait(&process).await;
    assert_eq!(client.stats().await.commands, 0);
    drop(dir);
}

/// A real cgroup of this machine, if the tests may make one.
struct Limited(PathBuf);

impl Limited {
    #[expect(clippy::print_stderr, reason = "a skipped test is reported")]
    fn new(bytes: u64) -> Option<Self> {
        let (first, second) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (root, limit) =
            if first.exists() { (first, "memory.limit_in_bytes") } else { (second, "memory.max") };
        let made = Self(root.join(format!("sandpod-test-{}", std::process::id())));
        let made_with_limit =
            fs::create_dir(&made.0).and_then(|()| fs::write(made.0.join(limit), bytes.to_string()));
        if let Err(error) = made_with_limit {
            eprintln!("SKIPPED: no cgroup with a limit on memory can be made here: {error}");
            return None;
        }
        Some(made)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::test]
async fn a_real_memory_limit_ends_the_command_and_not_the_guest() {
    let Some(limited) = Limited::new(256 * MIB) else { return };
    let dir = tempfile::tempdir().unwrap();
    let start = dir.path().join("start");
    let script =
        format!("#!/bin/sh\necho $$ > {}/cgroup.procs || exit 1\nexec {GUEST} \"$@\"\n", limited.0.display());
    install_script(&script, &start);
    let Some(container) = Container::start(&start, &[]).await else { return };
    let client = container.client().await;
    assert!(client.hello(1, 1).await.unwrap().enforced.unwrap().memory);
    let server = client.start(line("sleep 600")).await;
    // Allocates memory in steps of 1 MiB, and no faster than the watchdog can detect.
    let greedy = "echo begun; m=$(head -c 1048576 /dev/zero | tr '\\0' x); i=0
                  while :; do eval \"x$i=\\$m\"; i=$((i+1)); sleep 0.01; done";
    let answer = client.execute(Command { timeout_ms: 60_000, ..line(greedy) }).await.unwrap();
    assert_eq!(answer.exit_code, 137, "{answer:?}");
    assert!(answer.note.ends_with("of the sandbox's 256 MiB were used."), "{:?}", answer.note);
    assert!(answer.output.starts_with(b"begun\nThe command was ended because it used the most memory"));
    assert_eq!(client.run("echo alive").await.0, "alive\n");
    assert_eq!(client.list().await[0].exit, None);
    client.signal(&server, 9).await.unwrap();
}
