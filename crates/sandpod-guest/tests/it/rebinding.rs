//! Restarts of the guest. Commands can change its saved binding, so it runs nothing before the next Bind, and only with the
//! policy that it had.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sandpod_guest::{Guest, Options};
use sandpod_protocol::Failure;
use sandpod_protocol::v1::network::Rule;
use sandpod_protocol::v1::{BindRequest, ErrorCode, Network, Policy, StatRequest, StatsRequest};
use tempfile::TempDir;

use crate::harness::{Client, line, options};

/// A sandbox whose guest is restarted.
struct RestartingSandbox {
    dir: TempDir,
}

impl RestartingSandbox {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn binding_file(&self) -> PathBuf {
        self.state().join("binding")
    }

    /// Starts a guest, and returns a client of it.
    async fn start(&self) -> Client {
        let options = Options { needs_bind: true, ..options(&self.state()) };
        Client::of(&Guest::new(options).unwrap()).await
    }
}

fn no_network() -> Policy {
    Policy { network: Some(Network { rule: Some(Rule::None(true)) }), ..Policy::default() }
}

fn bind(policy: Option<Policy>, known: &[u8]) -> BindRequest {
    let policy_sha256 = known.to_vec().into();
    BindRequest { claim: "a".to_owned(), policy, policy_sha256, ..BindRequest::default() }
}

/// Binds, and returns the hash of the policy that is in force.
async fn bound(client: &Client, request: BindRequest) -> Result<Vec<u8>, Failure> {
    let answer = client.session.clone().bind(request).await;
    answer.map(|answer| answer.into_inner().policy_sha256.to_vec()).map_err(|status| Failure::from(&status))
}

/// Checks that calls are refused because the sandbox is not bound.
async fn assert_unusable(client: &Client) {
    let stat = StatRequest { path: "/".to_owned(), ..StatRequest::default() };
    let stat = client.files.clone().stat(stat).await.unwrap_err();
    let execute = client.execute(line("true")).await.unwrap_err();
    for failure in [Failure::from(&stat), execute] {
        assert_eq!(failure.code(), ErrorCode::NotYours);
        assert!(failure.message().contains("is not bound yet"), "{failure}");
    }
    client.session.clone().stats(StatsRequest {}).await.unwrap();
}

async fn has_network(client: &Client) -> bool {
    client.run("python3 -c 'import socket; socket.socket()'").await.1 == 0
}

#[tokio::test]
async fn guest_runs_nothing_and_opens_no_file_before_a_bind() {
    let sandbox = RestartingSandbox::new();
    let client = sandbox.start().await;
    assert_unusable(&client).await;
    bound(&client, bind(None, &[])).await.unwrap();
    assert_eq!(client.run("true").await.1, 0);
}

#[tokio::test]
async fn policy_survives_deletion_of_the_state_file_and_a_restart() {
    let sandbox = RestartingSandbox::new();
    let client = sandbox.start().await;
    let policy = bound(&client, bind(Some(no_network()), &[])).await.unwrap();
    let removed = client.run(&format!("rm {}", sandbox.binding_file().display())).await;
    assert_eq!(removed.1, 0);

    let restarted = sandbox.start().await;
    assert_unusable(&restarted).await;
    for weaker in [None, Some(Policy::default())] {
        let refused = bound(&restarted, bind(weaker, &policy)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotYours);
        assert!(refused.message().contains("no longer has the policy"), "{refused}");
        assert_unusable(&restarted).await;
    }
    assert_eq!(bound(&restarted, bind(Some(no_network()), &policy)).await.unwrap(), policy);
    assert!(!has_network(&restarted).await);
}

#[tokio::test]
async fn forged_binding_note_does_not_replace_the_policy() {
    let sandbox = RestartingSandbox::new();
    let policy = bound(&sandbox.start().await, bind(Some(no_network()), &[])).await.unwrap();
    let forged = RestartingSandbox::new();
    bound(&forged.start().await, bind(None, &[])).await.unwrap();
    fs::copy(forged.binding_file(), sandbox.binding_file()).unwrap();

    let restarted = sandbox.start().await;
    assert_eq!(bound(&restarted, bind(None, &policy)).await.unwrap_err().code(), ErrorCode::NotYours);
    assert_unusable(&restarted).await;
    assert_eq!(bound(&restarted, bind(Some(no_network()), &policy)).await.unwrap(), policy);
    assert!(!has_network(&restarted).await);
}

#[tokio::test]
async fn intact_note_restores_the_policy_for_a_client_without_it() {
    let sandbox = RestartingSandbox::new();
    let client = sandbox.start().await;
    let policy = bound(&client, bind(Some(no_network()), &[])).await.unwrap();
    let restarted = sandbox.start().await;
    assert_eq!(bound(&restarted, bind(None, &policy)).await.unwrap(), policy);
    assert!(!has_network(&restarted).await);
    assert_eq!(bound(&restarted, bind(None, &[])).await.unwrap(), policy, "later Binds change nothing");
}

#[tokio::test]
async fn link_in_place_of_a_root_is_refused_after_a_restart() {
    let sandbox = RestartingSandbox::new();
    let (root, elsewhere) = (sandbox.dir.path().join("root"), sandbox.dir.path().join("elsewhere"));
    for dir in [&root, &elsewhere] {
        fs::create_dir(dir).unwrap();
    }
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let request = || Policy { writable: vec![text(&root)], ..Policy::default() };
    let policy = bound(&sandbox.start().await, bind(Some(request()), &[])).await.unwrap();
    fs::remove_file(sandbox.binding_file()).unwrap();
    fs::remove_dir(&root).unwrap();
    symlink(&elsewhere, &root).unwrap();

    let restarted = sandbox.start().await;
    let refused = bound(&restarted, bind(Some(request()), &policy)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NotYours);
    assert_unusable(&restarted).await;
}

#[tokio::test]
async fn repair_after_a_restart_waits_for_the_bind() {
    let sandbox = RestartingSandbox::new();
    let left = sandbox.dir.path().join(".sandpod-0000000000000001");
    let notes = sandbox.state().join("temporary");
    fs::create_dir_all(&notes).unwrap();
    fs::write(&left, "").unwrap();
    symlink(&left, notes.join("note")).unwrap();
    let client = sandbox.start().await;
    assert!(left.exists());
    bound(&client, bind(None, &[])).await.unwrap();
    assert!(!left.exists());
}
