//! Restrictions of commands: real commands, under each rule.

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sandpod_guest::{DisabledKernelFeatures, Guest, Options};
use sandpod_protocol::limits;
use sandpod_protocol::v1::network::Rule;
use sandpod_protocol::v1::{
    BindRequest, Command, ErrorCode, Network, Policy, Ports, StartRequest, Terminal, WaitRequest,
};

use crate::harness::{Client, client, guest, line, options};
use crate::probes::{has_landlock, kernel_has_landlock, try_it};
use crate::programs::install_script;

/// Directories with this machine's programs and their libraries.
const SYSTEM: [&str; 6] = ["/bin", "/usr", "/lib", "/lib64", "/etc", "/nix"];

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn bound(policy: Policy) -> BindRequest {
    BindRequest { claim: "a".to_owned(), policy: Some(policy), ..BindRequest::default() }
}

fn writable(roots: &[&Path]) -> Policy {
    Policy { writable: roots.iter().map(|root| text(root)).collect(), ..Policy::default() }
}

/// A policy that makes the machine's programs and these roots readable.
fn readable(roots: &[&Path]) -> Policy {
    let system = SYSTEM.iter().map(|root| (*root).to_owned());
    Policy { readable: system.chain(roots.iter().map(|root| text(root))).collect(), ..Policy::default() }
}

fn network(rule: Rule) -> Policy {
    Policy { network: Some(Network { rule: Some(rule) }), ..Policy::default() }
}

fn ports(connect: &[u16], listen: &[u16]) -> Policy {
    let numbers = |ports: &[u16]| ports.iter().map(|port| u32::from(*port)).collect();
    network(Rule::Ports(Ports { connect: numbers(connect), listen: numbers(listen) }))
}

/// A guest without a policy, and directories `r`, `w` and `out` with a file in each.
struct PolicySandbox {
    client: Client,
    dir: tempfile::TempDir,
}

impl PolicySandbox {
    /// Returns `None` if the guest has no Landlock.
    #[expect(clippy::print_stderr, reason = "a skipped test is reported")]
    async fn with_landlock() -> Option<Self> {
        let sandbox = Self::new().await;
        if sandbox.client.hello(1, 1).await.unwrap().enforced.unwrap().files {
            return Some(sandbox);
        }
        assert!(!has_landlock(), "the kernel has Landlock and the guest does not use it");
        eprintln!("SKIPPED: the guest has no Landlock here, so commands are not held to roots or ports");
        None
    }

    async fn new() -> Self {
        let (client, dir) = client().await;
        for name in ["r", "w", "out"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("file"), name).unwrap();
        }
        Self { client, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a line in the directory under a policy, and returns its output and exit code.
    async fn run(&self, policy: &Policy, text: &str) -> (String, i32) {
        let working_dir = self.dir.path().to_str().unwrap().to_owned();
        let command = Command { policy: Some(policy.clone()), working_dir, ..line(text) };
        let answer = self.client.execute(command).await.unwrap();
        (String::from_utf8(answer.output.to_vec()).unwrap(), answer.exit_code)
    }

    /// Starts a command and returns its exit code.
    async fn exit_code_of(&self, command: Command, terminal: Option<Terminal>) -> i32 {
        let (operation, command) = (Some(self.client.operation()), Some(command));
        let mut process = self.client.process.clone();
        let start = StartRequest { operation, command, terminal, ..StartRequest::default() };
        let name = process.start(start).await.unwrap().into_inner().process;
        let ended = process.wait(WaitRequest { process: name }).await.unwrap().into_inner();
        ended.exit.unwrap().exit_code
    }

    async fn assert_works(&self, policy: &Policy, line: &str) {
        let (output, code) = self.run(policy, line).await;
        assert_eq!(code, 0, "{line}: {output}");
    }

    async fn assert_refused(&self, policy: &Policy, line: &str) {
        let (output, code) = self.run(policy, line).await;
        assert!(code != 0 && output.contains("ermission denied"), "{line}: {code}, {output}");
    }
}

#[tokio::test]
async fn a_command_reads_and_writes_only_below_its_roots() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy =
        Policy { writable: writable(&[&sandbox.path("w")]).writable, ..readable(&[&sandbox.path("r")]) };
    for line in
        ["cat r/file", "ls r", "cat w/file", "echo x > w/new && mkdir w/d && mv w/new w/d && rm -r w/d"]
    {
        sandbox.assert_works(&policy, line).await;
    }
    let refused = [
        "cat out/file",
        "ls out",
        "echo x > out/new",
        "echo x >> out/file",
        "echo x > r/new",
        "rm r/file",
        "mkdir out/dir",
        "ln -s x out/link",
        "mkfifo out/pipe",
        "truncate -s 0 out/file",
        "ln -s ../out/file w/link; cat w/link",
        "cat w/../out/file",
        "cat /proc/self/cwd/out/file",
    ];
    for line in refused {
        sandbox.assert_refused(&policy, line).await;
        sandbox.assert_works(&Policy::default(), line).await;
    }
}

