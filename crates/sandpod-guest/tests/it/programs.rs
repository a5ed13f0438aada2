//! The programs: the guest as first process of a PID namespace, as in a container.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use sandpod_protocol::limits;
use sandpod_protocol::v1::{BindRequest, Policy, StartRequest};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::harness::{Client, argv, line};

pub(crate) const GUEST: &str = env!("CARGO_BIN_EXE_sandpod-guest");
const BOOT: &str = env!("CARGO_BIN_EXE_sandpod-boot");

/// A guest in namespaces of its own, as PID 1 and with a free socket name.
pub(crate) struct Container {
    unshare: Child,
    /// The guest's process number outside.
    pub(crate) guest: i32,
    dir: TempDir,
}

impl Container {
    /// Starts `program serve ARGUMENTS`. Returns `None` if the tests may not make namespaces.
    #[expect(clippy::print_stderr, reason = "a skipped test is reported")]
    pub(crate) async fn start(program: &Path, arguments: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: namespaces need root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut unshare = Command::new("unshare")
            .args(["--pid", "--net", "--fork", "--mount-proc", "--kill-child"])
            .arg(program)
            .args(["serve", "--unbound"])
            .args(arguments)
            .env("SANDPOD_STATE_DIR", dir.path().join("state"))
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let guest = loop {
            assert!(unshare.try_wait().unwrap().is_none(), "the guest ended at once");
            tokio::time::sleep(Duration::from_millis(10)).await;
            if let Some(guest) = listening_child(unshare.id().unwrap()) {
                break guest;
            }
        };
        Some(Self { unshare, guest, dir })
    }

    /// A command that is placed into the container from outside, as a container runtime does.
    pub(crate) fn exec(&self, program: &Path, argument: &str) -> Command {
        let mut command = Command::new("nsenter");
        let target = self.guest.to_string();
        command.args(["--target", &target, "--pid", "--net", "--mount"]).arg(program).arg(argument);
        command
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_by(Path::new(GUEST)).await
    }

    pub(crate) async fn client_by(&self, program: &Path) -> Client {
        self.client_and_pipe(program).await.0
    }

    /// Returns a client, and the process that was placed into the container for it.
    async fn client_and_pipe(&self, program: &Path) -> (Client, Child) {
        let mut pipe = self.exec(program, "pipe");
        let mut pipe = pipe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (pipe.stdin.take().unwrap(), pipe.stdout.take().unwrap());
        (Client::on(tokio::io::join(stdout, stdin)).await, pipe)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // A guest that changed its user outlives `unshare`, which may not signal it then.
        if let (Ok(None), Some(guest)) = (self.unshare.try_wait(), rustix::process::Pid::from_raw(self.guest))
        {
            let _ = rustix::process::kill_process(guest, rustix::process::Signal::KILL);
        }
    }
}

/// Returns the children of a process.
pub(crate) fn children(parent: u32) -> Vec<rustix::process::Pid> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
    pids.filter_map(rustix::process::Pid::from_raw).collect()
}

/// Returns the only child of a process, once it is a guest that listens.
fn listening_child(parent: u32) -> Option<i32> {
    let child = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let child = child.trim().parse().ok()?;
    let sockets = fs::read_to_string(format!("/proc/{child}/net/unix")).ok()?;
    sockets.contains("@sandpod-guest").then_some(child)
}

async fn output(program: &str, argument: &str) -> Output {
    Command::new(program).arg(argument).stdin(Stdio::null()).output().await.unwrap()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..200 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came that {what}");
}

