//! Behaviour of a sandbox over each runtime, and the capabilities that it refuses by name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sandpod_client::{
    Binding, Error, ErrorCode, ExecuteOptions, GrepOptions, Page, PathBounds, Policy, ReadOptions, Sandbox,
    StartOptions,
};
use sandpod_dialect::{Dialect, RuntimeKind};

use crate::runtime::{Ports, Runtime};
use crate::stock_python::Version;

/// Returns a duration that no other process on this machine sleeps for.
fn seconds() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1000);
    format!("{}.{}", NEXT.fetch_add(1, Ordering::Relaxed), std::process::id())
}

fn within(seconds: u64) -> ExecuteOptions {
    ExecuteOptions { timeout: Some(Duration::from_secs(seconds)), ..ExecuteOptions::default() }
}

async fn said(sandbox: &Sandbox, line: &str) -> String {
    let executed = sandbox.execute(line, within(20)).await.unwrap();
    String::from_utf8_lossy(&executed.output).into_owned()
}

/// Returns the number of processes that sleep for this many seconds.
async fn sleepers(sandbox: &Sandbox, seconds: &str) -> usize {
    let count = format!(
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2> /dev/null | grep -cxF 'sleep {seconds} '"
    );
    said(sandbox, &count).await.trim().parse().unwrap()
}

fn code(error: Error) -> ErrorCode {
    match error {
        Error::Failure(failure) => failure.code(),
        error => panic!("{error}"),
    }
}

async fn commands_run(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    assert_eq!(
        said(sandbox, "printf '%s' \"$GREETING\" | tr a-z A-Z; pwd").await,
        format!("IT'S \"ME\"\n{}\n", runtime.path("").trim_end_matches('/'))
    );
    let failed = sandbox.execute("echo out; echo err >&2; printf '\\377'; exit 7", within(20)).await.unwrap();
    assert_eq!((&failed.output[..], failed.exit_code), (&b"out\nerr\n\xff"[..], Some(7)));
    let argv = sandpod_client::Command::Argv(vec![
        "printf".to_owned(),
        "%s|".to_owned(),
        "a b".to_owned(),
        "$x".to_owned(),
    ]);
    assert_eq!(&sandbox.execute(argv, within(20)).await.unwrap().output[..], b"a b|$x|");
    let long = format!("# {}\necho long", "x".repeat(200_000));
    assert_eq!(said(sandbox, &long).await, "long\n");
    let mut options = within(20);
    options.max_output_bytes = Some(1000);
    let cut = sandbox.execute("head -c 5000 /dev/zero", options).await.unwrap();
    assert_eq!((cut.output.len(), cut.truncated), (1000, true));
    let large = sandbox.execute("head -c 900000 /dev/zero", within(20)).await.unwrap();
    assert_eq!((large.output.len(), large.truncated), (900_000, false));
}

/// The command measures the stored part of its own output.
async fn keeps_no_output_beyond_the_limit(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let line = "head -c 20000000 /dev/zero | tr '\\0' x; cat ../app/.sandpod/*.output 2> /dev/null | wc -c > kept; exit 4";
    let executed =
        sandbox.execute(line, ExecuteOptions { max_output_bytes: Some(1000), ..within(20) }).await.unwrap();
    assert_eq!((executed.output.len(), executed.truncated, executed.exit_code), (1000, true, Some(4)));
    let kept: u64 = said(sandbox, "cat kept").await.trim().parse().unwrap();
    assert!((1000..2000).contains(&kept), "{kept} bytes are on the disk");
}

async fn variables_reach_only_the_command(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let env = [("PATH", "/nowhere"), ("d", "own"), ("path", "own"), ("LC_ALL", "en_GB.UTF-8")];
    let env = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let line = "echo $PATH $d $path $LC_ALL";
    let executed = sandbox.execute(line, ExecuteOptions { env, ..within(20) }).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&executed.output), "/nowhere own own en_GB.UTF-8\n");
    // Variables of the shell that starts a program are not the program's.
    for word in ["refuse", "exit"] {
        let executed = sandbox.execute(vec![word.to_owned()], within(20)).await.unwrap();
        let expected = format!("the command was not started: there is no program {word}");
        assert_eq!(
            (String::from_utf8_lossy(&executed.output).as_ref(), executed.exit_code),
            (expected.as_str(), Some(125))
        );
    }
}

