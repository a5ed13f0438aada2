//! Shell sessions.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use sandpod_guest::Guest;
use sandpod_protocol::limits;
use sandpod_protocol::v1::{Command, ErrorCode, Policy};

use crate::harness::{Client, argv, client, guest, line, options};
use crate::programs::{Container, GUEST, install_script};

fn in_session(text: &str) -> Command {
    Command { shell_session: "agent".to_owned(), ..line(text) }
}

impl Client {
    /// Runs a line in a session, and returns its output and exit code.
    async fn run_in_session(&self, text: &str) -> (String, i32) {
        let answer = self.execute(in_session(text)).await.unwrap();
        (String::from_utf8(answer.output.to_vec()).unwrap(), answer.exit_code)
    }

    async fn expect_output(&self, text: &str, output: &str) {
        assert_eq!(self.run_in_session(text).await, (output.to_owned(), 0), "{text}");
    }
}

fn ok(output: &str) -> (String, i32) {
    (output.to_owned(), 0)
}

#[tokio::test]
async fn a_line_finds_what_the_one_before_left() {
    let (client, _dir) = client().await;
    client
        .expect_output("cd /usr; cd /usr/lib; export COLOUR='deep  red'\"'s\"; umask 027; hidden=1", "")
        .await;
    client
        .expect_output(
            "pwd; echo \"$COLOUR\"; umask; echo [$hidden]; cd -",
            "/usr/lib\ndeep  red's\n0027\n[]\n/usr\n",
        )
        .await;
}

#[tokio::test]
async fn sessions_are_separate_and_lines_without_one_keep_nothing() {
    let (client, _dir) = client().await;
    client.expect_output("cd /usr; export COLOUR=red", "").await;
    let other = Command { shell_session: "other".to_owned(), ..line("echo [$COLOUR]; pwd") };
    let other = client.execute(other).await.unwrap().output;
    assert!(other.starts_with(b"[]\n") && !other.ends_with(b"/usr\n"));
    assert!(client.run("echo [$COLOUR]").await.0.starts_with("[]\n"));
}

#[tokio::test]
async fn an_unset_variable_stays_unset() {
    let (client, _dir) = client().await;
    client.expect_output("unset HOME", "").await;
    client.expect_output("echo [${HOME-none}]", "[none]\n").await;
}