#[tokio::test]
async fn the_program_prints_its_version_and_its_usage() {
    let version = output(GUEST, "--version").await;
    let expected = format!("sandpod-guest {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(version.stdout).unwrap(), expected);
    let nonsense = output(GUEST, "--nonsense").await;
    assert_eq!(nonsense.status.code(), Some(125));
    assert!(String::from_utf8(nonsense.stderr).unwrap().starts_with("sandpod-guest: usage:"));
}

#[tokio::test]
async fn a_process_from_outside_reaches_the_guest_through_a_pipe() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let client = container.client().await;
    assert_eq!(client.hello(1, 1).await.unwrap().version, 1);
    assert_eq!(client.run("cat /proc/1/comm").await, ("sandpod-guest\n".to_owned(), 0));
    let big = "head -c 3000000 /dev/zero | tr '\\0' x";
    let command = sandpod_protocol::v1::Command { max_output_bytes: 4 << 20, ..line(big) };
    assert_eq!(client.execute(command).await.unwrap().output.len(), 3_000_000);
}

#[tokio::test]
async fn processes_of_the_sandbox_are_refused() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let client = container.client().await;
    // A standard input that never ends, as a client's.
    let open = container.path("open").display().to_string();
    client.run(&format!("mkfifo {open}")).await;
    for line in [format!("{GUEST} pipe <> {open}"), format!("setsid -w {GUEST} pipe <> {open}")] {
        let (said, code) = client.run(&line).await;
        assert!(said.contains("the guest refused") && !said.contains("sandpod-guest/1"), "{said}");
        assert_eq!(code, 125);
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_pipe_process() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let (client, pipe) = container.client_and_pipe(GUEST.as_ref()).await;
    client.hello(1, 1).await.unwrap();
    // nsenter waits for its child, which is the guest's peer.
    let placed = children(pipe.id().unwrap());
    rustix::process::kill_process(placed[0], rustix::process::Signal::KILL).unwrap();
    until("the guest has ended the stream", async || client.hello(1, 1).await.is_err()).await;
    container.client().await.hello(1, 1).await.unwrap();
}

#[tokio::test]
async fn a_pipe_process_ends_with_its_stream() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let (client, mut pipe) = container.client_and_pipe(GUEST.as_ref()).await;
    client.hello(1, 1).await.unwrap();
    drop(client);
    let ended = tokio::time::timeout(Duration::from_secs(5), pipe.wait()).await;
    assert!(ended.unwrap().unwrap().success());
}

#[tokio::test]
async fn a_pipe_reports_unusable_standard_streams() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let file = container.path("file");
    fs::write(&file, "not a stream").unwrap();
    for (stdin, stdout, which) in [
        (Stdio::from(fs::File::open(&file).unwrap()), Stdio::piped(), "input"),
        (Stdio::null(), Stdio::piped(), "input"),
        (Stdio::piped(), Stdio::from(fs::File::create(container.path("other")).unwrap()), "output"),
    ] {
        let mut pipe = container.exec(GUEST.as_ref(), "pipe");
        let refused = pipe.stdin(stdin).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let refused = refused.wait_with_output().await.unwrap();
        assert_eq!(refused.status.code(), Some(125));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(&format!("the standard {which} is neither a pipe")), "{said}");
    }
}

#[tokio::test]
async fn two_guests_in_one_network_each_have_their_own_clients() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    // Like two containers of a Pod: one network, but separate processes and files.
    let state = container.path("other");
    let neighbour = Command::new("nsenter")
        .args(["--target", &container.guest.to_string(), "--net"])
        .args(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", GUEST, "serve", "--unbound"])
        .env("SANDPOD_STATE_DIR", &state)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let unshare = neighbour.id().unwrap();
    let mut guest = 0;
    until("both guests listen", async || {
        let sockets = fs::read_to_string(format!("/proc/{}/net/unix", container.guest)).unwrap();
        guest = children(unshare).first().map_or(0, |pid| pid.as_raw_nonzero().get());
        sockets.matches("@sandpod-guest").count() == 2 && guest != 0
    })
    .await;
    let neighbour = Container { unshare: neighbour, guest, dir: tempfile::tempdir().unwrap() };
    let (one, other) = (container.client().await, neighbour.client().await);
    for (client, name) in [(&one, "one"), (&other, "other")] {
        client.bind(BindRequest { claim: name.to_owned(), ..BindRequest::default() }).await.unwrap();
    }
    assert_ne!(one.hello(1, 1).await.unwrap().boot_id, other.hello(1, 1).await.unwrap().boot_id);
}