#[tokio::test]
async fn a_program_outside_of_the_roots_is_not_run() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    install_script("#!/bin/sh\necho ran\n", &sandbox.path("out/program"));
    sandbox.assert_works(&Policy::default(), "out/program").await;
    sandbox.assert_refused(&readable(&[]), "out/program").await;
}

#[tokio::test]
async fn roots_without_the_shell_and_its_libraries_are_reported() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = Policy { readable: vec![text(&sandbox.path("r"))], ..Policy::default() };
    let (output, code) = sandbox.run(&policy, "true").await;
    assert_eq!(code, 125);
    assert!(
        output.ends_with("a policy's readable roots must hold it and the libraries that it needs"),
        "{output}"
    );
}

#[tokio::test]
async fn writable_roots_alone_leave_everything_readable() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = writable(&[&sandbox.path("w")]);
    sandbox.assert_works(&policy, "cat out/file && echo x > w/new").await;
    sandbox.assert_refused(&policy, "echo x > out/new").await;
}

#[tokio::test]
async fn readable_roots_alone_leave_nothing_writable() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = readable(&[&sandbox.path("r")]);
    sandbox.assert_works(&policy, "cat r/file").await;
    for line in ["echo x > r/file", "echo x > w/file", "cat out/file"] {
        sandbox.assert_refused(&policy, line).await;
    }
}

#[tokio::test]
async fn any_policy_permits_standard_devices_and_proc() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = readable(&[]);
    let long = format!(": {}\necho long", "x".repeat(200 << 10));
    for line in [
        "echo x > /dev/null && cat /dev/null",
        "test $(head -c 4 /dev/urandom | wc -c) = 4",
        "test $(head -c 4 /dev/zero | wc -c) = 4",
        "test $(cat /proc/self/comm) = cat && ls /proc > /dev/null",
        "echo said > /dev/stderr && echo said > /dev/stdout && echo in | cat /dev/stdin",
        "sleep 0 & wait",
        &long,
    ] {
        sandbox.assert_works(&policy, line).await;
    }
}

#[tokio::test]
async fn descendants_are_restricted_too_and_gain_no_privileges() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = readable(&[]);
    sandbox.assert_refused(&policy, "sh -c 'setsid -w sh -c \"cat out/file\"'").await;
    assert_eq!(sandbox.run(&policy, "grep NoNewPrivs /proc/self/status").await.0, "NoNewPrivs:\t1\n");
}

#[tokio::test]
async fn shell_sessions_and_terminals_work_under_a_policy() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = Some(readable(&[&sandbox.path("r")]));
    let held = |text: &str| Command { policy: policy.clone(), ..line(text) };
    for (text, output) in
        [("cd /usr; export COLOUR=red; greet() { echo hi; }", ""), ("pwd; echo $COLOUR", "/usr\nred\n")]
    {
        let command = Command { shell_session: "agent".to_owned(), ..held(text) };
        let answer = sandbox.client.execute(command).await.unwrap();
        assert_eq!((&answer.output[..], answer.exit_code), (output.as_bytes(), 0));
    }
    let command = held("test -t 0 && echo x > /dev/tty && echo x > /dev/stderr && stty size > $(tty)");
    assert_eq!(sandbox.exit_code_of(command, Some(Terminal { rows: 24, columns: 80 })).await, 0);
}

#[tokio::test]
async fn a_started_command_is_restricted_like_an_executed_one() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let path = text(&sandbox.path("out/file"));
    let command = |policy| Command { policy, ..line(&format!("cat {path}")) };
    assert_eq!(sandbox.exit_code_of(command(None), None).await, 0);
    assert_eq!(sandbox.exit_code_of(command(Some(readable(&[]))), None).await, 1);
}