async fn timeout_kills_all_that_a_command_started(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let seconds = seconds();
    let line = format!("echo begun; setsid sleep {seconds} & sleep {seconds}");
    let ended = sandbox.execute(line, within(3)).await.unwrap();
    assert_eq!((ended.exit_code, ended.timed_out), (Some(124), true));
    assert_eq!(String::from_utf8_lossy(&ended.output), "begun\nCommand timed out after 3s");
    assert_eq!(sleepers(sandbox, &seconds).await, 0);
}

async fn dropped_command_is_killed(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let seconds = seconds();
    let line = format!("sleep {seconds}; echo over");
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.execute(line, ExecuteOptions::default()).await }
    });
    let soon = async |what: &str, are_there: bool| {
        let until = async { while (sleepers(sandbox, &seconds).await > 0) != are_there {} };
        tokio::time::timeout(Duration::from_secs(20), until).await.unwrap_or_else(|_| panic!("{what}"));
    };
    soon("it does not begin", true).await;
    waiting.abort();
    soon("it sleeps on", false).await;
}

async fn cancelled_command_returns_its_output(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let seconds = seconds();
    let line = format!("echo partial; sleep {seconds}; echo over");
    let begun = async { while sleepers(sandbox, &seconds).await == 0 {} };
    let executed = Box::pin(sandbox.execute_until(line, ExecuteOptions::default(), begun)).await.unwrap();
    let output = String::from_utf8_lossy(&executed.output);
    assert!(output.starts_with("partial\n"), "{output}");
    assert_eq!((executed.exit_code, executed.timed_out), (Some(124), true));
    assert_eq!(sleepers(sandbox, &seconds).await, 0);
}

async fn files_are_read_and_changed(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let file = runtime.path("sub/it's a \"file\"");
    assert!(sandbox.write(&file, "one\ntwo\nthree\n").await.unwrap().atomic);
    let Page::Text(page) = sandbox
        .read(&file, ReadOptions { line_offset: 1, line_limit: 1, ..ReadOptions::default() })
        .await
        .unwrap()
    else {
        panic!("it is text")
    };
    assert_eq!((&page.content[..], page.total_lines, page.more), ("two", Some(3), true));
    assert_eq!(sandbox.edit(&file, "two", "2", false).await.unwrap().occurrences, 1);
    assert_eq!(&sandbox.read_range(&file, 4, 3).await.unwrap()[..], b"2\nt");
    assert_eq!(code(sandbox.edit(&file, "no such", "x", false).await.unwrap_err()), ErrorCode::NoMatch);
    let info = sandbox.stat(&file, false).await.unwrap();
    assert_eq!((info.size, info.mode, info.path == file), (12, 0o644, true));
    said(sandbox, "cd sub; chmod 755 it*; ln -s it* link").await;
    sandbox.write(&runtime.path("sub/link"), "by a link").await.unwrap();
    assert_eq!(sandbox.stat(&file, false).await.unwrap().mode, 0o755);
    assert_eq!(&sandbox.read_range(&file, 0, 99).await.unwrap()[..], b"by a link");
    let link = sandbox.stat(&runtime.path("sub/link"), false).await.unwrap();
    assert_eq!(link.link_target.as_deref(), Some("it's a \"file\""));
    let mut names: Vec<_> =
        sandbox.list(&runtime.path("sub")).await.unwrap().into_iter().map(|info| info.path).collect();
    names.sort();
    assert_eq!(names, [file.clone(), runtime.path("sub/link")]);
    sandbox.move_path(&file, &runtime.path("moved"), false).await.unwrap();
    assert_eq!(code(sandbox.stat(&file, false).await.unwrap_err()), ErrorCode::NotFound);
    sandbox.delete(&runtime.path("sub")).await.unwrap();
    assert_eq!(code(sandbox.list(&runtime.path("sub")).await.unwrap_err()), ErrorCode::NotFound);
    assert_eq!(code(sandbox.list(&runtime.path("moved")).await.unwrap_err()), ErrorCode::NotADirectory);
    assert_eq!(code(sandbox.write(&runtime.path(""), "x").await.unwrap_err()), ErrorCode::IsDirectory);
    assert_eq!(
        code(sandbox.read("relative", ReadOptions::default()).await.unwrap_err()),
        ErrorCode::InvalidArgument
    );
}

