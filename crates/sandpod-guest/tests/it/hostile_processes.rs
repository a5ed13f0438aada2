//! Hostile commands: each stays within its limits and is killed with all its descendants, and the guest keeps working.

use std::fs;
use std::time::Duration;

use sandpod_protocol::v1::process_event::Event;
use sandpod_protocol::v1::{Command, StartRequest};
use tokio::time::Instant;

use crate::harness::{argv, client, line};
use crate::process_helpers::{exit, outputs};
use crate::programs::{Container, GUEST, install_script};

/// Returns the number of living processes with a text in their arguments.
fn count(marker: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let has_marker = |process: fs::DirEntry| {
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        arguments.windows(marker.len()).any(|part| part == marker.as_bytes())
    };
    processes
        .filter(|process| process.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .map(has_marker)
        .filter(|has| *has)
        .count()
}

async fn all_gone(marker: &str) -> bool {
    for _ in 0..250 {
        if count(marker) == 0 {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// Returns a marker that only the processes of one test have.
fn marker(test: &str) -> String {
    format!("hostile-{test}-{}", std::process::id())
}

#[tokio::test]
async fn a_timeout_kills_a_fork_bomb_completely() {
    let (client, _dir) = client().await;
    let marker = marker("bomb");
    // 255 processes, each of which starts others without end.
    let bomb = format!(
        ": {marker}; bomb() {{ [ $1 = 0 ] || {{ bomb $(($1 - 1)) & bomb $(($1 - 1)) & }}; \
         while :; do sleep 0.1 & wait $!; done; }}; bomb 7"
    );
    let bomb = Command { timeout_ms: 3000, ..line(&bomb) };
    let counted = async {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        count(&marker)
    };
    let (answer, running) = tokio::join!(client.execute(bomb), counted);
    assert!(answer.unwrap().timed_out);
    assert!(running > 50, "only {running} ran");
    assert!(all_gone(&marker).await, "{} are left", count(&marker));
    assert_eq!(client.run("echo alive").await.0, "alive\n");
}

/// Eight processes, each of which forks and exits, as their children do without end.
fn lineages(marker: &str) -> [String; 2] {
    let shell = format!(": {marker}; f() {{ f & }}; for i in 1 2 3 4 5 6 7 8; do f; done; sleep 600");
    // Each has a session and a process group of its own.
    let python = "import os, time\n\
         for _ in range(8):\n\
         \x20if os.fork() == 0:\n\
         \x20 while True:\n\
         \x20  os.setsid() if os.getsid(0) != os.getpid() else None\n\
         \x20  if os.fork(): os._exit(0)\n\
         time.sleep(600)\n";
    [shell, format!("exec python3 -c '{python}' {marker}")]
}

#[tokio::test]
async fn a_timeout_kills_lineages_that_fork_and_exit() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let client = container.client().await;
    let last_pid = async || {
        let (load, _) = client.run("cat /proc/loadavg").await;
        load.split_whitespace().last().unwrap().parse::<i64>().unwrap()
    };
    let all = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse::<i64>().unwrap();
    // Reading all processes one after the other is too slow for them.
    client.run("for i in $(seq 400); do sleep 600 > /dev/null 2>&1 & done").await;
    let marker = marker("lineage");
    for command in lineages(&marker) {
        let before = last_pid().await;
        let begin = Instant::now();
        let answer = client.execute(Command { timeout_ms: 1500, ..line(&command) }).await.unwrap();
        assert!(answer.timed_out, "{answer:?}");
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
        let after = last_pid().await;
        assert!((after - before).rem_euclid(all) > 200, "they did not live: {before}, {after}");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let later = last_pid().await;
        assert!((later - after).rem_euclid(all) < 20, "something still forks: {after}, {later}");
        assert_eq!(count(&marker), 0);
    }
}

#[tokio::test]
async fn background_processes_survive_the_timeout_of_another_command() {
    let (client, dir) = client().await;
    let alive = dir.path().join("alive");
    let background =
        format!("(while sleep 0.05; do : > {}; done) > /dev/null 2>&1 & echo $!", alive.display());
    let (pid, code) = client.run(&background).await;
    assert_eq!(code, 0);
    let timeout = Command { timeout_ms: 300, ..line("sleep 600 & sleep 600") };
    assert!(client.execute(timeout).await.unwrap().timed_out);
    std::fs::remove_file(&alive).ok();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(alive.exists());
    client.run(&format!("kill {pid}")).await;
}

#[tokio::test]
async fn a_command_that_stops_its_supervisor_is_ended_by_its_timeout() {
    let (client, _dir) = client().await;
    let stop = Command { timeout_ms: 300, ..line("kill -STOP $PPID; sleep 600 & sleep 600") };
    let begin = Instant::now();
    assert!(client.execute(stop).await.unwrap().timed_out);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_daemon_that_ignores_signals_and_hides_is_killed() {
    let (client, dir) = client().await;
    let (marker, ready) = (marker("hidden"), dir.path().join("ready"));
    let hidden = format!("trap \"\" TERM HUP INT QUIT; : > {}; while :; do sleep 1; done", ready.display());
    let script = format!(
        "(setsid env -i sh -c '(setsid sh -c '\\''{hidden}'\\'' {marker} <&- >&- 2>&- &)' &)
         while ! [ -e {} ]; do sleep 0.01; done; sleep 600",
        ready.display()
    );
    let hidden = Command { timeout_ms: 2000, ..line(&script) };
    assert!(client.execute(hidden).await.unwrap().timed_out);
    assert!(ready.exists());
    assert!(all_gone(&marker).await);
}

#[tokio::test]
async fn a_command_that_closes_its_output_still_times_out() {
    let (client, dir) = client().await;
    let marker = marker("closed");
    let (answer, code) = client.run("echo last; exec >&- 2>&-; sleep 0.5; exit 7").await;
    assert_eq!((answer.as_str(), code), ("last\n", 7));
    let forever = format!(": {marker}; echo last; exec >&- 2>&-; while :; do sleep 1; done");
    let answer = client.execute(Command { timeout_ms: 2500, ..line(&forever) }).await.unwrap();
    assert_eq!((&answer.output[..], answer.exit_code), (&b"last\nCommand timed out after 2.5s"[..], 124));
    assert!(all_gone(&marker).await);
    let process = client.start(line("exec >&- 2>&-; sleep 0.3; exit 7")).await;
    assert_eq!(client.wait(&process).await, exit(7));
    drop(dir);
}

/// Returns the peak memory usage of a process.
fn peak_mebibytes(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[tokio::test]
async fn ten_gibibytes_of_output_use_little_memory() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let client = container.client().await;
    let begin = Instant::now();
    let answer = client.execute(line("head -c 10G /dev/zero; exit 9")).await.unwrap();
    assert_eq!((answer.exit_code, answer.truncated, answer.output.len()), (9, true, 1 << 20));
    let process = client.start(line("head -c 1G /dev/zero; exit 9")).await;
    assert_eq!(client.wait(&process).await, exit(9));
    let peak = peak_mebibytes(container.guest);
    assert!(peak < 64, "the guest took {peak} MiB after {:?}", begin.elapsed());
    let events = client.events(&process, 0).await;
    let Event::HoleUntil(begin) = events[0] else { panic!("{:?}", events[0]) };
    assert!(begin > (1 << 30) - (17 << 20));
}

#[tokio::test]
async fn half_closing_the_input_ends_only_the_input() {
    let (client, _dir) = client().await;
    let request = StartRequest { stdin: true, ..StartRequest::default() };
    let process = client.start_with(line("cat; echo and; seq 1 5; sleep 0.2; echo after"), request).await;
    client.input(&process, "input ", true).await.unwrap();
    let (output, _, end) = outputs(&client.events(&process, 0).await);
    assert_eq!((output.as_str(), end), ("input and\n1\n2\n3\n4\n5\nafter\n", Some(exit(0))));
}

#[tokio::test]
async fn an_image_without_a_shell_runs_programs_and_reports_lines() {
    let dir = tempfile::tempdir().unwrap();
    let start = dir.path().join("start");
    let script = format!("#!/bin/sh\nmount -t tmpfs none /usr/bin && exec {GUEST} \"$@\"\n");
    install_script(&script, &start);
    let Some(container) = Container::start(&start, &[]).await else { return };
    let client = container.client().await;
    let (said, code) = client.run("echo hello").await;
    assert_eq!(code, 125);
    assert!(said.contains("the image has no /bin/sh; give a program and its arguments instead"), "{said}");
    let session = Command { shell_session: "s".to_owned(), ..line("echo hello") };
    assert_eq!(client.execute(session).await.unwrap().exit_code, 125);
    let version = client.execute(argv(&[GUEST, "--version"])).await.unwrap();
    assert_eq!(version.exit_code, 0, "{version:?}");
}