#[tokio::test]
async fn values_of_a_call_last_for_that_call_unless_its_line_changes_them() {
    let (client, _dir) = client().await;
    client.expect_output("export A=session; cd /usr", "").await;
    let env = [("A", "call"), ("B", "call"), ("C", "call")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let given = Command { env, working_dir: "/".to_owned(), ..in_session("echo $A $B $C; pwd; C=line") };
    assert_eq!(client.execute(given).await.unwrap().output, "call call call\n/\n");
    client.expect_output("echo $A [$B] $C; pwd", "session [] line\n/usr\n").await;
}

#[tokio::test]
async fn options_are_kept_and_traces_do_not_show_the_driver() {
    let (client, _dir) = client().await;
    client.expect_output("set -eu; set -f", "").await;
    assert_eq!(client.run_in_session("echo *; false; echo not reached").await, ("*\n".to_owned(), 1));
    assert_eq!(client.run_in_session("echo $nothing").await.1, 2);
    client.expect_output("set +eu; set -x; set -C", "+ set -C\n").await;
    client.expect_output("echo traced", "+ echo traced\ntraced\n").await;
}

/// Lines that end in every way, and whether their changes are kept.
const ENDINGS: [(&str, bool); 13] = [
    ("cd /usr; exit 3", true),
    ("cd /usr; false", true),
    ("set -e; cd /usr; false; echo no", true),
    ("cd /usr\nif", true),
    ("cd /usr\necho \"open", true),
    ("set -u; cd /usr; echo $nope", true),
    ("trap 'echo bye $?' EXIT; cd /usr; (exit 5)", true),
    ("trap 'echo bye $?' EXIT; cd /usr; exit 4", false),
    ("set -e; trap 'echo bye $?' EXIT; cd /usr; false", false),
    ("cd /usr; exec true", false),
    ("cd /usr; kill -KILL $$", false),
    ("cd /usr; set -- a b; echo $# $0; cat; cat <<END\n$0\nEND", true),
    ("cd /usr; cd() { :; }; printf() { :; }; export -p >/dev/null", true),
];

#[tokio::test]
async fn a_line_ends_as_it_would_without_a_session() {
    let (client, _dir) = client().await;
    for (number, (text, is_kept)) in ENDINGS.into_iter().enumerate() {
        let session = format!("s{number}");
        let alone = client.run(text).await;
        let command = |text: &str| Command { shell_session: session.clone(), ..line(text) };
        let answer = client.execute(command(text)).await.unwrap();
        let output = String::from_utf8(answer.output.to_vec()).unwrap();
        // A shell names the file that contains a syntax error.
        let (alone_says, expect_output) = (without_location(&alone.0), without_location(&output));
        assert_eq!((expect_output, answer.exit_code), (alone_says, alone.1), "{text}");
        let dir = client.execute(command("pwd")).await.unwrap().output;
        assert_eq!(dir == "/usr\n", is_kept, "{text}: {dir:?}");
    }
}

/// Removes the location from the shell's messages.
fn without_location(output: &str) -> Vec<&str> {
    let message = |line: &'_ str| line.starts_with("/bin/sh:");
    output.lines().map(|line| if message(line) { line.rsplit(": ").next().unwrap() } else { line }).collect()
}

#[tokio::test]
async fn a_timed_out_or_cancelled_line_does_not_change_the_session() {
    let (client, _dir) = client().await;
    client.expect_output("cd /usr; export A=good", "").await;
    let late = Command { timeout_ms: 300, ..in_session("cd /; export A=bad; sleep 600") };
    assert!(client.execute(late).await.unwrap().timed_out);
    client.expect_output("pwd; echo $A", "/usr\ngood\n").await;
}

#[tokio::test]
async fn the_last_of_concurrent_lines_to_end_wins() {
    let (client, dir) = client().await;
    client.expect_output("export A=0", "").await;
    let gate = dir.path().join("gate");
    let wait = format!("export A=slow; while ! [ -e {} ]; do sleep 0.02; done", gate.display());
    let (slow, quick) = tokio::join!(client.run_in_session(&wait), async {
        let quick = client.run_in_session("export A=quick B=quick").await;
        fs::write(&gate, "").unwrap();
        quick
    });
    assert_eq!((slow, quick), (ok(""), ok("")));
    client.expect_output("echo $A [$B]", "slow []\n").await;
}

#[tokio::test]
async fn a_line_without_changes_does_not_overwrite_a_new_session() {
    let (client, dir) = client().await;
    let (begun, gate) = (dir.path().join("begun"), dir.path().join("gate"));
    let wait = format!(": > {}; while ! [ -e {} ]; do sleep 0.02; done", begun.display(), gate.display());
    let (slow, quick) = tokio::join!(client.run_in_session(&wait), async {
        client.run(&format!("while ! [ -e {} ]; do sleep 0.02; done", begun.display())).await;
        let quick = client.run_in_session("export A=quick").await;
        fs::write(&gate, "").unwrap();
        quick
    });
    assert_eq!((slow, quick), (ok(""), ok("")));
    client.expect_output("echo $A", "quick\n").await;
}

#[tokio::test]
async fn started_commands_take_part_in_a_session() {
    let (client, _dir) = client().await;
    let process = client.start(in_session("cd /usr; export A=1")).await;
    client.wait(&process).await;
    client.expect_output("pwd; echo $A", "/usr\n1\n").await;
}

#[tokio::test]
async fn sessions_survive_restarts_and_are_private() {
    let (guest, dir) = guest();
    Client::of(&guest).await.expect_output("cd /usr; export SECRET=x", "").await;
    Client::of(&guest).await.named("another").expect_output("pwd", "/usr\n").await;
    drop(guest);
    let file = fs::read_dir(dir.path().join("shells")).unwrap().next().unwrap().unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let restarted = Guest::new(options(dir.path())).unwrap();
    Client::of(&restarted).await.expect_output("pwd; echo $SECRET", "/usr\nx\n").await;
    fs::write(file.path(), [0xff; 99]).unwrap();
    let damaged = Client::of(&Guest::new(options(dir.path())).unwrap()).await;
    damaged.expect_output("echo [$SECRET]", "[]\n").await;
}

#[tokio::test]
async fn a_session_whose_directory_is_gone_starts_where_the_sandbox_does() {
    let (client, dir) = client().await;
    let gone = dir.path().join("gone");
    fs::create_dir(&gone).unwrap();
    client.expect_output(&format!("cd {}; export A=1", gone.display()), "").await;
    fs::remove_dir(&gone).unwrap();
    let here = client.run("pwd").await.0;
    client.expect_output("echo $A; pwd", &format!("1\n{here}")).await;
}

#[tokio::test]
async fn sessions_are_limited_in_number_and_size() {
    let (client, dir) = client().await;
    client.expect_output("export A=small", "").await;
    client
        .expect_output("export A=$(head -c 90000 /dev/zero | tr '\\0' x) B=$A C=$A; export B=$A C=$A", "")
        .await;
    client.expect_output("echo ${#A}", "5\n").await;
    let one = |name: usize, text: &str| Command { shell_session: format!("n{name}"), ..line(text) };
    for name in 0..=limits::MAX_SHELL_SESSIONS {
        client.execute(one(name, &format!("export N={name}"))).await.unwrap();
    }
    assert_eq!(client.execute(one(0, "echo [$N]")).await.unwrap().output, "[]\n");
    assert_eq!(client.execute(one(9, "echo [$N]")).await.unwrap().output, "[9]\n");
    assert!(fs::read_dir(dir.path().join("shells")).unwrap().count() <= limits::MAX_SHELL_SESSIONS);
}

#[tokio::test]
async fn state_that_is_too_large_for_a_session_is_reported() {
    let (client, _dir) = client().await;
    let long = "A=$(head -c 90000 /dev/zero | tr '\\0' x)";
    for (text, expected) in [
        ("export A=1".to_owned(), ""),
        (format!("{long}; export A B=$A C=$A"), "more than 256 KiB"),
        (format!("{long}; export A B=$A C=$A D=$A E=$A F=$A G=$A H=$A"), "more than 256 KiB"),
        (format!("{long}; export LONG=$A$A; unset A"), "did not keep the variable LONG"),
    ] {
        let note = client.execute(in_session(&text)).await.unwrap().note;
        assert!(note.contains(expected) && note.is_empty() == expected.is_empty(), "{text}: {note:?}");
    }
    client.expect_output("echo [$LONG$A]", "[]\n").await;
}

#[tokio::test]
async fn only_lines_with_a_valid_session_name_are_accepted() {
    let (client, _dir) = client().await;
    let program = Command { shell_session: "agent".to_owned(), ..argv(&["true"]) };
    let long = Command { shell_session: "x".repeat(257), ..line("true") };
    for command in [program, long] {
        assert_eq!(client.execute(command).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    }
}

#[tokio::test]
async fn sessions_work_under_a_strict_policy() {
    let (client, dir) = client().await;
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let held = |text: &str| {
        let readable = ["/bin", "/usr", "/lib", "/lib64", "/etc"].map(str::to_owned).to_vec();
        let policy = Policy { readable, writable: vec![work.display().to_string()], ..Policy::default() };
        Command { policy: Some(policy), ..in_session(text) }
    };
    client.execute(held(&format!("cd {}; export A=held; f() {{ :; }}", work.display()))).await.unwrap();
    let answer = client.execute(held("echo $A; pwd; exit 3")).await.unwrap();
    let expected = format!("held\n{}\n", work.display());
    assert_eq!((String::from_utf8(answer.output.to_vec()).unwrap(), answer.exit_code), (expected, 3));
}

#[tokio::test]
async fn a_line_of_a_megabyte_runs_in_a_session() {
    let (client, _dir) = client().await;
    client.expect_output(&format!(": {}\ncd /usr; cat; echo $0", "x".repeat(1 << 20)), "/bin/sh\n").await;
    client.expect_output("pwd", "/usr\n").await;
}

/// The guest in a container with another shell as /bin/sh.
async fn container_with(shell: &str) -> Option<(Container, Client)> {
    let dir = tempfile::tempdir().unwrap();
    let start = dir.path().join("start");
    let sh = fs::canonicalize("/bin/sh").unwrap();
    let script = format!(
        "#!/usr/bin/env bash\nmount --bind $(command -v {shell}) {} || exit 1\nexec {GUEST} \"$@\"\n",
        sh.display()
    );
    install_script(&script, &start);
    let container = Container::start(&start, &[]).await?;
    let client = container.client_by(Path::new(GUEST)).await;
    Some((container, client))
}

#[tokio::test]
async fn sessions_work_in_busybox() {
    let Some((_container, client)) = container_with("busybox").await else { return };
    assert!(client.run("readlink /proc/$$/exe; sh --help 2>&1").await.0.contains("BusyBox"));
    client.expect_output("cd /usr; export A=\"it's\"; umask 077; set -f", "").await;
    client.expect_output("pwd; echo $A *; umask", "/usr\nit's *\n0077\n").await;
    assert_eq!(client.run_in_session("cd /; exit 3").await.1, 3);
    assert_eq!(client.run_in_session("cd /usr\nif").await.1, 2);
    client.expect_output("pwd", "/usr\n").await;
}

#[tokio::test]
async fn sessions_work_in_bash_which_keeps_functions_too() {
    let Some((_container, client)) = container_with("bash").await else { return };
    client
        .expect_output(
            "cd /usr; export A=$'two\\nlines \"\\1'; greet() { echo \"hello $1\"; }; umask 077",
            "",
        )
        .await;
    client
        .expect_output("pwd; echo \"$A\"; greet you; umask", "/usr\ntwo\nlines \"\u{1}\nhello you\n0077\n")
        .await;
    client.expect_output("unset -f greet; cat() { echo mine; }", "").await;
    client.expect_output("cat; type greet >/dev/null 2>&1 || echo gone", "mine\ngone\n").await;
    assert_eq!(client.run_in_session("cd /; exit 3").await.1, 3);
    assert_eq!(client.run_in_session("set -e; false").await.1, 1);
    client.expect_output("pwd; set +e", "/\n").await;
}