#[tokio::test]
async fn a_pipe_without_a_guest_reports_that() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    // A new network namespace has no guest's socket in it.
    let alone = Command::new("unshare").args(["--net", GUEST, "pipe"]).output().await.unwrap();
    assert_eq!(alone.status.code(), Some(125));
    assert!(String::from_utf8(alone.stderr).unwrap().contains("no guest listens in this sandbox"));
    drop(container);
}

#[tokio::test]
async fn orphans_are_reaped_and_no_exit_code_of_the_guests_own_is_lost() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let client = container.client().await;
    for round in 0..40 {
        let (_, code) =
            client.run(&format!("(setsid sh -c 'sleep 0.0{round}' &); (sleep 0.01 &); exit {round}")).await;
        assert_eq!(code, round);
    }
    until("no zombie is left", async || {
        client.run("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '").await.0 == "0\n"
    })
    .await;
}

#[tokio::test]
async fn the_guest_outlives_the_users_command() {
    let marks = tempfile::tempdir().unwrap();
    let mark = marks.path().join("ran");
    let script = format!("env | grep -c SANDPOD_ > {0}.new; mv {0}.new {0}; exit 3", mark.display());
    let Some(container) = Container::start(GUEST.as_ref(), &["--", "sh", "-c", &script]).await else {
        return;
    };
    until("the command has run", async || mark.exists()).await;
    assert_eq!(fs::read_to_string(mark).unwrap(), "0\n");
    let client = container.client().await;
    assert_eq!(client.run("echo alive").await.0, "alive\n");
    until("its exit code is known", async || client.stats().await.command_exit == Some(3)).await;
}

#[tokio::test]
async fn an_unknown_kernel_feature_is_named() {
    let mut guest = Command::new(GUEST);
    let said = guest.arg("serve").env("SANDPOD_DISABLED_KERNEL_FEATURES", "landlok").output().await.unwrap();
    assert_eq!(said.status.code(), Some(125));
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(
        said.contains(
            "SANDPOD_DISABLED_KERNEL_FEATURES: \"landlok\" is not a kernel feature that can be disabled"
        ),
        "{said}"
    );
}

#[tokio::test]
async fn sigterm_from_outside_ends_the_guest_and_its_commands() {
    let Some(mut container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let (ready, signalled) = (container.path("ready"), container.path("signalled"));
    let client = container.client().await;
    let script = format!(
        "trap 'echo > {}; exit' TERM; echo > {}; while :; do sleep 0.05; done",
        signalled.display(),
        ready.display()
    );
    let run = tokio::spawn(async move { client.execute(line(&script)).await });
    until("the command runs", async || ready.exists()).await;
    let guest = rustix::process::Pid::from_raw(container.guest).unwrap();
    rustix::process::kill_process(guest, rustix::process::Signal::TERM).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(3), container.unshare.wait()).await;
    assert!(ended.unwrap().unwrap().success());
    assert!(signalled.exists());
    run.abort();
}

#[tokio::test]
async fn sigterm_from_inside_the_sandbox_is_ignored() {
    let Some(container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let client = container.client().await;
    client.run("kill -TERM 1; kill -INT 1; sleep 0.3").await;
    assert_eq!(client.run("echo alive").await.0, "alive\n");
}

#[tokio::test]
async fn an_expired_guest_exits_with_success() {
    let Some(mut container) = Container::start(GUEST.as_ref(), &[]).await else { return };
    let client = container.client().await;
    client
        .bind(BindRequest { claim: "a".to_owned(), ttl_seconds: 1, ..BindRequest::default() })
        .await
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), container.unshare.wait()).await;
    assert!(ended.unwrap().unwrap().success());
}