/// Landlock has no actions for these, see SECURITY.md.
#[tokio::test]
async fn modes_owners_times_and_attributes_outside_of_the_roots_are_not_covered() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = readable(&[]);
    sandbox
        .assert_works(&policy, "chmod 600 out/file && chown $(id -u) out/file && touch -c -d @1 out/file")
        .await;
    sandbox.assert_works(&policy, "stat out/file && test -d out && cd out").await;
    sandbox.assert_refused(&policy, "cat out/file").await;
}

#[tokio::test]
async fn all_commands_obey_the_binding_also_after_a_restart() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    sandbox.client.bind(bound(writable(&[&sandbox.path("w")]))).await.unwrap();
    let line = format!("echo x > {}", text(&sandbox.path("out/new")));
    assert_ne!(sandbox.client.run(&line).await.1, 0);
    let restarted = Client::of(&Guest::new(options(sandbox.dir.path())).unwrap()).await;
    assert_ne!(restarted.run(&line).await.1, 0);
    assert!(!sandbox.path("out/new").exists());
}

#[tokio::test]
async fn a_call_may_narrow_the_policy_of_the_sandbox() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    fs::create_dir(sandbox.path("w/sub")).unwrap();
    sandbox.client.bind(bound(writable(&[&sandbox.path("w")]))).await.unwrap();
    let narrow = writable(&[&sandbox.path("w/sub")]);
    sandbox.assert_works(&narrow, "echo x > w/sub/new").await;
    sandbox.assert_refused(&narrow, "echo x > w/new").await;
    sandbox.assert_refused(&Policy::default(), "echo x > out/new").await;
}

#[tokio::test]
async fn a_call_that_widens_the_policy_is_refused() {
    let sandbox = PolicySandbox::new().await;
    let roots =
        Policy { writable: writable(&[&sandbox.path("w")]).writable, ..readable(&[&sandbox.path("r")]) };
    let rule = ports(&[80, 443], &[]).network;
    sandbox.client.bind(bound(Policy { network: rule, ..roots })).await.unwrap();
    symlink(sandbox.path("out"), sandbox.path("w/out")).unwrap();
    let wider = [
        (writable(&[&sandbox.path("out")]), "out' is not below one of its writable roots"),
        (writable(&[&sandbox.path("w/out")]), "out' is not below one of its writable roots"),
        (writable(&[&sandbox.path("r")]), "r' is not below one of its writable roots"),
        (readable(&[&sandbox.path("out")]), "out' is not below one of its roots"),
        (network(Rule::Open(true)), "its network is not open"),
        (ports(&[80, 22], &[]), "port 22 is not one of its ports"),
        (ports(&[], &[80]), "port 80 is not one of its ports"),
    ];
    for (policy, why) in wider {
        let failure =
            sandbox.client.execute(Command { policy: Some(policy), ..line("true") }).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::Policy);
        assert!(failure.message().contains(why), "{failure}");
    }
    for narrower in [ports(&[443], &[]), network(Rule::None(true)), writable(&[&sandbox.path("w/sub")])] {
        let run = sandbox.client.execute(Command { policy: Some(narrower), ..line("true") }).await.unwrap();
        assert_eq!(run.exit_code, 0);
    }
}

#[tokio::test]
async fn a_link_in_the_place_of_a_root_opens_nothing() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    fs::create_dir(sandbox.path("w/sub")).unwrap();
    sandbox.client.bind(bound(writable(&[&sandbox.path("w"), &sandbox.path("w/sub")]))).await.unwrap();
    let everything = Policy::default();
    sandbox.assert_works(&everything, "rmdir w/sub && ln -s ../out w/sub && test -e w/sub/file").await;
    sandbox.assert_refused(&everything, "echo x > w/sub/new").await;
    assert!(!sandbox.path("out/new").exists());
}

#[tokio::test]
async fn links_in_the_roots_of_a_binding_are_resolved_at_bind() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    symlink(sandbox.path("w"), sandbox.path("link")).unwrap();
    sandbox.client.bind(bound(writable(&[&sandbox.path("link")]))).await.unwrap();
    sandbox.assert_works(&Policy::default(), "echo x > w/new && echo x > link/newer").await;
    sandbox.assert_refused(&Policy::default(), "echo x > out/new").await;
}

