//! Sessions of clients, and the binding of a guest.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use sandpod_guest::{Guest, Options};
use sandpod_protocol::v1::{BindRequest, BoundFile, ErrorCode};

use crate::harness::{Client, client, guest, line};

fn claim(name: &str) -> BindRequest {
    BindRequest { claim: name.to_owned(), ..BindRequest::default() }
}

#[tokio::test]
async fn hello_agrees_on_the_newest_common_version_and_reports_known_sessions() {
    let (client, _dir) = client().await;
    let first = client.hello(0, 9).await.unwrap();
    assert_eq!((first.version, first.session_known), (1, false));
    let second = client.hello(1, 1).await.unwrap();
    assert!(second.session_known);
    assert_eq!(first.boot_id, second.boot_id);
}

#[tokio::test]
async fn an_incompatible_client_gets_both_version_ranges() {
    let (client, _dir) = client().await;
    let failure = client.hello(7, 9).await.unwrap_err();
    assert_eq!(failure.code(), ErrorCode::Unsupported);
    assert!(failure.message().contains("7 to 9") && failure.message().contains("1 to 1"), "{failure}");
}

#[tokio::test]
async fn a_session_without_a_name_is_refused() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await.named("");
    assert_eq!(client.hello(1, 1).await.unwrap_err().code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn the_first_claim_binds_and_another_is_refused() {
    let (client, _dir) = client().await;
    client.bind(claim("a")).await.unwrap();
    client.bind(claim("a")).await.unwrap();
    assert_eq!(client.bind(claim("b")).await.unwrap_err().code(), ErrorCode::NotYours);
    assert_eq!(client.hello(1, 1).await.unwrap().claim, "a");
}

#[tokio::test]
async fn commands_have_the_environment_and_directory_of_the_binding() {
    let (client, dir) = client().await;
    let work = dir.path().join("made/by/bind");
    let bind = BindRequest {
        env: [("COLOUR".to_owned(), "blue".to_owned())].into(),
        working_dir: work.to_str().unwrap().to_owned(),
        ..claim("a")
    };
    client.bind(bind).await.unwrap();
    assert_eq!(client.run("echo $COLOUR; pwd").await.0, format!("blue\n{}\n", work.display()));
}

#[tokio::test]
async fn a_second_bind_of_the_same_claim_changes_nothing() {
    let (client, _dir) = client().await;
    client.bind(claim("a")).await.unwrap();
    let env = [("COLOUR".to_owned(), "blue".to_owned())].into();
    client.bind(BindRequest { env, ..claim("a") }).await.unwrap();
    assert_eq!(client.run("echo [$COLOUR]").await.0, "[]\n");
}

#[tokio::test]
async fn invalid_bindings_are_refused() {
    let (client, _dir) = client().await;
    let relative = BindRequest { working_dir: "here".to_owned(), ..claim("a") };
    let broken = BindRequest { env: [("A=B".to_owned(), String::new())].into(), ..claim("a") };
    for request in [claim(""), relative, broken] {
        assert_eq!(client.bind(request).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    }
}

#[tokio::test]
async fn a_binding_survives_a_restart_of_the_guest_and_is_private() {
    let (guest, dir) = guest();
    Client::of(&guest).await.bind(claim("a")).await.unwrap();
    let mode = std::fs::metadata(dir.path().join("binding")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let restarted = Client::of(&Guest::new(Options::new(dir.path())).unwrap()).await;
    assert_eq!(restarted.bind(claim("b")).await.unwrap_err().code(), ErrorCode::NotYours);
}

#[tokio::test]
async fn a_guest_with_a_damaged_state_is_unbound() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("binding"), [0xff; 99]).unwrap();
    let client = Client::of(&Guest::new(Options::new(dir.path())).unwrap()).await;
    assert_eq!(client.hello(1, 1).await.unwrap().claim, "");
    client.bind(claim("b")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_time_to_live_counts_from_the_binding() {
    let (guest, _dir) = guest();
    tokio::time::sleep(Duration::from_secs(500)).await;
    let client = Client::of(&guest).await;
    client.bind(BindRequest { ttl_seconds: 100, ..claim("a") }).await.unwrap();
    let bound = tokio::time::Instant::now();
    guest.expired().await;
    assert_eq!(bound.elapsed().as_secs(), 100);
}

#[tokio::test(start_paused = true)]
async fn only_the_own_claim_changes_the_time_to_live() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await;
    client.bind(BindRequest { ttl_seconds: 100, ..claim("a") }).await.unwrap();
    let bound = tokio::time::Instant::now();
    let extend = async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        let failure = client.extend("b", 1000).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::NotYours);
        client.extend("a", 300).await.unwrap();
        tokio::time::sleep(Duration::from_secs(50)).await;
        client.extend("a", 20).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = guest.expired() => {}
        () = extend => {}
    }
    assert_eq!(bound.elapsed().as_secs(), 120);
}

#[tokio::test(start_paused = true)]
async fn a_call_restarts_the_idle_time() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await;
    client.bind(BindRequest { idle_ttl_seconds: 100, ..claim("a") }).await.unwrap();
    let bound = tokio::time::Instant::now();
    let call = async {
        tokio::time::sleep(Duration::from_secs(70)).await;
        client.stats().await;
        tokio::time::sleep(Duration::from_secs(50)).await;
        // Checking whether it is idle does not prolong that.
        client.hello(1, 1).await.unwrap();
        assert!(!client.end_if_idle("a", 60_000).await.unwrap());
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = guest.expired() => {}
        () = call => {}
    }
    assert_eq!(bound.elapsed().as_secs(), 170);
}