/// Copies a program in a process of its own: processes that other tests fork meanwhile would inherit a file that this one
/// has open for writing, and the kernel executes no program that is open for writing.
fn install(from: &Path, to: &Path) {
    assert!(std::process::Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Makes a program of a script.
pub(crate) fn install_script(script: &str, to: &Path) {
    let draft = to.with_extension("draft");
    fs::write(&draft, script).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    install(&draft, to);
}

/// A directory with `boot` and the guest in parts, as in a container.
fn packed(part_bytes: usize, most: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    install(BOOT.as_ref(), &dir.path().join("boot"));
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&fs::read(GUEST).unwrap()).unwrap();
    let mut packed = encoder.finish().unwrap();
    packed.truncate(most);
    for (number, part) in packed.chunks(part_bytes).enumerate() {
        fs::write(dir.path().join(format!("guest.{number}")), part).unwrap();
    }
    dir
}

#[tokio::test]
async fn the_stub_unpacks_and_executes_the_guest() {
    let dir = packed(1 << 20, usize::MAX);
    assert!(dir.path().join("guest.1").exists());
    let boot = dir.path().join("boot");
    let version = output(boot.to_str().unwrap(), "--version").await;
    assert_eq!(
        String::from_utf8(version.stdout).unwrap(),
        format!("sandpod-guest {}\n", env!("CARGO_PKG_VERSION"))
    );
    let Some(container) = Container::start(&boot, &[]).await else { return };
    let client = container.client_by(&boot).await;
    assert_eq!(client.run("readlink /proc/1/exe").await.0, "/memfd:sandpod-guest (deleted)\n");
}

#[tokio::test]
async fn the_stub_copies_itself_and_the_guest() {
    let image = packed(1 << 20, usize::MAX);
    let sandbox = tempfile::tempdir().unwrap();
    fs::write(image.path().join("other"), "of the image").unwrap();
    let boot = image.path().join("boot");
    let copying = Command::new(&boot).arg("copy").arg(sandbox.path()).status().await.unwrap();
    assert!(copying.success());
    let version = output(sandbox.path().join("boot").to_str().unwrap(), "--version").await;
    assert!(version.status.success(), "the copy does not run");
    assert!(!sandbox.path().join("other").exists(), "more is copied than the guest");

    let failed = Command::new(&boot).args(["copy", "/proc/nowhere"]).output().await.unwrap();
    assert_eq!(failed.status.code(), Some(125));
    assert!(String::from_utf8(failed.stderr).unwrap().contains("to /proc/nowhere"));
}

#[tokio::test]
async fn the_stub_starts_one_guest_beside_running_processes() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = packed(1 << 20, usize::MAX);
    let boot = dir.path().join("boot");
    let first = Command::new("unshare")
        .args(["--pid", "--net", "--fork", "--mount-proc", "--kill-child", "sleep", "1000"])
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let unshare = first.id().unwrap();
    until("the container runs", async || !children(unshare).is_empty()).await;
    let guest = children(unshare)[0].as_raw_nonzero().get();
    let container = Container { unshare: first, guest, dir: tempfile::tempdir().unwrap() };
    until("it has files of its own", async || {
        let comm = fs::read_to_string(format!("/proc/{guest}/comm")).unwrap_or_default();
        comm == "sleep\n"
    })
    .await;

    let mut boots = Vec::new();
    for _ in 0..2 {
        let mut start = container.exec(&boot, "start");
        start.arg("--unbound").env("SANDPOD_STATE_DIR", dir.path().join("state"));
        let started = start.output().await.unwrap();
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        let client = container.client_by(&boot).await;
        assert_eq!(client.run("cat /proc/1/comm").await.0, "sleep\n");
        boots.push(client.hello(1, 1).await.unwrap().boot_id);
    }
    assert_eq!(boots[0], boots[1], "there are two guests");
}

#[tokio::test]
async fn the_stub_reports_damaged_parts() {
    for (most, sentence) in [(0, "there is no guest.0 in"), (100_000, "the guest's parts are damaged")] {
        let dir = packed(1 << 20, most);
        let failed = output(dir.path().join("boot").to_str().unwrap(), "--version").await;
        assert_eq!(failed.status.code(), Some(125));
        let said = String::from_utf8(failed.stderr).unwrap();
        assert!(said.contains(sentence), "{said}");
    }
}