#[tokio::test]
async fn a_missing_root_takes_effect_once_it_exists() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = writable(&[&sandbox.path("later")]);
    sandbox.assert_refused(&policy, "mkdir later").await;
    fs::create_dir(sandbox.path("later")).unwrap();
    sandbox.assert_works(&policy, "echo x > later/new").await;
}

#[tokio::test]
async fn an_invalid_policy_is_refused() {
    let sandbox = PolicySandbox::new().await;
    let relative = Policy { readable: vec!["here".to_owned()], ..Policy::default() };
    let upwards = Policy { writable: vec!["/a/../b".to_owned()], ..Policy::default() };
    let no_port = network(Rule::Ports(Ports { connect: vec![65_536], listen: Vec::new() }));
    let to_zero = ports(&[0], &[]);
    for policy in
        [relative, upwards, no_port, to_zero, network(Rule::None(false)), network(Rule::Open(false))]
    {
        let run = sandbox.client.execute(Command { policy: Some(policy.clone()), ..line("true") }).await;
        assert_eq!(run.unwrap_err().code(), ErrorCode::InvalidArgument, "{policy:?}");
        assert_eq!(sandbox.client.bind(bound(policy)).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    }
    let many = Policy { readable: vec!["/a".to_owned(); limits::MAX_POLICY_PATHS + 1], ..Policy::default() };
    let many_ports = ports(&vec![1; limits::MAX_POLICY_PORTS + 1], &[]);
    for policy in [many, many_ports] {
        assert_eq!(sandbox.client.bind(bound(policy)).await.unwrap_err().code(), ErrorCode::TooLarge);
    }
}

#[tokio::test]
async fn a_deny_below_a_root_is_refused_unless_it_is_for_files_only() {
    let sandbox = PolicySandbox::new().await;
    let denied = vec![text(&sandbox.path("w/secret"))];
    let roots = readable(&[&sandbox.path("w")]);
    for policy in [roots.clone(), writable(&[&sandbox.path("r")]), Policy::default()] {
        let policy = Policy { denied: denied.clone(), ..policy };
        let failure = sandbox.client.bind(bound(policy)).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::Policy);
        assert!(failure.message().contains("the kernel cannot deny commands access to"), "{failure}");
    }
    let apart = Policy { denied: vec![text(&sandbox.path("out"))], ..roots.clone() };
    assert_eq!(sandbox.run(&apart, "true").await.1, 0);
    sandbox.client.bind(bound(Policy { denied, denied_for_files_only: true, ..roots })).await.unwrap();
}

/// A guest on a kernel without some features.
async fn guest_with_disabled(features: &str) -> (Client, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let disabled: DisabledKernelFeatures = features.parse().unwrap();
    let guest =
        Guest::new(Options { disabled_kernel_features: disabled, ..Options::new(dir.path()) }).unwrap();
    (Client::of(&guest).await, dir)
}

#[tokio::test]
async fn a_policy_that_cannot_be_enforced_is_reported_in_enforced() {
    let (client, dir) = guest_with_disabled("landlock,seccomp").await;
    let enforced = client.hello(1, 1).await.unwrap().enforced.unwrap();
    let held = [enforced.files, enforced.network, enforced.ports, enforced.processes];
    assert_eq!(held, [false; 4], "{enforced:?}");
    let policy = Policy { writable: vec!["/nowhere".to_owned()], ..network(Rule::None(true)) };
    let answer = client.session.clone().bind(bound(policy)).await.unwrap().into_inner();
    assert_eq!(answer.enforced, Some(enforced));
    assert_eq!(client.run(&format!("echo x > {}/new", dir.path().display())).await.1, 0);
    assert_eq!(client.stats().await.enforced, Some(enforced));
}

