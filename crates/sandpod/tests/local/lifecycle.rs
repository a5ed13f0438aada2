//! The life of local sandboxes: creation, expiry, recreation, deletion, limits and network.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use sandpod::{
    ErrorKind, ExecuteOptions, ListOptions, LocalConfig, LocalNetwork, Provider, SandboxHandle,
    SandboxRequest, Status,
};

use crate::support::guest;

/// The interpreter of the system; one of a version manager is in a home directory, which sandboxes do not see.
const PYTHON: &str = "/usr/bin/python3";
/// A tree too deep for a recursive delete.
const MAKE_DEEP: &str = r#"
import os
for _ in range(20000):
    os.mkdir("d")
    os.chdir("d")
"#;

/// A provider with a state directory of its own.
struct Local {
    provider: Provider,
    state_dir: tempfile::TempDir,
}

fn local() -> Local {
    local_with(LocalConfig::default())
}

fn local_with(config: LocalConfig) -> Local {
    let state_dir = tempfile::tempdir().unwrap();
    Local { provider: provider_with(&state_dir, config), state_dir }
}

fn provider(state_dir: &tempfile::TempDir) -> Provider {
    provider_with(state_dir, LocalConfig::default())
}

fn provider_with(state_dir: &tempfile::TempDir, config: LocalConfig) -> Provider {
    let state_dir = Some(state_dir.path().to_owned());
    Provider::local(&LocalConfig { program: Some(guest()), state_dir, ..config }).unwrap()
}

/// Waits until the state directory is empty.
async fn until_empty(state_dir: &tempfile::TempDir) {
    let empty = async {
        while std::fs::read_dir(state_dir.path()).unwrap().count() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), empty).await.expect("files are left");
}