async fn large_files_arrive_complete(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let content: Vec<u8> = (0..9 << 20).map(|byte: u32| (byte % 251) as u8).collect();
    let file = runtime.path("large");
    sandbox.write(&file, content.clone()).await.unwrap();
    assert_eq!(said(sandbox, "wc -c < large").await.trim(), content.len().to_string());
    let back = sandbox.download(&file, 16 << 20).await.unwrap();
    assert!(back[..] == content[..]);
}

async fn searches_find_all_matches(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    for (name, content) in [
        ("a.rs", "fn main() {}\n"),
        ("deep/b.rs", "no\nfn 'it' {}\n"),
        ("c.txt", "fn\n"),
        ("odd: 1:name", "fn\n"),
    ] {
        sandbox.write(&runtime.path(&format!("tree/{name}")), content).await.unwrap();
    }
    let root = runtime.path("tree");
    let found = sandbox.glob("*.rs", &root).await.unwrap();
    let paths: Vec<_> = found.matches.iter().map(|info| &info.path[root.len()..]).collect();
    assert_eq!((paths, found.incomplete), (vec!["/a.rs", "/deep/b.rs"], None));
    let options = GrepOptions { root: Some(root.clone()), ..GrepOptions::default() };
    let found =
        sandbox.grep("fn ", GrepOptions { glob: Some("*.rs".to_owned()), ..options.clone() }).await.unwrap();
    let lines: Vec<_> =
        found.matches.iter().map(|found| (&found.path[root.len()..], found.line, &found.text[..])).collect();
    assert_eq!(lines, [("/a.rs", 1, "fn main() {}"), ("/deep/b.rs", 2, "fn 'it' {}")]);
    let all = sandbox.grep("fn", options.clone()).await.unwrap();
    assert!(all.matches.iter().any(|found| found.path.ends_with("/odd: 1:name") && found.line == 1));
    let some = sandbox.grep("fn", GrepOptions { max_count: Some(2), ..options }).await.unwrap();
    assert_eq!((some.matches.len(), some.truncated), (2, true));
    let one = GrepOptions { root: Some(runtime.path("tree/a.rs")), ..GrepOptions::default() };
    assert_eq!(sandbox.grep("main", one).await.unwrap().matches[0].path, runtime.path("tree/a.rs"));
}

async fn refuses_missing_capabilities_by_name(runtime: &Runtime, sandbox: &Sandbox, kind: RuntimeKind) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let errors = [
        ("spawn", sandbox.start("true", StartOptions::default()).await.map(drop).unwrap_err()),
        ("stats", sandbox.stats().await.map(drop).unwrap_err()),
        ("apply_edits", sandbox.apply_edits(Vec::new()).await.map(drop).unwrap_err()),
    ];
    for (name, error) in errors {
        let text = error.to_string();
        assert!(text.contains(name) && text.contains(kind.as_str()), "{name}: {text}");
        assert_eq!(code(error), ErrorCode::Unsupported);
    }
}

