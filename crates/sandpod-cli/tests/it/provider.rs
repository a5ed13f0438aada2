//! Local sandboxes through the library: they outlive who made them, and are found again by their name.

use std::time::Duration;

use sandpod::{
    ErrorKind, ExecuteOptions, GuestProgram, ListOptions, LocalConfig, Provider, SandboxHandle,
    SandboxRequest, Status,
};

/// A provider whose sandboxes are in a directory of the test's own.
struct Local {
    provider: Provider,
    state_dir: tempfile::TempDir,
}

fn local() -> Local {
    let state_dir = tempfile::tempdir().unwrap();
    Local { provider: provider(&state_dir), state_dir }
}

fn provider(state_dir: &tempfile::TempDir) -> Provider {
    let program = GuestProgram { path: env!("CARGO_BIN_EXE_sandpod").into(), args: vec!["guest".to_owned()] };
    let config = LocalConfig {
        program: Some(program),
        state_dir: Some(state_dir.path().to_owned()),
        ..LocalConfig::default()
    };
    Provider::local(&config).unwrap()
}

async fn run(handle: &SandboxHandle, line: &str) -> String {
    let executed = handle.sandbox.execute(line, ExecuteOptions::default()).await.unwrap();
    String::from_utf8(executed.output.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_outlives_its_maker_and_is_found_again_by_its_name() {
    let Local { provider: maker, state_dir } = local();
    let made = maker.get_or_create(SandboxRequest::named("work")).await.unwrap();
    run(&made, "echo kept > file; sleep 1000 > /dev/null 2>&1 & echo $! > pid").await;
    drop((made, maker));

    let another = provider(&state_dir);
    let found = another.reconnect("work").await.unwrap();
    assert_eq!(run(&found, "cat file; kill -0 $(cat pid) && echo alive").await, "kept\nalive\n");
    another.delete("work", true).await.unwrap();
    assert_eq!(another.reconnect("work").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(state_dir.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_want_one_name_at_once_get_one_sandbox() {
    let Local { state_dir, .. } = local();
    let providers: Vec<_> = (0..8).map(|_| provider(&state_dir)).collect();
    let wanting = providers.iter().map(|provider| provider.get_or_create(SandboxRequest::named("one")));
    let handles = futures::future::try_join_all(wanting).await.unwrap();
    for (number, handle) in handles.iter().enumerate() {
        run(handle, &format!("echo {number} >> file")).await;
    }
    assert_eq!(run(&handles[0], "wc -l < file").await.trim(), "8");
    providers[0].delete("one", true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_time_is_up_ends_and_is_cleaned_away() {
    let Local { provider, state_dir } = local();
    let request = SandboxRequest { ttl: Some(Duration::from_secs(1)), ..SandboxRequest::named("short") };
    let handle = provider.get_or_create(request).await.unwrap();
    let kept = provider.get_or_create(SandboxRequest::named("kept")).await.unwrap();
    let error = loop {
        match handle.sandbox.execute("sleep 0.2", ExecuteOptions::default()).await {
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("has ended"), "{error}");
    let page = provider.list(ListOptions::default()).await.unwrap();
    let all: Vec<_> = page.sandboxes.iter().map(|info| (info.id.as_str(), info.status)).collect();
    assert_eq!(all, [("kept", Status::Running), ("short", Status::Terminated)]);

    let cleaned = provider.cleanup(None).await.unwrap();

    assert_eq!((cleaned.deleted.len(), cleaned.kept), (1, 1));
    provider.delete(kept.id.as_str(), true).await.unwrap();
    assert_eq!(std::fs::read_dir(state_dir.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_was_killed_is_started_again_in_the_same_files() {
    let Local { provider, state_dir } = local();
    let handle = provider.get_or_create(SandboxRequest::named("crash")).await.unwrap();
    run(&handle, "echo kept > file").await;
    let pid = std::fs::read_to_string(state_dir.path().join("crash/lock")).unwrap();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    handle.sandbox.execute("true", ExecuteOptions::default()).await.unwrap_err();

    let again = provider.get_or_create(SandboxRequest::named("crash")).await.unwrap();

    assert_eq!((run(&again, "cat file").await.as_str(), again.generation), ("kept\n", 1));
    provider.delete("crash", true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_given_more_time() {
    let Local { provider, .. } = local();
    let request = SandboxRequest { ttl: Some(Duration::from_secs(2)), ..SandboxRequest::named("longer") };
    let handle = provider.get_or_create(request).await.unwrap();
    provider.extend("longer", Duration::from_secs(600)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(run(&handle, "echo alive").await, "alive\n");
    provider.delete("longer", true).await.unwrap();
}
