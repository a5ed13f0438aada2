//! Policy and audit of local sandboxes: what a caller may do, who hears of it, and what never shows in logs. The names begin
//! with the rows of the acceptance list that they show.

mod logs;

use std::sync::{Arc, Mutex};

use sandpod::{
    Audit, AuditEvent, AuditFile, AuditOptions, Checked, CommandRedaction, Decision, DenyScope, ErrorKind,
    ExecuteOptions, GuestProgram, LocalConfig, Operation, Phase, Provider, Sandbox, SandboxHandle,
    SandboxPolicy, SandboxRequest, Traversal, verify_audit,
};
use sandpod_client::{Change, Error, ErrorCode, FileChange, GrepOptions, Page, ReadOptions, TreeLimits};

/// A provider whose sandboxes end with the test.
struct Local {
    provider: Provider,
    _state_dir: tempfile::TempDir,
}

fn local(policy: Option<SandboxPolicy>) -> Local {
    let state_dir = tempfile::tempdir().unwrap();
    let program = GuestProgram { path: env!("CARGO_BIN_EXE_sandpod").into(), args: vec!["guest".to_owned()] };
    let config = LocalConfig {
        program: Some(program),
        state_dir: Some(state_dir.path().to_owned()),
        ends_with_process: true,
        policy,
        ..LocalConfig::default()
    };
    Local { provider: Provider::local(&config).unwrap(), _state_dir: state_dir }
}

impl Local {
    async fn sandbox(&self) -> SandboxHandle {
        self.provider.get_or_create(SandboxRequest::default()).await.unwrap()
    }
}

/// A sandbox without a policy of its own, and the same under one.
async fn narrowed(policy: SandboxPolicy) -> (Local, Sandbox, Sandbox) {
    let local = local(None);
    let open = local.sandbox().await.sandbox;
    let narrow = open.narrowed(policy).unwrap();
    (local, open, narrow)
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

async fn run(sandbox: &Sandbox, line: &str) -> (String, Option<i32>) {
    let executed = sandbox.execute(line, ExecuteOptions::default()).await.unwrap();
    (String::from_utf8_lossy(&executed.output).into_owned(), executed.exit_code)
}

/// The code and the sentence of what was refused.
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (ErrorCode, String) {
    match result.unwrap_err() {
        Error::Failure(failure) => (failure.code(), failure.message().to_owned()),
        other => panic!("{other}"),
    }
}

/// The sentence about a path that leads out of its root.
fn escape<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::PathEscapes(message) => message,
        other => panic!("{other}"),
    }
}

/// What each operation on a path says of one that leads out of its root.
async fn escapes(sandbox: &Sandbox, path: &str) -> Vec<String> {
    let local = tempfile::tempdir().unwrap();
    let change = FileChange { path: path.to_owned(), expected: None, change: Change::Delete };
    let in_root = GrepOptions { root: Some(path.to_owned()), ..GrepOptions::default() };
    vec![
        escape(sandbox.stat(path, true).await),
        escape(sandbox.list(path).await),
        escape(sandbox.read(path, ReadOptions::default()).await),
        escape(sandbox.read_range(path, 0, 1).await),
        escape(sandbox.read_bytes(path, 1).await),
        escape(sandbox.write(path, "x").await),
        escape(sandbox.edit(path, "a", "b", false).await),
        escape(sandbox.apply_edits(vec![change]).await),
        escape(sandbox.delete(path).await),
        escape(sandbox.move_path(path, "/to", false).await),
        escape(sandbox.move_path("/from", path, false).await),
        escape(sandbox.upload(path, std::io::Cursor::new(b"x")).await),
        escape(sandbox.upload_bytes(path, "x").await),
        escape(sandbox.download(path, 1).await),
        escape(sandbox.download_to(path, Vec::new()).await),
        escape(sandbox.upload_tree(local.path(), path, |_| ()).await),
        escape(sandbox.download_tree(path, local.path(), TreeLimits::default(), |_| ()).await),
        escape(sandbox.glob("*", path).await),
        escape(sandbox.grep("x", in_root).await),
    ]
}

fn rooted(dir: &str) -> SandboxPolicy {
    SandboxPolicy { root_dir: Some(dir.to_owned()), ..SandboxPolicy::default() }
}

fn paths(infos: &[sandpod_client::FileInfo]) -> Vec<&str> {
    infos.iter().map(|info| info.path.as_str()).collect()
}