async fn another_process_finds_the_binding(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let (other, _) = runtime.sandbox().await;
    let again = Binding { env: HashMap::new(), ..runtime.binding() };
    other.bind(again).await.unwrap();
    assert_eq!(said(&other, "echo \"$GREETING\"").await, "it's \"me\"\n\n");
    let stranger = Binding { claim: "another".to_owned(), ..runtime.binding() };
    assert_eq!(code(other.bind(stranger).await.unwrap_err()), ErrorCode::NotYours);
}

async fn a_session_keeps_its_state(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let (first, _) = runtime.sandbox().await;
    let in_session = |sandbox: Sandbox, line: &'static str, seconds| async move {
        let options = ExecuteOptions { shell_session: Some("main".to_owned()), ..within(seconds) };
        let executed = sandbox.execute(line, options).await.unwrap();
        (String::from_utf8_lossy(&executed.output).into_owned(), executed.exit_code)
    };
    let set = "mkdir sub; cd sub; export COLOUR=\"deep  red's\"; umask 027; exit 3";
    assert_eq!(in_session(first, set, 20).await, (String::new(), Some(3)));
    let show = "pwd; echo \"$COLOUR\"; umask";
    let kept = format!("{}\ndeep  red's\n0027\n", runtime.path("sub"));
    assert_eq!(in_session(sandbox.clone(), show, 20).await, (kept.clone(), Some(0)));
    assert_eq!(in_session(sandbox.clone(), "COLOUR=; cd /; sleep 60", 1).await.1, Some(124));
    assert_eq!(in_session(sandbox.clone(), show, 20).await, (kept, Some(0)));
    assert_eq!(said(sandbox, "echo \"[$COLOUR]\"").await, "[]\n");
}

async fn lines_of_a_session_run_concurrently(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    let (other, _) = runtime.sandbox().await;
    let say = async |sandbox: &Sandbox, line: &str| {
        let options = ExecuteOptions { shell_session: Some("main".to_owned()), ..within(20) };
        let executed = sandbox.execute(line, options).await.unwrap();
        String::from_utf8_lossy(&executed.output).into_owned()
    };
    let wait = |name: &str| format!("while ! [ -e {name} ]; do sleep 0.1; done");
    for (name, before, expected) in [("idle", ":", "[short]\n"), ("busy", "export A=long", "[long]\n")] {
        let long = format!("{before}; : > {name}-begun; {}", wait(&format!("{name}-end")));
        let (long, ()) = tokio::join!(say(&other, &long), async {
            said(sandbox, &wait(&format!("{name}-begun"))).await;
            assert_eq!(say(sandbox, "export A=short").await, "");
            said(sandbox, &format!(": > {name}-end")).await;
        });
        assert_eq!((long.as_str(), say(sandbox, "echo \"[$A]\"").await.as_str()), ("", expected), "{before}");
    }
}

async fn file_calls_stay_within_a_policy(runtime: &Runtime, sandbox: &Sandbox) {
    let policy = |required| Policy { writable: vec![runtime.path("mine")], required, ..Policy::default() };
    let held = |required| Binding { policy: Some(policy(required)), ..runtime.binding() };
    assert_eq!(code(sandbox.bind(held(true)).await.unwrap_err()), ErrorCode::Unsupported);
    sandbox.bind(held(false)).await.unwrap();
    sandbox.write(&runtime.path("mine/file"), "x").await.unwrap();
    said(sandbox, "echo secret > other; ln -s .. mine/out").await;
    for name in ["other", "mine/../new", "mine/out/new"] {
        let refused = sandbox.write(&runtime.path(name), "x").await.unwrap_err();
        assert_eq!(code(refused), ErrorCode::Policy, "{name}");
    }
    assert_eq!(code(sandbox.delete(&runtime.path("other")).await.unwrap_err()), ErrorCode::Policy);
    assert_eq!(&sandbox.read_range(&runtime.path("other"), 0, 99).await.unwrap()[..], b"secret\n");
}