/// A shell line that runs a program in Python.
fn python(program: &str) -> String {
    format!("{PYTHON} - <<'END'\nimport socket\n{program}\nEND\n")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

async fn run(handle: &SandboxHandle, line: &str) -> String {
    let executed = handle.sandbox.execute(line, ExecuteOptions::default()).await.unwrap();
    String::from_utf8(executed.output.to_vec()).unwrap()
}

pub(super) async fn a_sandbox_outlives_its_creator_and_is_found_by_name() {
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

pub(super) async fn concurrent_requests_for_one_name_get_one_sandbox() {
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

pub(super) async fn an_expired_sandbox_ends_and_cleanup_deletes_it() {
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
    assert!(error.contains("its time is up"), "{error}");
    let page = provider.list(ListOptions::default()).await.unwrap();
    let all: Vec<_> = page.sandboxes.iter().map(|info| (info.id.as_str(), info.status)).collect();
    assert_eq!(all, [("kept", Status::Running), ("short", Status::Terminated)]);

    let cleaned = provider.cleanup(None).await.unwrap();

    assert_eq!((cleaned.deleted.len(), cleaned.kept), (1, 1));
    provider.delete(kept.id.as_str(), true).await.unwrap();
    assert_eq!(std::fs::read_dir(state_dir.path()).unwrap().count(), 0);
}

pub(super) async fn i7_cleanup_deletes_idle_sandboxes_within_seconds_and_no_others() {
    let Local { provider, state_dir } = local();
    let idle_ttl = Some(Duration::from_secs(600));
    provider.get_or_create(SandboxRequest { idle_ttl, ..SandboxRequest::named("idle") }).await.unwrap();
    provider.get_or_create(SandboxRequest::named("left")).await.unwrap();
    let used = provider.get_or_create(SandboxRequest::named("used")).await.unwrap();
    let busy = provider.get_or_create(SandboxRequest::named("busy")).await.unwrap();
    let running = tokio::spawn(async move { run(&busy, "sleep 4; echo done").await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(run(&used, "echo hello").await, "hello\n");

    let began = tokio::time::Instant::now();
    let cleaned = self::provider(&state_dir).cleanup(Some(Duration::from_secs(1))).await.unwrap();

    let mut deleted: Vec<_> = cleaned.deleted.iter().map(ToString::to_string).collect();
    deleted.sort_unstable();
    assert_eq!((deleted, cleaned.kept), (vec!["idle".to_owned(), "left".to_owned()], 2));
    assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
    assert_eq!(run(&used, "echo hello").await, "hello\n");
    assert_eq!(running.await.unwrap(), "done\n");
    for name in ["used", "busy"] {
        provider.delete(name, true).await.unwrap();
    }
    assert_eq!(std::fs::read_dir(state_dir.path()).unwrap().count(), 0);
}

pub(super) async fn a_sandbox_with_very_deep_directories_is_deleted() {
    // In memory, because a disk takes most of a minute.
    let state_dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let provider = provider(&state_dir);
    let handle = provider.get_or_create(SandboxRequest::named("deep")).await.unwrap();
    let made = run(&handle, &format!("{PYTHON} -c '{MAKE_DEEP}' && ls")).await;
    assert_eq!(made, "d\n");

    provider.delete("deep", true).await.unwrap();

    assert!(provider.list(ListOptions::default()).await.unwrap().sandboxes.is_empty());
    assert_eq!(std::fs::read_dir(state_dir.path()).unwrap().count(), 0);
}

pub(super) async fn a_deep_directory_left_by_a_killed_delete_is_removed() {
    let state_dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let left = state_dir.path().join(".gone-dead");
    std::fs::create_dir(&left).unwrap();
    let made = std::process::Command::new(PYTHON).args(["-c", MAKE_DEEP]).current_dir(&left).status();
    assert!(made.unwrap().success());
    std::fs::File::open(&left).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();

    provider(&state_dir).list(ListOptions::default()).await.unwrap();

    assert!(!left.exists());
}

pub(super) async fn a_killed_guest_restarts_with_the_same_files() {
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

pub(super) async fn a_sandbox_with_a_damaged_record_is_listed_and_can_be_deleted() {
    let Local { provider, state_dir } = local();
    for (id, damage) in [("empty", Some("")), ("cut", Some("{\"claim\": ")), ("gone", None)] {
        provider.get_or_create(SandboxRequest::named(id)).await.unwrap();
        let record = state_dir.path().join(id).join("record.json");
        damage.map_or_else(|| std::fs::remove_file(&record), |text| std::fs::write(&record, text)).unwrap();

        let listed = provider.list(ListOptions::default()).await.unwrap().sandboxes;
        assert_eq!((listed.len(), listed[0].id.as_str(), listed[0].status), (1, id, Status::Terminated));
        for error in [
            provider.get_or_create(SandboxRequest::named(id)).await.err(),
            provider.get_or_create(SandboxRequest::of(id)).await.err(),
        ] {
            let error = error.expect("its owner is unknown");
            assert_eq!(error.kind(), ErrorKind::StartFailed);
            assert!(error.to_string().contains(&format!("{id}/places")), "{error}");
        }
        assert_eq!(provider.cleanup(None).await.unwrap().kept, 1, "it may hold files");

        provider.delete(id, true).await.unwrap();
        until_empty(&state_dir).await;
    }
}

pub(super) async fn extend_prolongs_a_sandbox() {
    let Local { provider, .. } = local();
    let request = SandboxRequest { ttl: Some(Duration::from_secs(10)), ..SandboxRequest::named("longer") };
    let handle = provider.get_or_create(request).await.unwrap();
    provider.extend("longer", Duration::from_secs(600)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(run(&handle, "echo alive").await, "alive\n");
    provider.delete("longer", true).await.unwrap();
}

pub(super) async fn programs_in_local_bin_are_on_the_path() {
    let Local { provider, .. } = local();
    let handle = provider.get_or_create(SandboxRequest::named("installs")).await.unwrap();
    run(&handle, "mkdir -p ~/.local/bin; printf '#!/bin/sh\necho mine\n' > ~/.local/bin/own; chmod +x ~/.local/bin/own").await;
    assert_eq!(run(&handle, "own").await, "mine\n");
    provider.delete("installs", true).await.unwrap();
}

/// Waits until a sandbox has ended.
async fn has_ended(provider: &Provider, id: &str) {
    while provider.info(id).await.unwrap().status != Status::Terminated {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) async fn an_idle_sandbox_ends_and_a_used_one_stays() {
    let Local { provider, .. } = local();
    let idle_ttl = Some(Duration::from_secs(6));
    let request = |name: &str| SandboxRequest { idle_ttl, ..SandboxRequest::named(name) };
    let _unused = provider.get_or_create(request("unused")).await.unwrap();
    let used = provider.get_or_create(request("used")).await.unwrap();
    tokio::select! {
        () = has_ended(&provider, "unused") => {}
        never = async { loop { run(&used, "sleep 0.2").await; } } => never,
    }
    assert_eq!(run(&used, "echo alive").await, "alive\n");
    assert_eq!(provider.cleanup(None).await.unwrap().deleted, ["unused".parse().unwrap()]);
    provider.delete("used", true).await.unwrap();
}

pub(super) async fn sandboxes_are_listed_by_label_and_counted() {
    let Local { provider, .. } = local_with(LocalConfig {
        default_labels: [("team".to_owned(), "search".to_owned())].into(),
        ..LocalConfig::default()
    });
    for (name, thread) in [("one", "1"), ("two", "2")] {
        let labels = [("thread-id".to_owned(), thread.to_owned())].into();
        provider.get_or_create(SandboxRequest { labels, ..SandboxRequest::named(name) }).await.unwrap();
    }
    let list = |key: &str, value: &str| {
        let options =
            ListOptions { labels: [(key.to_owned(), value.to_owned())].into(), ..ListOptions::default() };
        let provider = provider.clone();
        async move {
            let page = provider.list(options).await.unwrap();
            page.sandboxes.iter().map(|info| info.id.to_string()).collect::<Vec<_>>()
        }
    };
    assert_eq!(list("team", "search").await, ["one", "two"]);
    assert_eq!(list("thread-id", "2").await, ["two"]);
    let stats = provider.stats(Duration::from_secs(300)).await.unwrap();
    assert_eq!((stats.total, stats.running, stats.idle, stats.thread_ids.len()), (2, 2, 0, 2));
    assert_eq!(provider.stats(Duration::ZERO).await.unwrap().idle, 2);
    let cleaned = provider.cleanup(Some(Duration::ZERO)).await.unwrap();
    assert_eq!((cleaned.deleted.len(), cleaned.kept), (2, 0));
}

pub(super) async fn a_cancelled_creation_does_not_disturb_another_of_the_same_name() {
    let Local { provider, state_dir } = local();
    let other = self::provider(&state_dir);
    for pause in 0..25 {
        let first = tokio::spawn({
            let provider = provider.clone();
            async move { provider.get_or_create(SandboxRequest::named("one")).await }
        });
        let second = other.get_or_create(SandboxRequest::named("one"));
        drop(tokio::time::timeout(Duration::from_millis(pause), second).await);
        let handle = first.await.unwrap().unwrap();
        // Meanwhile the second creation is undone.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(run(&handle, "echo here").await, "here\n");
        provider.delete("one", true).await.unwrap();
        until_empty(&state_dir).await;
    }
}

pub(super) async fn an_interrupted_delete_is_finished_by_cleanup_or_by_the_next_creation() {
    let Local { provider, state_dir } = local();
    let give_up = async |id: &str| {
        let handle = provider.get_or_create(SandboxRequest::named(id)).await.unwrap();
        run(&handle, "echo old > file").await;
        let path = state_dir.path().join(id).join("record.json");
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        record["uid"] = "".into();
        std::fs::write(&path, record.to_string()).unwrap();
    };
    give_up("next").await;
    let error = provider.reconnect("next").await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    give_up("next").await;
    let next = provider.get_or_create(SandboxRequest::named("next")).await.unwrap();
    assert_eq!(run(&next, "ls").await, "");

    give_up("left").await;
    assert_eq!(provider.info("left").await.unwrap().status, Status::Terminated);
    let cleaned = provider.cleanup(None).await.unwrap();
    assert_eq!((cleaned.deleted.len(), cleaned.kept), (1, 1));
    provider.delete("next", true).await.unwrap();
    until_empty(&state_dir).await;
}

pub(super) async fn a_handle_of_a_deleted_sandbox_never_reaches_its_successor() {
    let Local { provider, .. } = local();
    let old = provider.get_or_create(SandboxRequest::named("one")).await.unwrap();
    run(&old, "true").await;
    provider.delete("one", true).await.unwrap();
    let new = provider.get_or_create(SandboxRequest::named("one")).await.unwrap();

    let error = old.sandbox.execute("touch stray", ExecuteOptions::default()).await.unwrap_err();

    assert!(error.to_string().contains("was deleted"), "{error}");
    assert_eq!(run(&new, "ls").await, "");
    provider.delete("one", true).await.unwrap();
}

pub(super) async fn commands_cannot_keep_an_expired_sandbox_alive() {
    let Local { provider, .. } = local();
    let request = SandboxRequest { ttl: Some(Duration::from_secs(10)), ..SandboxRequest::named("one") };
    let handle = provider.get_or_create(request).await.unwrap();
    run(&handle, "mkfifo /run/sandpod/expired /run/sandpod/binding.new").await;
    let end = handle.sandbox.execute("sleep 60", ExecuteOptions::default());
    let ended = tokio::time::timeout(Duration::from_secs(30), end).await.expect("the sandbox still runs");
    assert!(ended.is_err(), "{ended:?}");
    provider.delete("one", true).await.unwrap();
}

pub(super) async fn an_expired_sandbox_is_recreated_with_the_new_request() {
    let Local { provider, .. } = local();
    let request = SandboxRequest { ttl: Some(Duration::from_secs(1)), ..SandboxRequest::named("one") };
    let first = provider.get_or_create(request).await.unwrap();
    while first.sandbox.execute("true", ExecuteOptions::default()).await.is_ok() {}
    let labels = [("team".to_owned(), "search".to_owned())].into();
    let request =
        SandboxRequest { ttl: Some(Duration::from_secs(3600)), labels, ..SandboxRequest::named("one") };
    assert_eq!(provider.get_or_create(request).await.unwrap().generation, 2);
    let error = first.sandbox.execute("true", ExecuteOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("gone"), "{error}");
    let info = provider.info("one").await.unwrap();
    assert_eq!(info.labels.get("team").map(String::as_str), Some("search"));
    let left = info.expires_at.unwrap().duration_since(std::time::SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(3000), "{left:?}");
    provider.delete("one", true).await.unwrap();
}

pub(super) async fn a_recreated_sandbox_uses_the_current_network_option() {
    let Local { provider: open, state_dir } =
        local_with(LocalConfig { network: LocalNetwork::Host, ..LocalConfig::default() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = python(&format!("socket.create_connection(('127.0.0.1', {port}), 2)"));
    let connect = format!("{connect} echo $?");
    let request = SandboxRequest { ttl: Some(Duration::from_secs(15)), ..SandboxRequest::named("one") };
    let first = open.get_or_create(request).await.unwrap();
    assert_eq!(run(&first, &connect).await, "0\n");
    while first.sandbox.execute("true", ExecuteOptions::default()).await.is_ok() {}

    let closed = provider(&state_dir);
    let again = closed.get_or_create(SandboxRequest::named("one")).await.unwrap();
    let printed = run(&again, &connect).await;
    assert!(printed.contains("ConnectionRefusedError") && again.generation == 2, "{printed}");
    closed.delete("one", true).await.unwrap();
}

pub(super) async fn cleanup_names_a_sandbox_that_cannot_be_deleted_and_deletes_the_others() {
    let Local { provider, state_dir } = local();
    for id in ["a-stuck", "b-gone"] {
        let request = SandboxRequest { ttl: Some(Duration::from_secs(1)), ..SandboxRequest::named(id) };
        let handle = provider.get_or_create(request).await.unwrap();
        while handle.sandbox.execute("true", ExecuteOptions::default()).await.is_ok() {}
    }
    let lock = state_dir.path().join("a-stuck/lock");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();

    let error = provider.cleanup(None).await.unwrap_err();

    assert!(error.to_string().contains("Can't delete the local sandbox 'a-stuck'"), "{error}");
    let left = provider.list(ListOptions::default()).await.unwrap().sandboxes;
    assert_eq!(left.iter().map(|info| info.id.as_str()).collect::<Vec<_>>(), ["a-stuck"]);
    std::fs::remove_dir(&lock).unwrap();
    assert_eq!(provider.cleanup(None).await.unwrap().deleted.len(), 1);
}

pub(super) async fn a_cancelled_creation_leaves_nothing() {
    let Local { provider, state_dir } = local();
    for pause in 0..20 {
        let creation = provider.get_or_create(SandboxRequest::default());
        if let Ok(made) = tokio::time::timeout(Duration::from_millis(pause), creation).await {
            provider.delete(made.unwrap().id.as_str(), true).await.unwrap();
        }
    }
    until_empty(&state_dir).await;
}

pub(super) async fn host_network_reaches_tcp_ports_but_not_abstract_sockets() {
    let config = LocalConfig { network: LocalNetwork::Host, ..LocalConfig::default() };
    let Local { provider, .. } = local_with(config);
    let handle = provider.get_or_create(SandboxRequest::named("networked")).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = python(&format!("socket.create_connection(('127.0.0.1', {port}), 2)"));
    assert_eq!(run(&handle, &format!("{connect} echo $?")).await, "0\n");

    let name = format!("sandpod-provider-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let connect = python(&format!("socket.socket(socket.AF_UNIX).connect('\\0{name}')"));
    let printed = run(&handle, &connect).await;
    assert!(printed.contains("PermissionError"), "{printed}");
    let among_themselves = python(&format!(
        "a, b = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)\n\
         a.bind('\\0{name}-inside')\n\
         a.listen()\n\
         b.connect('\\0{name}-inside')"
    ));
    assert_eq!(run(&handle, &among_themselves).await, "");
    provider.delete("networked", true).await.unwrap();
}

pub(super) async fn info_names_the_enforced_limits_and_cgroup_limits_hold() {
    let config = LocalConfig {
        memory_limit: Some(256 << 20),
        cpu_limit: Some(500),
        task_limit: 200,
        ..LocalConfig::default()
    };
    let Local { provider, state_dir } = local_with(config);
    let handle = provider.get_or_create(SandboxRequest::named("small")).await.unwrap();
    let info = provider.info("small").await.unwrap();
    let held = |resource: &str| info.annotations[&format!("sandpod.dev/limit-{resource}")].as_str();
    assert_eq!((held("tasks"), held("disk")), ("200 (RLIMIT_NPROC)", "none"));
    if is_root() {
        assert_eq!((held("memory"), held("cpu")), ("268435456 bytes (cgroup)", "500m (cgroup)"));
        let stats = handle.sandbox.stats().await.unwrap();
        assert_eq!(stats.memory_limit_bytes, Some(256 << 20));
        // Slowly enough for the guest to measure it.
        let greedy = python(
            "import time\n\
             b = []\n\
             while True:\n    \
                 b.append(bytearray(1 << 20))\n    \
                 time.sleep(0.005)",
        );
        let ended = handle.sandbox.execute(greedy.as_str(), ExecuteOptions::default()).await.unwrap();
        let printed = String::from_utf8_lossy(&ended.output);
        assert!(ended.exit_code == Some(137) && printed.contains("memory"), "{printed}");
        assert_eq!(run(&handle, "echo alive").await, "alive\n");
    } else {
        assert!(held("memory").contains("268435456 bytes"), "{}", held("memory"));
    }
    let cgroups = std::fs::read_to_string(state_dir.path().join("small/cgroups")).unwrap_or_default();
    provider.delete("small", true).await.unwrap();
    for (_, dir) in cgroups.lines().filter_map(|line| line.split_once('=')) {
        assert!(!std::path::Path::new(dir).exists(), "{dir} is left");
    }
}