async fn text(sandbox: &Sandbox, path: &str) -> String {
    match sandbox.read(path, ReadOptions::default()).await.unwrap() {
        Page::Text(page) => page.content,
        Page::Binary(_) => panic!("{path} is no text"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_allowed_prefixes_bind_writes_and_edits_and_neither_uploads_nor_commands() {
    let policy = SandboxPolicy {
        allow_prefixes: Some(texts(&["/tmp"])),
        checked: Checked::These([Operation::Write, Operation::Edit, Operation::Delete].into()),
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let sandbox = local.sandbox().await.sandbox;
    sandbox.write("/tmp/a", "one").await.unwrap();
    sandbox.edit("/tmp/a", "one", "two", false).await.unwrap();
    let message = "Path '/workspace/a' is not under any allowed prefix: ('/tmp/',)".to_owned();
    assert_eq!(refusal(sandbox.write("/workspace/a", "x").await), (ErrorCode::Policy, message));
    assert_eq!(refusal(sandbox.write("/tmp/x/../../workspace/evil", "x").await).0, ErrorCode::Policy);
    assert_eq!(refusal(sandbox.edit("/tmpfoo", "a", "b", false).await).0, ErrorCode::Policy);
    assert_eq!(refusal(sandbox.delete("/workspace").await).0, ErrorCode::Policy);
    sandbox.upload("/workspace/up", std::io::Cursor::new(b"x")).await.unwrap();
    sandbox.upload_bytes("/workspace/up2", "x").await.unwrap();
    assert_eq!(
        run(&sandbox, "echo y > /workspace/by-command; ls /workspace").await.0,
        "by-command\nup\nup2\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_a_link_out_of_an_allowed_prefix_leads_nowhere() {
    let policy = SandboxPolicy {
        allow_prefixes: Some(texts(&["/tmp"])),
        checked: Checked::These([Operation::Write, Operation::Edit].into()),
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let sandbox = local.sandbox().await.sandbox;
    run(&sandbox, "echo kept > /workspace/f; ln -s /workspace /tmp/dir; ln -s /workspace/f /tmp/file").await;
    for path in ["/tmp/dir/new", "/tmp/file", "/tmp/dir/../workspace/f"] {
        assert_eq!(refusal(sandbox.write(path, "changed").await).0, ErrorCode::Policy, "{path}");
    }
    assert_eq!(refusal(sandbox.edit("/tmp/file", "kept", "changed", false).await).0, ErrorCode::Policy);
    assert_eq!(run(&sandbox, "cat /workspace/f; ls /workspace").await.0, "kept\nf\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_swapped_while_calls_run_never_lets_one_through() {
    let policy = SandboxPolicy {
        allow_prefixes: Some(texts(&["/tmp/in"])),
        checked: Checked::These([Operation::Write].into()),
        ..SandboxPolicy::default()
    };
    let (_local, open, narrow) = narrowed(policy).await;
    run(&open, "mkdir -p /tmp/in/real /workspace/out").await;
    let swap = "while :; do ln -sfn /workspace/out /tmp/in/dir; ln -sfn /tmp/in/real /tmp/in/dir; done";
    let swapping = open.start(swap, ExecuteOptions::default()).await.unwrap();
    let mut written = 0;
    for number in 0..400 {
        written += u32::from(narrow.write(&format!("/tmp/in/dir/{number}"), "x").await.is_ok());
    }
    swapping.signal(9).await.unwrap();
    assert_eq!(run(&open, "ls /workspace/out").await.0, "");
    assert!(written > 0, "none of them was allowed either");
}

/// The allowed directory itself is replaced by a link.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_the_place_of_an_allowed_prefix_opens_nothing() {
    let allow = SandboxPolicy {
        allow_prefixes: Some(texts(&["/tmp/in"])),
        checked: Checked::These([Operation::Write].into()),
        ..SandboxPolicy::default()
    };
    let (_local, open, narrow) = narrowed(allow).await;
    run(&open, "ln -s /workspace /tmp/in").await;
    assert_eq!(refusal(narrow.write("/tmp/in/x", "x").await).0, ErrorCode::Policy);
    assert_eq!(run(&open, "ls /workspace").await.0, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_g3_a_virtual_root_holds_every_file_call_and_links_do_not_escape_it() {
    let policy = SandboxPolicy {
        root_dir: Some("/tmp".to_owned()),
        show_real_paths: true,
        accept_real_paths: true,
        traversal: Traversal::Refuse,
        allow_prefixes: Some(texts(&["/tmp/src"])),
        checked: Checked::These([Operation::Write, Operation::Edit].into()),
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let sandbox = local.sandbox().await.sandbox;
    sandbox.write("/src/main.py", "x = 1\n").await.unwrap();
    assert_eq!(text(&sandbox, "/tmp/src/main.py").await, text(&sandbox, "/src/main.py").await);
    let path = "/other";
    let message = format!("Path '{path}' is not under any allowed prefix: ('/tmp/src/',)");
    assert_eq!(refusal(sandbox.write(path, "x").await), (ErrorCode::Policy, message));
    for path in ["..", "/a/../b", "~/x", "../../etc/passwd"] {
        let message = format!("Path traversal not allowed: '{path}'");
        for said in escapes(&sandbox, path).await {
            assert_eq!(said, message);
        }
        assert_eq!(escape(sandbox.glob(path, "/").await), message, "as a pattern");
    }
    assert_eq!(sandbox.glob("**/*.py", "/").await.unwrap().matches[0].path, "/tmp/src/main.py");
    let found = sandbox.grep("x = 1", GrepOptions::default()).await.unwrap();
    assert_eq!(found.matches[0].path, "/tmp/src/main.py", "without a path it is the root");

    run(&sandbox, "ln -s /etc /tmp/etc; ln -s /etc/passwd /tmp/src/passwd").await;
    assert_eq!(refusal(sandbox.read("/etc/passwd", ReadOptions::default()).await).0, ErrorCode::Policy);
    assert_eq!(refusal(sandbox.read("/src/passwd", ReadOptions::default()).await).0, ErrorCode::Policy);
    assert_eq!(refusal(sandbox.list("/etc").await).0, ErrorCode::Policy);
    assert_eq!(refusal(sandbox.upload("/etc/x", std::io::Cursor::new(b"x")).await).0, ErrorCode::Policy);
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_prefixes_outside_the_root_refuse_each_write_and_nothing_else() {
    let policy = SandboxPolicy {
        allow_prefixes: Some(texts(&["/workspace"])),
        checked: Checked::These([Operation::Write, Operation::Edit, Operation::Delete].into()),
        ..rooted("/tmp")
    };
    let local = local(Some(policy));
    let sandbox = local.sandbox().await.sandbox;
    sandbox.upload_bytes("/a", "one").await.unwrap();
    let message = "Path '/a' is not under any allowed prefix: ('/workspace/',)".to_owned();
    let refused = (ErrorCode::Policy, message);
    assert_eq!(refusal(sandbox.write("/a", "x").await), refused);
    assert_eq!(refusal(sandbox.edit("/a", "one", "two", false).await), refused);
    assert_eq!(refusal(sandbox.delete("/a").await), refused);
    assert_eq!(text(&sandbox, "/a").await, "one");
    assert_eq!(run(&sandbox, "cat /tmp/a; echo x > /workspace/x").await, ("one".to_owned(), Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_a_handle_is_narrowed_to_a_root_that_holds_every_file_call() {
    let (_local, open, narrow) = narrowed(rooted("/app")).await;
    open.write("/workspace/outside", "needle\n").await.unwrap();
    narrow.write("/dir/file.txt", "needle\n").await.unwrap();
    assert_eq!(run(&narrow, "cat /app/dir/file.txt").await.0, "needle\n", "commands see real paths");
    assert_eq!(text(&open, "/app/dir/file.txt").await, text(&narrow, "/dir/file.txt").await);
    assert_eq!(paths(&narrow.list("/").await.unwrap()), ["/dir"]);
    assert_eq!(paths(&narrow.glob("**/*", "/").await.unwrap().matches), ["/dir/file.txt"]);
    let found = narrow.grep("needle", GrepOptions::default()).await.unwrap().matches;
    assert_eq!(found.iter().map(|line| line.path.as_str()).collect::<Vec<_>>(), ["/dir/file.txt"]);
    let (_, message) = refusal(narrow.read("/none", ReadOptions::default()).await);
    assert!(message.contains("'/none'") && !message.contains("/app"), "{message}");
    for said in escapes(&narrow, "/../workspace/outside").await {
        assert_eq!(said, "Path '/../workspace/outside' escapes root_dir '/app'");
    }
    let target = tempfile::tempdir().unwrap();
    narrow.download_tree("/dir", target.path(), TreeLimits::default(), |_| ()).await.unwrap();
    narrow.upload_tree(target.path(), "/copy", |_| ()).await.unwrap();
    assert_eq!(run(&open, "cat /app/copy/file.txt").await.0, "needle\n");

    run(&open, "ln -s /workspace /app/out").await;
    assert_eq!(refusal(narrow.read("/out/outside", ReadOptions::default()).await).0, ErrorCode::Policy);
    assert_eq!(refusal(narrow.upload_bytes("/out/outside", "x").await).0, ErrorCode::Policy);
    assert_eq!(refusal(narrow.delete("/out/outside").await).0, ErrorCode::Policy);
    assert_eq!(refusal(narrow.upload_tree(target.path(), "/out", |_| ()).await).0, ErrorCode::Policy);
    assert_eq!(run(&open, "ls /workspace").await.0, "outside\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_roots_are_within_each_other_whichever_way_they_are_named() {
    let (_local, open, app) = narrowed(rooted("/app")).await;
    open.write("/app/src/lib/a", "one").await.unwrap();
    open.write("/app/b", "outside").await.unwrap();
    for named in ["/src", "/app/src"] {
        let src = app.narrowed(rooted(named)).unwrap();
        assert_eq!(text(&src, "/lib/a").await, "one", "{named}");
        assert_eq!(paths(&src.list("/").await.unwrap()), ["/lib"]);
        assert_eq!(escape(src.stat("/../b", true).await), "Path '/../b' escapes root_dir '/app/src'");
        let lib = src.narrowed(rooted("/lib")).unwrap();
        assert_eq!(paths(&lib.glob("*", "/").await.unwrap().matches), ["/a"]);
        lib.write("/a", "one").await.unwrap();
    }
    let same = app.narrowed(rooted("/app")).unwrap();
    assert_eq!(text(&same, "/b").await, "outside");
    let elsewhere = app.narrowed(rooted("/workspace/../../etc")).unwrap();
    elsewhere.write("/x", "x").await.unwrap();
    assert_eq!(
        text(&open, "/app/etc/x").await,
        "x",
        "a root that is not below the present one never widens it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_a_root_within_another_policy_keeps_what_that_refuses() {
    let outer = SandboxPolicy {
        traversal: Traversal::Refuse,
        allow_prefixes: Some(texts(&["/app/src"])),
        checked: Checked::These([Operation::Write].into()),
        ..rooted("/app")
    };
    let (_local, open, app) = narrowed(outer).await;
    run(&open, "mkdir -p /app/src /app/other /workspace/secret; ln -s /workspace /app/link").await;
    let other = app.narrowed(rooted("/other")).unwrap();
    let message = "Path '/x' is not under any allowed prefix: ('/app/src/',)".to_owned();
    assert_eq!(refusal(other.write("/x", "x").await), (ErrorCode::Policy, message));
    other.upload_bytes("/x", "x").await.unwrap();
    let src = app.narrowed(rooted("/src")).unwrap();
    src.write("/x", "x").await.unwrap();
    assert_eq!(escape(src.write("/a/../x", "x").await), "Path traversal not allowed: '/a/../x'");
    // The directory of the inner root is a link that leads out of the outer one.
    let link = app.narrowed(rooted("/link")).unwrap();
    assert_eq!(refusal(link.list("/secret").await).0, ErrorCode::Policy);
    assert_eq!(refusal(link.upload_bytes("/secret/x", "x").await).0, ErrorCode::Policy);
    assert_eq!(run(&open, "ls /workspace/secret; cat /app/other/x /app/src/x").await.0, "xx");
    let error = app.narrowed(rooted("src")).unwrap_err();
    assert!(error.to_string().contains("root_dir must be an absolute path, got: src"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_that_the_policy_allows_what_the_user_may_not_is_logged() {
    let warnings = logs::capture();
    let policy = SandboxPolicy { root_dir: Some("/workspace".to_owned()), ..SandboxPolicy::default() };
    let local = local(Some(policy));
    let sandbox = local.sandbox().await.sandbox;
    run(&sandbox, "mkdir -m 555 /workspace/g4").await;
    assert_eq!(refusal(sandbox.write("/g4/file", "x").await).0, ErrorCode::PermissionDenied);
    let expected = "write: container permission denied for path='/g4/file' (resolved='/workspace/g4/file'). The sandbox \
                    policy (allow_prefixes) permits this path, but the container's OS user cannot write to it.";
    assert!(warnings.all().iter().any(|line| line.contains(expected)), "{:?}", warnings.all());
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_a_root_dir_is_all_that_callers_see_and_paths_come_back_as_they_were_given() {
    let local = local(Some(SandboxPolicy { root_dir: Some("/app".to_owned()), ..SandboxPolicy::default() }));
    let sandbox = local.sandbox().await.sandbox;
    sandbox.write("/dir/file.txt", "needle\n").await.unwrap();
    assert_eq!(run(&sandbox, "cat /app/dir/file.txt").await.0, "needle\n");
    assert_eq!(paths(&sandbox.list("/").await.unwrap()), ["/dir"]);
    assert_eq!(paths(&sandbox.glob("**/*", "/").await.unwrap().matches), ["/dir/file.txt"]);
    assert_eq!(paths(&sandbox.glob("*", "dir").await.unwrap().matches), ["/dir/file.txt"]);
    assert_eq!(
        sandbox.grep("needle", GrepOptions::default()).await.unwrap().matches[0].path,
        "/dir/file.txt"
    );
    assert_eq!(sandbox.stat("dir/file.txt", true).await.unwrap().path, "/dir/file.txt");
    let (code, message) = refusal(sandbox.read("/none", ReadOptions::default()).await);
    assert!(
        code == ErrorCode::NotFound && message.contains("'/none'") && !message.contains("/app"),
        "{message}"
    );
    for path in ["..", "/a/../../etc/x"] {
        for said in escapes(&sandbox, path).await {
            assert_eq!(said, format!("Path '{path}' escapes root_dir '/app'"));
        }
    }
    run(&sandbox, "ln -s / /app/out; ln -s ../.. /app/dir/up").await;
    for path in ["/out/etc/passwd", "/dir/up/etc/passwd", "/out/../etc/passwd"] {
        assert_eq!(refusal(sandbox.read(path, ReadOptions::default()).await).0, ErrorCode::Policy, "{path}");
    }
    let change = |path: &str, change| FileChange { path: path.to_owned(), expected: None, change };
    let applied = sandbox.apply_edits(vec![change("/new", Change::Content("x".into()))]).await.unwrap();
    assert_eq!(applied[0].path, "/new");
    assert_eq!(
        refusal(sandbox.apply_edits(vec![change("/out/tmp/x", Change::Delete)]).await).0,
        ErrorCode::Policy
    );
    assert_eq!(refusal(sandbox.move_path("/new", "/out/tmp/new", false).await).0, ErrorCode::Policy);
    sandbox.move_path("/new", "/moved", false).await.unwrap();
    let target = tempfile::tempdir().unwrap();
    sandbox.download_tree("/dir", target.path(), TreeLimits::default(), |_| ()).await.unwrap();
    assert!(target.path().join("file.txt").exists());
    assert_eq!(refusal(sandbox.upload_tree(target.path(), "/out/tmp", |_| ()).await).0, ErrorCode::Policy);
}

#[tokio::test(flavor = "multi_thread")]
async fn g6_denied_prefixes_and_commands_are_refused_in_these_words_and_reads_are_not() {
    let policy = SandboxPolicy {
        deny_prefixes: texts(&["/etc", "/tmp/secret"]),
        deny_scope: DenyScope::FileTools,
        deny_texts: texts(&["rm -rf"]),
        deny_commands: texts(&["curl"]),
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let sandbox = local.sandbox().await.sandbox;
    let denied = |noun: &str, path: &str| {
        (ErrorCode::Policy, format!("Policy denied: {noun} not allowed under '{path}'"))
    };
    assert_eq!(refusal(sandbox.write("/etc/x", "x").await), denied("writes", "/etc/x"));
    assert_eq!(refusal(sandbox.write("/app/../etc/x", "x").await), denied("writes", "/app/../etc/x"));
    assert_eq!(refusal(sandbox.edit("/etc/passwd", "a", "b", false).await), denied("edits", "/etc/passwd"));
    assert_eq!(
        refusal(sandbox.upload("/tmp/secret/x", std::io::Cursor::new(b"x")).await),
        denied("writes", "/tmp/secret/x")
    );
    run(&sandbox, "mkdir /tmp/secret; echo s > /tmp/secret/key; ln -s /tmp/secret /tmp/link").await;
    assert_eq!(refusal(sandbox.write("/tmp/link/key", "x").await).0, ErrorCode::Policy, "by a link");
    assert_eq!(refusal(sandbox.delete("/tmp").await).0, ErrorCode::Policy, "with all that is in it");
    assert_eq!(text(&sandbox, "/tmp/secret/key").await, "s", "reads are never checked");
    let blocked = ("Policy denied: command blocked by policy".to_owned(), Some(1));
    for line in ["rm -rf /tmp", "true && /usr/bin/curl x", "sh -c 'cu\\rl x'"] {
        assert_eq!(run(&sandbox, line).await, blocked, "{line}");
    }
    assert_eq!(refusal(sandbox.start("curl x", ExecuteOptions::default()).await).1, blocked.0);
    assert_eq!(run(&sandbox, "echo curl").await, ("curl\n".to_owned(), Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_are_checked_when_asked_for() {
    let policy = SandboxPolicy {
        deny_prefixes: texts(&["/tmp/secret"]),
        deny_scope: DenyScope::FileTools,
        checked: Checked::All,
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let sandbox = local.sandbox().await.sandbox;
    run(&sandbox, "mkdir /tmp/secret; echo needle > /tmp/secret/key; ln -s /tmp/secret/key /tmp/link").await;
    let message = "Policy denied: reads not allowed under '/tmp/secret/key'".to_owned();
    assert_eq!(
        refusal(sandbox.read("/tmp/secret/key", ReadOptions::default()).await),
        (ErrorCode::Policy, message)
    );
    assert_eq!(refusal(sandbox.download("/tmp/link", 100).await).0, ErrorCode::Policy);
    let options = GrepOptions { root: Some("/tmp".to_owned()), ..GrepOptions::default() };
    assert_eq!(sandbox.grep("needle", options).await.unwrap().matches, []);
    let bound = sandbox.unguarded().read("/tmp/secret/key", ReadOptions::default()).await;
    assert_eq!(refusal(bound).0, ErrorCode::Policy, "the sandbox itself is bound to it");
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_prefixes_and_the_network_bind_commands_by_the_kernel() {
    let policy = SandboxPolicy {
        allow_prefixes: Some(texts(&["/tmp"])),
        network: Some(sandpod::Network::None),
        policy_required: true,
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let handle = match local.provider.get_or_create(SandboxRequest::default()).await {
        Ok(handle) => handle,
        // A kernel that can't promise it gives no sandbox.
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    };
    assert!(handle.enforced.files && handle.enforced.network);
    let sandbox = &handle.sandbox;
    assert_eq!(run(sandbox, "echo a > /tmp/a && cat /tmp/a").await.0, "a\n");
    assert_ne!(run(sandbox, "echo a > /workspace/a").await.1, Some(0));
    assert_eq!(refusal(sandbox.write("/workspace/a", "x").await).0, ErrorCode::Policy);
    let unguarded = sandbox.unguarded().write("/workspace/a", "x").await;
    assert_eq!(refusal(unguarded).0, ErrorCode::Policy, "the sandbox itself is bound to it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_on_a_sandbox_that_is_bound_to_another_policy_narrows_its_own_commands() {
    let local = local(None);
    let open = local.provider.get_or_create(SandboxRequest::named("shared")).await.unwrap();
    let policy = SandboxPolicy { allow_prefixes: Some(texts(&["/tmp"])), ..SandboxPolicy::default() };
    let request = SandboxRequest { policy: Some(policy), ..SandboxRequest::named("shared") };
    let narrow = local.provider.get_or_create(request).await.unwrap();
    if open.enforced.files {
        assert_ne!(run(&narrow.sandbox, "echo a > /workspace/a").await.1, Some(0));
    }
    assert_eq!(refusal(narrow.sandbox.write("/workspace/a", "x").await).0, ErrorCode::Policy);
    assert_eq!(run(&open.sandbox, "echo a > /workspace/a").await.1, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_can_not_be_kept_makes_no_sandbox() {
    let local = local(None);
    let policy = SandboxPolicy { deny_prefixes: texts(&["/etc"]), ..SandboxPolicy::default() };
    let request = SandboxRequest { policy: Some(policy), ..SandboxRequest::default() };
    let error = local.provider.get_or_create(request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("file_tools"), "{error}");
}

type Heard = Arc<Mutex<Vec<AuditEvent>>>;

/// An audit, and what it heard.
fn hearing(options: AuditOptions) -> (Audit, Heard) {
    let heard = Heard::default();
    let sink = {
        let heard = heard.clone();
        move |events: &[AuditEvent]| {
            heard.lock().unwrap().extend_from_slice(events);
            Ok(())
        }
    };
    (Audit::new(sink, options).unwrap(), heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn g7_every_operation_is_told_before_and_after_allowed_or_denied() {
    let policy = SandboxPolicy {
        deny_prefixes: texts(&["/etc"]),
        deny_scope: DenyScope::FileTools,
        deny_commands: texts(&["curl"]),
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let (audit, heard) = hearing(AuditOptions::default());
    let provider = local.provider.clone().with_audit(audit.clone());
    let handle = provider.get_or_create(SandboxRequest::default()).await.unwrap();
    let sandbox = &handle.sandbox;
    sandbox.write("/tmp/a", "12345").await.unwrap();
    sandbox.edit("/tmp/a", "1", "2", true).await.unwrap();
    sandbox.upload_bytes("/tmp/up", "123").await.unwrap();
    sandbox.download("/tmp/up", 100).await.unwrap();
    sandbox.read_bytes("/tmp/a", 100).await.unwrap();
    run(sandbox, "exit 3").await;
    run(sandbox, "curl x").await;
    refusal(sandbox.write("/etc/x", "x").await);
    refusal(sandbox.read("/none", ReadOptions::default()).await);
    sandbox.start("sleep 100", ExecuteOptions::default()).await.unwrap().signal(9).await.unwrap();
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(300), run(sandbox, "sleep 100"));
    waiting.await.unwrap_err();
    provider.delete(handle.id.as_str(), true).await.unwrap();
    audit.flush().await;

    let heard = heard.lock().unwrap();
    let of = |operation: Operation, target: &str| -> Vec<AuditEvent> {
        let is_it = |event: &&AuditEvent| {
            event.operation == operation
                && (target.is_empty() || event.targets.iter().any(|one| one == target))
        };
        heard.iter().filter(is_it).cloned().collect()
    };
    let intents: Vec<_> = heard.iter().filter(|event| event.phase == Phase::Intent).collect();
    for intent in &intents {
        let both: Vec<_> = heard.iter().filter(|event| event.id == intent.id).collect();
        assert_eq!(both.len(), 2, "{intent:?}");
        assert_eq!((both[1].phase, both[1].duration_us.is_some()), (Phase::Outcome, true));
    }
    assert_eq!(of(Operation::Write, "/tmp/a")[0].size, Some(5));
    assert_eq!(of(Operation::Edit, "/tmp/a")[0].replace_all, Some(true));
    assert_eq!(
        (of(Operation::Upload, "/tmp/up")[0].size, of(Operation::Write, "/tmp/up").len()),
        (Some(3), 0)
    );
    assert_eq!((of(Operation::Download, "/tmp/up").len(), of(Operation::Read, "/tmp/up").len()), (2, 0));
    assert_eq!((of(Operation::Download, "/tmp/a").len(), of(Operation::Read, "/tmp/a").len()), (0, 2));
    assert_eq!(of(Operation::Execute, "exit 3")[1].exit_code, Some(3));
    let [intent, outcome] = &of(Operation::Execute, "curl x")[..] else { panic!("two of them") };
    assert_eq!((intent.decision, outcome.decision), (Decision::Denied, Decision::Denied));
    assert_eq!(intent.reason.as_deref(), Some("Policy denied: command blocked by policy"));
    assert_eq!(of(Operation::Write, "/etc/x")[1].decision, Decision::Denied);
    assert_eq!(of(Operation::Read, "/none")[1].error.as_deref(), Some("not_found"));
    assert_eq!(of(Operation::Execute, "sleep 100")[1].error.as_deref(), Some("cancelled"));
    assert_eq!(of(Operation::Control, "").len(), 2);
    assert_eq!(of(Operation::Create, "")[1].sandbox, handle.id.as_str());
    assert_eq!(of(Operation::Remove, "")[0].sandbox, handle.id.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn g7_a_strict_audit_that_can_not_be_told_lets_nothing_happen_and_a_lenient_one_lets_all() {
    let warnings = logs::capture();
    let local = local(None);
    let failing = |_: &[AuditEvent]| Err("g7-marker".to_owned());
    let open = local.provider.get_or_create(SandboxRequest::named("x")).await.unwrap();

    let lenient = Audit::new(failing, AuditOptions::default()).unwrap();
    let handle = local.provider.clone().with_audit(lenient.clone()).reconnect("x").await.unwrap();
    handle.sandbox.write("/tmp/lenient", "x").await.unwrap();
    lenient.flush().await;
    let expected = "Audit log callback failed (continuing): g7-marker";
    assert!(warnings.all().iter().any(|line| line.contains(expected)), "{:?}", warnings.all());

    let fails = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sink = {
        let fails = fails.clone();
        move |_: &[AuditEvent]| {
            if fails.load(std::sync::atomic::Ordering::SeqCst) { Err("disk full".to_owned()) } else { Ok(()) }
        }
    };
    let strict = Audit::new(sink, AuditOptions { strict: true, ..AuditOptions::default() }).unwrap();
    let provider = local.provider.clone().with_audit(strict);
    let handle = provider.reconnect("x").await.unwrap();
    handle.sandbox.write("/tmp/told", "x").await.unwrap();
    fails.store(true, std::sync::atomic::Ordering::SeqCst);
    let error = handle.sandbox.write("/tmp/untold", "x").await.unwrap_err().to_string();
    assert!(error.contains("nothing was done") && error.contains("disk full"), "{error}");
    handle.sandbox.execute("touch /tmp/untold", ExecuteOptions::default()).await.unwrap_err();
    provider.delete("x", true).await.unwrap_err();
    assert_eq!(run(&open.sandbox, "ls /tmp").await.0, "lenient\ntold\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_file_holds_a_session_and_its_chain() {
    let local = local(None);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let options = AuditOptions { strict: true, commands: CommandRedaction::Hash, ..AuditOptions::default() };
    let audit = Audit::new(AuditFile::open(&path).unwrap(), options).unwrap();
    let provider = local.provider.clone().with_audit(audit.clone());
    let handle = provider.get_or_create(SandboxRequest::default()).await.unwrap();
    run(&handle.sandbox, "echo secret-word").await;
    handle.sandbox.write("/tmp/a", "secret-content").await.unwrap();
    audit.flush().await;
    assert_eq!(verify_audit(&path, None).unwrap().lines, 6);
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(kept.contains("sha256:") && kept.contains("/tmp/a"), "{kept}");
    assert!(!kept.contains("secret-word") && !kept.contains("secret-content"), "{kept}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_content_or_environment_is_in_logs_above_debug() {
    let captured = logs::capture();
    let local = local(Some(SandboxPolicy { deny_commands: texts(&["curl"]), ..SandboxPolicy::default() }));
    let env = [("TOKEN".to_owned(), "MARKER-env".to_owned())].into();
    let request = SandboxRequest { env, ..SandboxRequest::named("quiet") };
    let handle = local.provider.get_or_create(request).await.unwrap();
    let sandbox = &handle.sandbox;
    run(sandbox, "echo MARKER-command MARKER-$TOKEN; exit 3").await;
    run(sandbox, "curl MARKER-denied").await;
    sandbox.write("/tmp/a", "MARKER-content").await.unwrap();
    sandbox.edit("/tmp/a", "MARKER-content", "MARKER-edited", false).await.unwrap();
    refusal(sandbox.edit("/tmp/a", "MARKER-missing", "x", false).await);
    sandbox.grep("MARKER-pattern", GrepOptions::default()).await.unwrap();
    let process = sandbox.start("cat MARKER-started", ExecuteOptions::default()).await.unwrap();
    process.wait().await.unwrap();
    let argv = vec!["MARKER-program".to_owned()];
    sandbox.execute(argv, ExecuteOptions::default()).await.unwrap();
    local.provider.delete("quiet", true).await.unwrap();
    run_after_delete(sandbox).await;

    let all = captured.all();
    assert!(all.iter().any(|line| line.contains("execute")), "spans of operations are captured: {all:?}");
    let shown: Vec<_> = all.iter().filter(|line| line.contains("MARKER")).collect();
    assert!(shown.is_empty(), "{shown:?}");
}

async fn run_after_delete(sandbox: &Sandbox) {
    sandbox.execute("echo MARKER-late", ExecuteOptions::default()).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_are_counted_with_their_times_and_streams() {
    let local = local(None);
    let before = local.provider.metrics();
    let handle = local.sandbox().await;
    run(&handle.sandbox, "sleep 0.05").await;
    handle.sandbox.upload_bytes("/tmp/up", "x").await.unwrap();
    refusal(handle.sandbox.read("/none", ReadOptions::default()).await);
    let after = local.provider.metrics();
    let count =
        |metrics: &sandpod::Metrics, name: &str| metrics.operations.get(name).copied().unwrap_or_default();
    assert!(count(&after, "execute").count > count(&before, "execute").count);
    assert!(
        count(&after, "execute").total
            >= count(&before, "execute").total + std::time::Duration::from_millis(50)
    );
    assert!(count(&after, "read").failed > count(&before, "read").failed);
    assert!(count(&after, "create").count > count(&before, "create").count);
    assert!(count(&after, "upload").count > count(&before, "upload").count);
    assert!(after.streams.open > 0 && after.streams.opened > before.streams.opened);
}