#[tokio::test]
async fn a_guest_with_few_open_files_runs_512_commands_that_keep_the_limit() {
    let programs = tempfile::tempdir().unwrap();
    let start = programs.path().join("start");
    install_script(&format!("#!/bin/sh\nulimit -Sn 1024\nexec {GUEST} serve --unbound\n"), &start);
    let Some(container) = Container::start(&start, &[]).await else { return };
    let client = container.client().await;
    // One process besides the client's.
    for _ in 1..limits::MAX_PROCESSES {
        let request = StartRequest {
            operation: Some(client.operation()),
            command: Some(argv(&["/bin/sleep", "60"])),
            stdin: true,
            ..StartRequest::default()
        };
        client.process.clone().start(request).await.unwrap();
    }
    let (hard, _) = client.run("ulimit -Hn").await;
    assert_eq!(client.run("ulimit -Sn; ls /proc/self/fd | wc -l").await.0, "1024\n4\n");
    let own = fs::read_to_string(format!("/proc/{}/limits", container.guest)).unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_eq!(own.split_whitespace().collect::<Vec<_>>()[..2], [hard.trim(), hard.trim()]);
}

/// A guest that runs as the user nobody, and a client of it.
pub(crate) async fn as_nobody(programs: &TempDir) -> Option<(Container, Client)> {
    fs::set_permissions(programs.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let guest = programs.path().join("guest");
    install(GUEST.as_ref(), &guest);
    let start = programs.path().join("start");
    let script = format!(
        "#!/bin/sh\nexport SANDPOD_STATE_DIR={0}/state; mkdir -m 777 $SANDPOD_STATE_DIR\n\
         exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all {1} serve --unbound\n",
        programs.path().display(),
        guest.display()
    );
    install_script(&script, &start);
    let container = Container::start(&start, &[]).await?;
    let client = container.client_by(&guest).await;
    Some((container, client))
}

#[tokio::test]
async fn code_with_the_guests_uid_cannot_access_its_memory() {
    let programs = tempfile::tempdir().unwrap();
    let Some((_container, client)) = as_nobody(&programs).await else { return };
    assert_eq!(client.run("id -u").await.0, "65534\n");
    let (said, code) = client.run("cat /proc/1/environ").await;
    assert!(code != 0 && said.contains("Permission denied"), "{said}");
}

#[tokio::test]
async fn an_unprivileged_guest_enforces_policies() {
    let programs = tempfile::tempdir().unwrap();
    let Some((_container, client)) = as_nobody(&programs).await else { return };
    let open = programs.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let enforced = client.hello(1, 1).await.unwrap().enforced.unwrap();
    assert!(enforced.network, "{enforced:?}");
    let write = format!("echo x > {}/new", open.display());
    assert_eq!(client.run(&write).await.1, 0);
    let nowhere = Policy { writable: vec!["/nowhere".to_owned()], ..Policy::default() };
    let held = sandpod_protocol::v1::Command { policy: Some(nowhere), ..line(&write) };
    assert_eq!(client.execute(held).await.unwrap().exit_code != 0, enforced.files);
}

#[tokio::test]
async fn a_restricted_command_cannot_access_unrestricted_processes() {
    let programs = tempfile::tempdir().unwrap();
    let Some((_container, client)) = as_nobody(&programs).await else { return };
    let (pid, _) = client.run("sleep 60 > /dev/null 2>&1 & echo $!").await;
    let policy = Policy { writable: vec!["/nowhere".to_owned()], ..Policy::default() };
    for look in ["cat environ", "cat maps", "readlink fd/1", "ls root/"] {
        let line = line(&format!("cd /proc/{} && {look}", pid.trim()));
        assert_eq!(client.execute(line.clone()).await.unwrap().exit_code, 0, "{look} without a policy");
        let held = sandpod_protocol::v1::Command { policy: Some(policy.clone()), ..line };
        let enforced = client.hello(1, 1).await.unwrap().enforced.unwrap();
        assert_eq!(client.execute(held).await.unwrap().exit_code != 0, enforced.files, "{look}");
    }
}