#[tokio::test]
async fn a_network_rule_also_isolates_commands_from_unrestricted_processes() {
    for disabled in ["", "landlock-network"] {
        let (client, dir) = guest_with_disabled(disabled).await;
        let enforced = client.hello(1, 1).await.unwrap().enforced.unwrap();
        assert_eq!(enforced.processes, kernel_has_landlock());
        assert!(!enforced.ports || disabled.is_empty());
        if !enforced.processes {
            return;
        }
        let (pid, _) = client.run("sleep 60 > /dev/null 2>&1 & echo $!").await;
        // Tracing, as a debugger does; root may read in any case.
        let look = format!("true < /proc/{}/mem", pid.trim());
        assert_eq!(client.run(&look).await.1, 0);
        for policy in [network(Rule::None(true)), ports(&[80], &[])] {
            let run = async |text: &str| {
                let command = Command { policy: Some(policy.clone()), ..line(text) };
                client.execute(command).await.unwrap().exit_code
            };
            assert_ne!(run(&look).await, 0, "{policy:?} without {disabled:?}");
            // They lose no other right.
            let link = format!("cd {} && mkdir -p a b && : > a/f && ln -f a/f b/f", dir.path().display());
            assert_eq!(run(&link).await, 0, "{policy:?} without {disabled:?}");
        }
    }
}

#[tokio::test]
async fn a_required_policy_that_cannot_be_enforced_is_refused() {
    let roots = Policy { required: true, ..writable(&[Path::new("/tmp")]) };
    let none = Policy { required: true, ..network(Rule::None(true)) };
    let some = Policy { required: true, ..ports(&[80], &[]) };
    let cases = [
        ("landlock", roots, "to its roots"),
        ("seccomp", none, "to no network"),
        ("landlock", some, "to its ports"),
    ];
    for (disabled, policy, what) in cases {
        let (client, _dir) = guest_with_disabled(disabled).await;
        let failure = client.bind(bound(policy.clone())).await.unwrap_err();
        assert_eq!(failure.code(), ErrorCode::Unsupported);
        assert!(failure.message().contains(what), "{failure}");
        assert_eq!(client.hello(1, 1).await.unwrap().claim, "");
        let answer = client.execute(Command { policy: Some(policy), ..line("echo ran") }).await.unwrap();
        let output = String::from_utf8(answer.output.to_vec()).unwrap();
        assert_eq!(answer.exit_code, 125);
        assert!(output.starts_with("the command was not started: this kernel cannot restrict"), "{output}");
    }
}

#[tokio::test]
async fn a_required_policy_is_still_required_after_a_restart_without_landlock() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let policy = Policy { required: true, ..writable(&[&sandbox.path("w")]) };
    sandbox.client.bind(bound(policy)).await.unwrap();
    sandbox.assert_works(&Policy::default(), "true").await;
    let disabled = DisabledKernelFeatures { landlock: true, ..DisabledKernelFeatures::default() };
    let restarted =
        Guest::new(Options { disabled_kernel_features: disabled, ..Options::new(sandbox.dir.path()) })
            .unwrap();
    assert_eq!(Client::of(&restarted).await.run("true").await.1, 125);
}

/// Servers to connect to.
struct Servers {
    tcp: TcpListener,
    other: TcpListener,
    udp: UdpSocket,
}

impl Servers {
    fn new() -> Self {
        let tcp = || TcpListener::bind("127.0.0.1:0").unwrap();
        Self { tcp: tcp(), other: tcp(), udp: UdpSocket::bind("127.0.0.1:0").unwrap() }
    }

    fn tcp(&self) -> SocketAddr {
        self.tcp.local_addr().unwrap()
    }
}

/// Ways out that use neither TCP nor Unix sockets, each with whether it needs root.
const WAYS_OUT: [(&str, bool); 11] = [
    ("udp", false),
    ("mptcp", false),
    ("fast open by sendto", false),
    ("fast open by sendmsg", false),
    ("fast open by sendmmsg", false),
    ("fast open by option", false),
    ("vsock", false),
    ("netlink", false),
    ("io_uring", false),
    ("raw", true),
    ("packet", true),
];

/// Checks that each way out works for an unrestricted command, and fails for a restricted one.
#[expect(clippy::print_stderr, reason = "skipped attempts are reported")]
async fn assert_ways_out_closed(policy: impl Fn(&Servers) -> Policy) {
    let (client, _dir) = client().await;
    let servers = Servers::new();
    let policy = &policy(&servers);
    for (way, needs_root) in WAYS_OUT {
        if needs_root && !rustix::process::geteuid().is_root() {
            eprintln!("NOT TRIED: {way} sockets need root");
            continue;
        }
        let to = if way == "udp" { servers.udp.local_addr().unwrap() } else { servers.tcp() };
        assert_eq!(try_it(&client, way, to, None).await, "ok", "{way} without a policy");
        assert_eq!(try_it(&client, way, to, Some(policy)).await, "EPERM", "{way}");
    }
    assert_eq!(try_it(&client, "unix", servers.tcp(), Some(policy)).await, "ok");
}