async fn file_calls_stay_within_the_bounds_of_a_call(runtime: &Runtime, sandbox: &Sandbox) {
    sandbox.bind(runtime.binding()).await.unwrap();
    said(
        sandbox,
        "mkdir -p mine/secrets; echo no > mine/secrets/key; echo no > other; ln -s ../other mine/link",
    )
    .await;
    let bounds =
        PathBounds { within: vec![runtime.path("mine")], denied: vec![runtime.path("mine/secrets")] };
    let narrow = sandbox.within(bounds).unwrap();
    narrow.write(&runtime.path("mine/file"), "x").await.unwrap();
    for name in ["mine/link", "mine/secrets/key", "other"] {
        let refused = narrow.read_range(&runtime.path(name), 0, 9).await.unwrap_err();
        assert_eq!(code(refused), ErrorCode::Policy, "{name}");
    }
    assert_eq!(code(narrow.delete(&runtime.path("mine")).await.unwrap_err()), ErrorCode::Policy);
    let options = GrepOptions { root: Some(runtime.path("mine")), ..GrepOptions::default() };
    assert!(narrow.grep("no", options).await.unwrap().matches.is_empty());
}

macro_rules! tests {
    ($($kind:ident: $runtime:expr;)+) => { $(
        mod $kind {
            use super::*;

            async fn open() -> (Runtime, Sandbox, RuntimeKind) {
                let runtime = $runtime;
                let (sandbox, kind) = runtime.sandbox().await;
                (runtime, sandbox, kind)
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn commands_run_in_a_shell_with_the_binding_of_the_sandbox() {
                let (runtime, sandbox, _) = open().await;
                commands_run(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn output_beyond_the_limit_is_not_written_to_disk() {
                let (runtime, sandbox, _) = open().await;
                keeps_no_output_beyond_the_limit(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn variables_and_words_reach_only_the_command() {
                let (runtime, sandbox, _) = open().await;
                variables_reach_only_the_command(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_timeout_kills_all_descendants() {
                let (runtime, sandbox, _) = open().await;
                timeout_kills_all_that_a_command_started(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_dropped_command_is_killed() {
                let (runtime, sandbox, _) = open().await;
                dropped_command_is_killed(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_cancelled_command_returns_its_output() {
                let (runtime, sandbox, _) = open().await;
                cancelled_command_returns_its_output(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn file_calls_work_in_any_directory() {
                let (runtime, sandbox, _) = open().await;
                files_are_read_and_changed(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn large_files_are_sent_in_parts() {
                let (runtime, sandbox, _) = open().await;
                large_files_arrive_complete(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn files_and_text_are_found() {
                let (runtime, sandbox, _) = open().await;
                searches_find_all_matches(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn missing_capabilities_are_refused_by_name() {
                let (runtime, sandbox, kind) = open().await;
                refuses_missing_capabilities_by_name(&runtime, &sandbox, kind).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn a_shell_session_keeps_its_state_between_lines() {
                let (runtime, sandbox, _) = open().await;
                a_session_keeps_its_state(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn last_concurrent_line_to_end_wins_if_it_changed_the_state() {
                let (runtime, sandbox, _) = open().await;
                lines_of_a_session_run_concurrently(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn file_calls_stay_within_the_policy_of_the_sandbox() {
                let (runtime, sandbox, _) = open().await;
                file_calls_stay_within_a_policy(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn file_calls_stay_within_their_own_bounds() {
                let (runtime, sandbox, _) = open().await;
                file_calls_stay_within_the_bounds_of_a_call(&runtime, &sandbox).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn binding_is_shared_by_all_processes() {
                let (runtime, sandbox, _) = open().await;
                another_process_finds_the_binding(&runtime, &sandbox).await;
            }
        }
    )+ };
}

tests! {
    legacy: Runtime::stock(Version::Pinned);
    legacy_v0_2_1: Runtime::stock(Version::Oldest);
    legacy_guest: Runtime::guest(RuntimeKind::Legacy).await;
    sandboxd_guest: Runtime::guest(RuntimeKind::Sandboxd).await;
}

/// `/upload` creates no directories, so the first upload fails and later ones succeed.
#[tokio::test(flavor = "multi_thread")]
async fn folder_of_jobs_is_created_when_the_first_upload_fails() {
    let runtime = Runtime::stock(Version::Pinned);
    let (sandbox, _) = runtime.sandbox().await;
    sandbox.bind(runtime.binding()).await.unwrap();
    said(&sandbox, "true").await;
    let requests = runtime.stock.as_ref().unwrap().requests.lock().unwrap().clone();
    let failed = requests.iter().filter(|request| {
        request.starts_with("POST /upload") && request.ends_with(" 500 Internal Server Error")
    });
    assert_eq!(failed.count(), 1, "{requests:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_outlasts_a_single_poll() {
    let runtime = Runtime::stock(Version::Pinned);
    let (sandbox, _) = runtime.sandbox().await;
    sandbox.bind(runtime.binding()).await.unwrap();
    let executed = sandbox.execute("echo begun; sleep 17; echo over", within(40)).await.unwrap();
    assert_eq!((&executed.output[..], executed.exit_code), (&b"begun\nover\n"[..], Some(0)));
}

/// Returns the files that script jobs have left in the runtime's directory.
fn remaining_files(runtime: &Runtime) -> Vec<String> {
    let entries = std::fs::read_dir(runtime.dir.path().join("app/.sandpod")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn script_jobs_leave_only_the_binding_of_the_sandbox() {
    let runtime = Runtime::stock(Version::Pinned);
    let (sandbox, _) = runtime.sandbox().await;
    commands_run(&runtime, &sandbox).await;
    dropped_command_is_killed(&runtime, &sandbox).await;
    files_are_read_and_changed(&runtime, &sandbox).await;
    searches_find_all_matches(&runtime, &sandbox).await;
    // Jobs delete their files in the background.
    let tidy = async {
        while remaining_files(&runtime) != ["bound.json"] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let deleted = tokio::time::timeout(Duration::from_secs(20), tidy).await;
    assert!(deleted.is_ok(), "{:?}", remaining_files(&runtime));
}

#[tokio::test(flavor = "multi_thread")]
async fn change_is_made_once_despite_lost_answers() {
    let runtime = Runtime::stock(Version::Pinned);
    let (sandbox, _) = runtime.sandbox().await;
    sandbox.bind(runtime.binding()).await.unwrap();
    let (file, moved) = (runtime.path("file"), runtime.path("moved"));
    runtime.ports.forgetful.active.store(true, Ordering::SeqCst);
    sandbox.write(&file, "|").await.unwrap();
    for _ in 0..8 {
        sandbox.edit(&file, "|", "x|", false).await.unwrap();
    }
    sandbox.move_path(&file, &moved, false).await.unwrap();
    assert_eq!(&sandbox.read_range(&moved, 0, 99).await.unwrap()[..], b"xxxxxxxx|");
    sandbox.delete(&moved).await.unwrap();
    assert_eq!(said(&sandbox, "echo run >> log; cat log").await, "run\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn gone_sandbox_is_reported() {
    let mut runtime = Runtime::stock(Version::Pinned);
    let (sandbox, _) = runtime.sandbox().await;
    sandbox.bind(runtime.binding()).await.unwrap();
    runtime.ports.gone.store(true, Ordering::SeqCst);
    let mut process = runtime.stock.take().unwrap().process;
    process.kill().unwrap();
    process.wait().unwrap();
    let error = sandbox.execute("true", within(20)).await.unwrap_err();
    assert!(matches!(&error, Error::Gone { reason } if reason.contains("it was deleted")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn error_names_both_runtimes_if_neither_answers() {
    let ports =
        Ports { legacy: None, rest: None, grpc: None, gone: Arc::default(), forgetful: Arc::default() };
    let error = Dialect::find(Arc::new(ports), 8888).await.unwrap_err().to_string();
    assert!(error.contains("legacy: no listener; sandboxd: no listener"), "{error}");
}