#[tokio::test(start_paused = true)]
async fn a_cleanup_ends_an_idle_guest() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await;
    assert_eq!(client.end_if_idle("a", 0).await.unwrap_err().code(), ErrorCode::NotYours);
    client.bind(claim("a")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(client.end_if_idle("b", 0).await.unwrap_err().code(), ErrorCode::NotYours);
    assert!(!client.end_if_idle("a", 11_000).await.unwrap());
    let early = tokio::time::timeout(Duration::from_secs(100), guest.expired()).await;
    assert!(early.is_err(), "a guest that was asked and is not idle lives on");

    assert!(client.end_if_idle("a", 100_000).await.unwrap());

    assert!(client.end_if_idle("a", u64::MAX).await.unwrap(), "a second cleanup gets the same answer");
    tokio::select! {
        () = guest.expired() => {}
        _ = client.stats() => panic!("a guest that ends has answered a call"),
    }
}

#[tokio::test]
async fn a_cleanup_does_not_end_a_guest_while_a_command_runs() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await;
    client.bind(claim("a")).await.unwrap();
    let command = client.execute(line("sleep 0.5; echo done"));
    let cleanup = async {
        while client.stats().await.commands == 0 {
            tokio::task::yield_now().await;
        }
        client.end_if_idle("a", 0).await.unwrap()
    };
    let (executed, ended) = tokio::join!(command, cleanup);
    assert_eq!((executed.unwrap().exit_code, ended), (0, false));
    assert!(client.end_if_idle("a", 0).await.unwrap(), "nothing runs any more");
}

#[tokio::test(start_paused = true)]
async fn a_command_that_runs_keeps_the_guest_busy() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await;
    client.bind(BindRequest { idle_ttl_seconds: 1, ..claim("a") }).await.unwrap();
    // The clock is paused and jumps when all tasks wait, so many idle times pass while the command runs.
    tokio::select! {
        () = guest.expired() => panic!("the guest ended while a command ran"),
        answer = client.execute(line("sleep 0.3")) => assert_eq!(answer.unwrap().exit_code, 0),
    }
    let ended = tokio::time::Instant::now();
    guest.expired().await;
    assert!(ended.elapsed() <= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn neither_a_second_bind_nor_activity_moves_the_deadline() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await;
    let bind = BindRequest { ttl_seconds: 100, idle_ttl_seconds: 90, ..claim("a") };
    client.bind(bind.clone()).await.unwrap();
    let bound = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(60)).await;
    client.bind(bind).await.unwrap();
    guest.expired().await;
    assert_eq!(bound.elapsed().as_secs(), 100);
}

#[tokio::test]
async fn bound_files_exist_before_the_first_command_and_not_in_the_state() {
    let (client, dir) = client().await;
    let path = dir.path().join("deep/secret");
    let path = path.to_str().unwrap();
    let file = BoundFile { path: path.to_owned(), content: "hush".into(), mode: 0o600 };
    client.bind(BindRequest { files: vec![file], ..claim("a") }).await.unwrap();
    assert_eq!(client.run(&format!("cat {path}; stat -c ' %a' {path}")).await.0, "hush 600\n");
    let state = std::fs::read(dir.path().join("binding")).unwrap();
    assert!(!state.windows(4).any(|bytes| bytes == b"hush"));
}

#[tokio::test]
async fn a_binding_whose_files_cannot_be_written_fails() {
    let (client, dir) = client().await;
    let file = |path: String| BoundFile { path, content: "x".into(), mode: 0 };
    let good = dir.path().join("good").to_str().unwrap().to_owned();
    let files = vec![file(good.clone()), file("/proc/no/such/file".to_owned())];
    let failure = client.bind(BindRequest { files, ..claim("a") }).await.unwrap_err();
    assert!(failure.message().contains("'/proc/no/such/file'"), "{failure}");
    assert!(!std::path::Path::new(&good).exists());
    assert_eq!(client.hello(1, 1).await.unwrap().claim, "");
    client.bind(BindRequest { files: vec![file(good)], ..claim("b") }).await.unwrap();
}

#[tokio::test]
async fn a_token_hash_of_the_wrong_length_is_refused() {
    let (client, _dir) = client().await;
    let bind = |length| BindRequest { token_sha256: vec![7; length].into(), ..claim("a") };
    assert_eq!(client.bind(bind(31)).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    client.bind(bind(32)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stats_report_uptime_and_remaining_time() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await;
    assert_eq!(client.stats().await.ttl_left_ms, None);
    client.bind(BindRequest { ttl_seconds: 100, idle_ttl_seconds: 60, ..claim("a") }).await.unwrap();
    assert_eq!(client.stats().await.ttl_left_ms, Some(60_000));
    tokio::time::sleep(Duration::from_secs(50)).await;
    let stats = client.stats().await;
    let (up, left) = (stats.uptime_ms, stats.ttl_left_ms.unwrap());
    assert!((50_000..50_100).contains(&up) && (49_900..=50_000).contains(&left), "{up} and {left}");
}

#[tokio::test]
async fn stats_count_running_commands() {
    let (client, _dir) = client().await;
    assert_eq!(client.stats().await.commands, 0);
    let command = client.execute(line("sleep 60"));
    let counted = async {
        while client.stats().await.commands == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = command => panic!("the command ended"),
        () = counted => {}
    }
    assert_eq!(client.stats().await.command_exit, None);
}
