//! Policies of local sandboxes: allowed and denied prefixes, virtual roots, denied commands. A test's name begins with the
//! row of docs/acceptance.md that it proves.

use sandpod::{
    Checked, DenyScope, ErrorKind, ExecuteOptions, Operation, Sandbox, SandboxPolicy, SandboxRequest,
    Traversal,
};
use sandpod_client::{Change, Error, ErrorCode, FileChange, GrepOptions, Page, ReadOptions, TreeLimits};

use crate::logs;
use crate::support::{Local, local, refusal, run, texts};

/// A sandbox without a policy of its own, and the same sandbox narrowed by `policy`.
async fn narrowed(policy: SandboxPolicy) -> (Local, Sandbox, Sandbox) {
    let local = local(None);
    let open = local.sandbox().await.sandbox;
    let narrow = open.narrowed(policy).unwrap();
    (local, open, narrow)
}

/// The message about a path that escapes its root.
fn escape<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result.unwrap_err() {
        Error::PathEscapes(message) => message,
        other => panic!("{other}"),
    }
}

/// The message of each operation for a path that escapes its root.
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

pub(super) async fn g1_allowed_prefixes_limit_writes_and_edits_but_not_uploads_or_commands() {
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

pub(super) async fn g1_a_link_out_of_an_allowed_prefix_is_refused() {
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

pub(super) async fn swapping_a_link_during_calls_never_lets_a_write_escape() {
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
    assert!(written > 0, "no write was allowed at all");
}

/// The allowed directory itself is replaced by a link.
pub(super) async fn a_link_in_place_of_an_allowed_prefix_is_refused() {
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

pub(super) async fn g2_g3_a_virtual_root_confines_every_file_call_and_links() {
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
        for refused in escapes(&sandbox, path).await {
            assert_eq!(refused, message);
        }
        assert_eq!(escape(sandbox.glob(path, "/").await), message, "as a pattern");
    }
    assert_eq!(sandbox.glob("**/*.py", "/").await.unwrap().matches[0].path, "/tmp/src/main.py");
    let found = sandbox.grep("x = 1", GrepOptions::default()).await.unwrap();
    assert_eq!(found.matches[0].path, "/tmp/src/main.py", "without a path, grep searches the root");

    run(&sandbox, "ln -s /etc /tmp/etc; ln -s /etc/passwd /tmp/src/passwd").await;
    assert_eq!(refusal(sandbox.read("/etc/passwd", ReadOptions::default()).await).0, ErrorCode::Policy);
    assert_eq!(refusal(sandbox.read("/src/passwd", ReadOptions::default()).await).0, ErrorCode::Policy);
    assert_eq!(refusal(sandbox.list("/etc").await).0, ErrorCode::Policy);
    assert_eq!(refusal(sandbox.upload("/etc/x", std::io::Cursor::new(b"x")).await).0, ErrorCode::Policy);
}

pub(super) async fn g3_prefixes_outside_the_root_refuse_writes_and_nothing_else() {
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

pub(super) async fn g5_a_narrowed_root_confines_every_file_call() {
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
    for message in escapes(&narrow, "/../workspace/outside").await {
        assert_eq!(message, "Path '/../workspace/outside' escapes root_dir '/app'");
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

pub(super) async fn g5_nested_roots_may_be_given_as_virtual_or_real_paths() {
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
    assert_eq!(text(&open, "/app/etc/x").await, "x", "a root outside the present one never widens it");
}

pub(super) async fn g5_a_nested_root_keeps_the_refusals_of_the_outer_policy() {
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
    // The inner root is a link to a directory outside the outer root.
    let link = app.narrowed(rooted("/link")).unwrap();
    assert_eq!(refusal(link.list("/secret").await).0, ErrorCode::Policy);
    assert_eq!(refusal(link.upload_bytes("/secret/x", "x").await).0, ErrorCode::Policy);
    assert_eq!(run(&open, "ls /workspace/secret; cat /app/other/x /app/src/x").await.0, "xx");
    let error = app.narrowed(rooted("src")).unwrap_err();
    assert!(error.to_string().contains("root_dir must be an absolute path, got: src"), "{error}");
}

pub(super) async fn g4_a_permission_error_that_the_policy_allows_is_logged() {
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

pub(super) async fn g5_paths_in_results_are_relative_to_root_dir() {
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
        for message in escapes(&sandbox, path).await {
            assert_eq!(message, format!("Path '{path}' escapes root_dir '/app'"));
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

pub(super) async fn g6_denied_prefixes_and_commands_are_refused_but_reads_are_not() {
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
    assert_eq!(refusal(sandbox.write("/tmp/link/key", "x").await).0, ErrorCode::Policy, "through a link");
    assert_eq!(refusal(sandbox.delete("/tmp").await).0, ErrorCode::Policy, "with its content");
    assert_eq!(text(&sandbox, "/tmp/secret/key").await, "s", "reads are never checked");
    let blocked = |rule: &str| format!("Policy denied: command blocked by policy (rule '{rule}')");
    for (line, rule) in
        [("rm -rf /tmp", "rm -rf"), ("true && /usr/bin/curl x", "curl"), ("sh -c 'cu\\rl x'", "curl")]
    {
        assert_eq!(run(&sandbox, line).await, (blocked(rule), Some(1)), "{line}");
    }
    assert_eq!(refusal(sandbox.start("curl x", ExecuteOptions::default()).await).1, blocked("curl"));
    assert_eq!(run(&sandbox, "echo curl").await, ("curl\n".to_owned(), Some(0)));
}

pub(super) async fn every_rule_of_a_policy_is_bound_for_later_handles() {
    let local = local(None);
    let request = |policy| SandboxRequest { policy: Some(policy), ..SandboxRequest::named("bound") };
    let policy = SandboxPolicy {
        deny_prefixes: texts(&["/tmp/secret"]),
        deny_scope: DenyScope::FileTools,
        deny_commands: texts(&["curl"]),
        ..SandboxPolicy::default()
    };
    local.provider.get_or_create(request(policy)).await.unwrap();
    let denies = async |sandbox: &Sandbox, rule: &str| {
        let (output, exit_code) = run(sandbox, &format!("{rule} x")).await;
        output.contains(&format!("(rule '{rule}')")) && exit_code == Some(1)
    };

    let later = local.provider.reconnect("bound").await.unwrap().sandbox;
    assert!(denies(&later, "curl").await);
    assert_eq!(refusal(later.write("/tmp/secret/x", "x").await).0, ErrorCode::Policy);
    assert_eq!(run(&later, "echo fine").await, ("fine\n".to_owned(), Some(0)));

    let other = SandboxPolicy { deny_commands: texts(&["wget"]), ..SandboxPolicy::default() };
    let narrower = local.provider.get_or_create(request(other)).await.unwrap().sandbox;
    assert!(denies(&narrower, "curl").await && denies(&narrower, "wget").await);
    assert!(!denies(&later, "wget").await, "a later policy binds only its own handle");
    assert_eq!(refusal(narrower.write("/tmp/secret/x", "x").await).0, ErrorCode::Policy);
}

pub(super) async fn reads_are_checked_when_the_policy_includes_them() {
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
    assert_eq!(refusal(bound).0, ErrorCode::Policy, "the policy binds the sandbox itself");
}

pub(super) async fn the_kernel_enforces_allowed_prefixes_and_network_for_commands() {
    let policy = SandboxPolicy {
        allow_prefixes: Some(texts(&["/tmp"])),
        network: Some(sandpod::Network::None),
        policy_required: true,
        ..SandboxPolicy::default()
    };
    let local = local(Some(policy));
    let handle = match local.provider.get_or_create(SandboxRequest::default()).await {
        Ok(handle) => handle,
        // On a kernel that cannot enforce the policy, the creation fails.
        Err(error) => return assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    };
    assert!(handle.enforced.files && handle.enforced.network);
    let sandbox = &handle.sandbox;
    assert_eq!(run(sandbox, "echo a > /tmp/a && cat /tmp/a").await.0, "a\n");
    assert_ne!(run(sandbox, "echo a > /workspace/a").await.1, Some(0));
    assert_eq!(refusal(sandbox.write("/workspace/a", "x").await).0, ErrorCode::Policy);
    let unguarded = sandbox.unguarded().write("/workspace/a", "x").await;
    assert_eq!(refusal(unguarded).0, ErrorCode::Policy, "the policy binds the sandbox itself");
}

pub(super) async fn a_second_handle_with_a_policy_restricts_its_own_commands_only() {
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

pub(super) async fn a_policy_that_cannot_be_enforced_creates_no_sandbox() {
    let local = local(None);
    let policy = SandboxPolicy { deny_prefixes: texts(&["/etc"]), ..SandboxPolicy::default() };
    let request = SandboxRequest { policy: Some(policy), ..SandboxRequest::default() };
    let error = local.provider.get_or_create(request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("file_tools"), "{error}");
}