#[tokio::test]
async fn network_none_closes_every_way_out_but_unix_sockets() {
    let policy = network(Rule::None(true));
    assert_ways_out_closed(|_| policy.clone()).await;
    let (client, _dir) = client().await;
    let servers = Servers::new();
    assert_eq!(try_it(&client, "tcp", servers.tcp(), None).await, "ok");
    assert_eq!(try_it(&client, "tcp", servers.tcp(), Some(&policy)).await, "EPERM");
}

#[tokio::test]
async fn network_none_holds_without_landlock_too() {
    let (client, _dir) = guest_with_disabled("landlock").await;
    let policy = Policy { required: true, ..network(Rule::None(true)) };
    client.bind(bound(policy)).await.unwrap();
    assert_eq!(try_it(&client, "tcp", Servers::new().tcp(), None).await, "EPERM");
}

#[tokio::test]
async fn port_rules_close_every_way_out_but_plain_tcp() {
    let policy = |servers: &Servers| ports(&[servers.tcp().port()], &[]);
    assert_ways_out_closed(policy).await;
    let servers = Servers::new();
    let (client, _dir) = client().await;
    for (way, said) in [("sctp by flags", "EPERM"), ("nonblocking tcp", "ok")] {
        assert_eq!(try_it(&client, way, servers.tcp(), Some(&policy(&servers))).await, said, "{way}");
    }
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn system_calls_of_other_architectures_are_refused() {
    let (client, _dir) = client().await;
    let to = Servers::new().tcp();
    for policy in [network(Rule::None(true)), ports(&[80], &[])] {
        assert_eq!(try_it(&client, "x32", to, Some(&policy)).await, "EPERM");
    }
    // Not every kernel runs 32-bit programs. One that does ends a restricted 32-bit call by SIGSYS.
    if try_it(&client, "i386", to, None).await == "ok" {
        let said = try_it(&client, "i386", to, Some(&network(Rule::None(true)))).await;
        assert!(said.starts_with("exit 159"), "{said}");
    }
}

#[tokio::test]
async fn a_command_can_use_only_the_ports_of_its_policy() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let (client, servers) = (&sandbox.client, Servers::new());
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let policy = ports(&[servers.tcp().port()], &[free.port()]);
    let other = servers.other.local_addr().unwrap();
    for (what, to, said) in [
        ("tcp", servers.tcp(), "ok"),
        ("tcp", other, "EACCES"),
        ("listen", free, "ok"),
        ("listen", "127.0.0.1:0".parse().unwrap(), "EACCES"),
    ] {
        assert_eq!(try_it(client, what, to, None).await, "ok", "{what} {to} without a policy");
        assert_eq!(try_it(client, what, to, Some(&policy)).await, said, "{what} {to}");
    }
    let any = ports(&[], &[0]);
    assert_eq!(try_it(client, "listen", "127.0.0.1:0".parse().unwrap(), Some(&any)).await, "ok");
}

#[tokio::test]
async fn a_call_can_only_narrow_a_bound_network_rule() {
    let Some(sandbox) = PolicySandbox::with_landlock().await else { return };
    let (client, servers) = (&sandbox.client, Servers::new());
    let port = servers.tcp().port();
    client.bind(bound(ports(&[port], &[]))).await.unwrap();
    assert_eq!(try_it(client, "tcp", servers.tcp(), None).await, "ok");
    assert_eq!(try_it(client, "udp", servers.udp.local_addr().unwrap(), None).await, "EPERM");
    assert_eq!(try_it(client, "tcp", servers.tcp(), Some(&network(Rule::None(true)))).await, "EPERM");
}

#[tokio::test]
async fn hello_bind_and_stats_report_the_same_enforcement() {
    let (guest, _dir) = guest();
    let client = Client::of(&guest).await;
    let greeted = client.hello(1, 1).await.unwrap().enforced.unwrap();
    let answer = client.session.clone().bind(bound(Policy::default())).await.unwrap().into_inner();
    assert_eq!((answer.enforced, client.stats().await.enforced), (Some(greeted), Some(greeted)));
}
