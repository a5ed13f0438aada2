//! Checks that create sandboxes.

use std::time::Duration;

use sandpod_client::{Enforced, Error as CallError, Escaped, ExecuteOptions, Executed};
use tokio::time::{Instant, sleep};

use super::Finding;
use crate::{Error, Provider, RawConfig, Result, Sandbox, SandboxHandle, SandboxRequest};

/// Time to live of sandboxes that these checks create, in case their deletion fails.
const TTL: Duration = Duration::from_secs(600);
/// Time limit of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time until a network plugin applies its rules.
const RULES_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between probes of the network.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const GUEST: &str = "guest";
const NETWORK_POLICY: &str = "network policy";
const ISOLATION: &str = "isolation";
const NOT_RUNNING: &str = "See why its place is not running.";
/// Shell script that connects to the API server with the first program that the image has. It prints `reached` or
/// `not reached`, or neither if it cannot probe.
const CONNECT: &str = r#"
h=$KUBERNETES_SERVICE_HOST p=$KUBERNETES_SERVICE_PORT
has() { command -v "$1" > /dev/null; }
tell() {
    case $1 in
        0) echo reached ;;
        1 | 124 | 143) echo 'not reached' ;; # refused, or no answer in time
        *) exit "$1" ;;
    esac
}
if test -z "$h"; then
    echo 'KUBERNETES_SERVICE_HOST is not set'
    exit 1
elif has python3; then
    python3 -c '
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)
    print("reached")
except OSError:
    print("not reached")
' "$h" "$p"
elif has nc; then
    nc -w 3 "$h" "$p" < /dev/null
    tell $?
elif has bash; then
    timeout 3 bash -c 'exec 3<> "/dev/tcp/$0/$1"' "$h" "$p"
    tell $?
else
    echo 'the image has neither python3 nor nc nor bash'
    exit 1
fi
"#;

/// Creates a sandbox, runs a command in it and deletes it. Each finding is added to `findings` as soon as it is known.
/// Returns what the guest enforces, if there is a sandbox.
pub async fn examine_sandbox(provider: &Provider, findings: &mut impl Extend<Finding>) -> Option<Enforced> {
    let began = Instant::now();
    let handle = match make(provider).await {
        Ok(handle) => handle,
        Err(error) => {
            findings.extend([Finding::of("sandbox", &error)]);
            return None;
        }
    };
    findings.extend([used(&handle.sandbox, began).await]);
    findings.extend([guest(&handle.sandbox).await]);
    let deleted = provider.delete(handle.id.as_str(), true).await;
    findings.extend(deleted.err().map(|error| Finding::of("sandbox", &error)));
    Some(handle.enforced)
}

async fn make(provider: &Provider) -> Result<SandboxHandle> {
    provider.get_or_create(SandboxRequest { ttl: Some(TTL), ..SandboxRequest::default() }).await
}

async fn execute(sandbox: &Sandbox, line: &str) -> Result<Executed, CallError> {
    sandbox
        .execute(line, ExecuteOptions { timeout: Some(COMMAND_TIMEOUT), ..ExecuteOptions::default() })
        .await
}

async fn used(sandbox: &Sandbox, began: Instant) -> Finding {
    judge_use(execute(sandbox, "true").await, began)
}

fn judge_use(executed: Result<Executed, CallError>, began: Instant) -> Finding {
    const CHECK: &str = "sandbox";
    match executed {
        Ok(executed) if executed.exit_code == Some(0) => {
            Finding::good(CHECK, format!("created and used within {:.1?}", began.elapsed()))
        }
        Ok(executed) => Finding::bad(
            CHECK,
            format!("the command true {}", ending(&executed)),
            "See the output of the image's /bin/sh: sandpod run -- /bin/sh -c true",
        ),
        Err(error) => Finding::bad(CHECK, error.to_string(), NOT_RUNNING),
    }
}

/// Describes how a command ended, with the last line of its output.
fn ending(executed: &Executed) -> String {
    let code = executed.exit_code.map_or_else(|| "an unknown code".to_owned(), |code| format!("code {code}"));
    let output = String::from_utf8_lossy(&executed.output);
    match output.lines().last() {
        Some(line) => format!("ended with {code}: {}", Escaped(line)),
        None => format!("ended with {code} without output"),
    }
}

async fn guest(sandbox: &Sandbox) -> Finding {
    match sandbox.unguarded().info().await {
        Ok(greeting) => judge_guest(&greeting.guest_version, greeting.enforced),
        Err(error) => Finding::bad(GUEST, error.to_string(), NOT_RUNNING),
    }
}

fn judge_guest(version: &str, enforced: Enforced) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    if version != ours {
        return Finding::unsure(
            GUEST,
            format!("version {version}, and this is {ours}"),
            "Build the guest again with `cargo xtask guest`, or use the one that came with this version.",
        );
    }
    let all = [("roots", enforced.files), ("no network", enforced.network), ("ports", enforced.ports)];
    let holds: Vec<_> = all.iter().filter(|(_, holds)| *holds).map(|(name, _)| *name).collect();
    let holds = if holds.is_empty() { "nothing".to_owned() } else { holds.join(", ") };
    Finding::good(GUEST, format!("version {ours}; policies can enforce {holds}"))
}

/// Whether a sandbox reaches the API server.
#[derive(Debug, PartialEq)]
enum Reach {
    Yes,
    No,
    /// The probe failed: the reason and the next step.
    Unknown(String, String),
}

impl From<Error> for Reach {
    fn from(error: Error) -> Self {
        Self::Unknown(error.message().to_owned(), error.next_step().to_owned())
    }
}

impl From<Result<Executed, CallError>> for Reach {
    fn from(connected: Result<Executed, CallError>) -> Self {
        let executed = match connected {
            Ok(executed) => executed,
            Err(error) => return Self::Unknown(error.to_string(), NOT_RUNNING.to_owned()),
        };
        let has_line = |word: &[u8]| executed.output.split(|byte| *byte == b'\n').any(|line| line == word);
        if has_line(b"reached") {
            return Self::Yes;
        }
        if has_line(b"not reached") {
            return Self::No;
        }
        let next = "Try again, or with an image that has python3, nc or bash.";
        Self::Unknown(format!("the try {}", ending(&executed)), next.to_owned())
    }
}

/// Checks that the cluster enforces the deny-all policy. Creates a sandbox that must not reach the API server, and then
/// one with network as a control.
pub async fn examine_network(config: &RawConfig) -> Finding {
    if !config.block_network {
        return Finding::unsure(
            NETWORK_POLICY,
            "sandboxes have network: block_network is false",
            "Set block_network to true to cut them off.",
        );
    }
    let cut_off = match reach_with(config, &Reach::No).await {
        Ok(cut_off) => cut_off,
        Err(error) => return Finding::of(NETWORK_POLICY, &error),
    };
    let open = RawConfig { block_network: false, ..config.clone() };
    let open = async { reach_with(&open, &Reach::Yes).await.unwrap_or_else(Reach::from) };
    judge_network(cut_off, open).await
}

/// Judges the results. The sandbox with network is created only if the one without network reached nothing.
async fn judge_network(cut_off: Reach, open: impl Future<Output = Reach>) -> Finding {
    match cut_off {
        Reach::Yes => Finding::bad(
            NETWORK_POLICY,
            "not enforced: a sandbox without network reached the API server",
            "Install a network plugin that enforces NetworkPolicies, such as Calico or Cilium; until then sandboxes \
             have network whatever block_network says.",
        ),
        Reach::No => judge_enforcement(open.await),
        Reach::Unknown(why, next) => unknown(NETWORK_POLICY, &why, next),
    }
}

/// Judges the result of the sandbox with network, after the one without network reached nothing.
fn judge_enforcement(open: Reach) -> Finding {
    match open {
        Reach::Yes => Finding::good(NETWORK_POLICY, "enforced: a sandbox without network reaches nothing"),
        Reach::No => unknown(
            NETWORK_POLICY,
            "a sandbox with network reaches nothing either",
            "See what keeps all Pods from the API server: kubectl get networkpolicies -A, or a firewall.",
        ),
        Reach::Unknown(why, next) => unknown(NETWORK_POLICY, &why, next),
    }
}

fn unknown(check: &str, why: &str, next: impl Into<String>) -> Finding {
    Finding::unsure(check, format!("the result is unknown: {why}"), next)
}

/// Whether a sandbox of this configuration reaches the API server.
async fn reach_with(config: &RawConfig, wanted: &Reach) -> Result<Reach> {
    reach(&Provider::connect(config.clone()).await?, wanted).await
}

/// Checks that the cluster enforces the network policies of a template. Creates a sandbox, which must not reach the API
/// server: the policies of agent-sandbox and of sandpod both deny that.
pub async fn examine_isolation(provider: &Provider) -> Finding {
    reach(provider, &Reach::No).await.map_or_else(|error| Finding::of(ISOLATION, &error), judge_isolation)
}

fn judge_isolation(reach: Reach) -> Finding {
    match reach {
        Reach::Yes => Finding::bad(
            ISOLATION,
            "no network policy is enforced: a sandbox reached the API server",
            "Install a network plugin that enforces NetworkPolicies, such as Calico or Cilium, and let a policy select the \
             template's Pods.",
        ),
        Reach::No => Finding::good(ISOLATION, "a sandbox does not reach the API server"),
        Reach::Unknown(why, next) => unknown(ISOLATION, &why, next),
    }
}

/// Whether a new sandbox reaches the API server.
async fn reach(provider: &Provider, wanted: &Reach) -> Result<Reach> {
    let handle = make(provider).await?;
    let reach = retry_until(wanted, async || execute(&handle.sandbox, CONNECT).await.into()).await;
    // A failed deletion does not change the result: the sandbox expires after its time to live.
    if let Err(error) = provider.delete(handle.id.as_str(), true).await {
        tracing::warn!(id = %handle.id, %error, "a sandbox that was made to try the network could not be deleted");
    }
    Ok(reach)
}

/// Repeats the probe until it has the wanted result, because a network plugin may apply its rules late. Returns the
/// last result after [`RULES_TIMEOUT`].
async fn retry_until(wanted: &Reach, mut attempt: impl AsyncFnMut() -> Reach) -> Reach {
    let end = Instant::now() + RULES_TIMEOUT;
    loop {
        let reach = attempt().await;
        if reach == *wanted || matches!(reach, Reach::Unknown(..)) || Instant::now() >= end {
            return reach;
        }
        sleep(RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::net::TcpListener;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::process::Command;

    use super::super::{Verdict, fix, next};
    use super::*;

    fn ended(exit_code: i32, output: &'static str) -> Executed {
        Executed {
            output: output.into(),
            exit_code: Some(exit_code),
            truncated: false,
            timed_out: false,
            note: None,
            notices: Vec::new(),
        }
    }

    fn gone() -> CallError {
        CallError::Gone { reason: "its Pod was deleted".to_owned() }
    }

    #[test]
    fn failed_command_is_reported_with_its_last_line() {
        let began = Instant::now();
        assert_eq!(judge_use(Ok(ended(0, "")), began).verdict, Verdict::Good);
        let failed = judge_use(Ok(ended(125, "sandpod: it can't start\nthere is no /bin/sh\n")), began);
        assert_eq!(failed.found, "the command true ended with code 125: there is no /bin/sh");
        assert!(fix(failed).contains("sandpod run -- /bin/sh -c true"));
        let lost = judge_use(Err(gone()), began);
        assert!(lost.found.contains("its Pod was deleted"), "{lost:?}");
        assert_eq!(fix(lost), NOT_RUNNING);
    }

    #[test]
    fn guest_of_another_version_is_reported() {
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(judge_guest(ours, Enforced::default()).verdict, Verdict::Good);
        let other = judge_guest("0.0.1", Enforced::default());
        assert_eq!(other.found, format!("version 0.0.1, and this is {ours}"));
        assert!(next(other).contains("Build the guest again with `cargo xtask guest`"));
    }

    #[tokio::test]
    async fn policy_is_enforced_if_only_the_sandbox_without_network_is_blocked() {
        let judged = async |cut_off: Reach, open: Reach| judge_network(cut_off, ready(open)).await;
        assert_eq!(judged(Reach::No, Reach::Yes).await.verdict, Verdict::Good);
        assert!(fix(judged(Reach::Yes, Reach::Yes).await).contains("Install a network plugin that enforces"));
        assert!(next(judged(Reach::No, Reach::No).await).contains("kubectl get networkpolicies -A"));
    }

    #[tokio::test]
    async fn failed_probe_leaves_enforcement_unknown() {
        let failed = || Reach::from(Err(gone()));
        for (cut_off, open) in [(failed(), Reach::Yes), (Reach::No, failed())] {
            let finding = judge_network(cut_off, ready(open)).await;
            assert!(finding.found.starts_with("the result is unknown: the sandbox is gone: "), "{finding:?}");
            assert_eq!(next(finding), NOT_RUNNING);
        }
        let error = Error::invalid("None can be made.", "Raise the quota.");
        assert_eq!(next(judge_isolation(error.into())), "Raise the quota.");
        let killed = judge_isolation(Ok(ended(137, "Killed\n")).into());
        assert_eq!(killed.found, "the result is unknown: the try ended with code 137: Killed");
        assert!(next(killed).contains("an image that has python3, nc or bash"));
    }

    #[tokio::test]
    async fn network_is_not_probed_without_block_network() {
        let open = RawConfig { block_network: false, ..RawConfig::default() };
        assert_eq!(next(examine_network(&open).await), "Set block_network to true to cut them off.");
    }

    #[test]
    fn template_without_enforced_isolation_is_reported() {
        assert_eq!(judge_isolation(Reach::No).verdict, Verdict::Good);
        assert!(fix(judge_isolation(Reach::Yes)).contains("Install a network plugin that enforces"));
    }

    #[tokio::test(start_paused = true)]
    async fn probe_waits_a_limited_time_for_network_rules() {
        let began = Instant::now();
        let since = |late: u64| {
            if began.elapsed() < Duration::from_secs(late) { Reach::Yes } else { Reach::No }
        };
        assert_eq!(retry_until(&Reach::No, async || since(5)).await, Reach::No);
        assert_eq!(began.elapsed(), Duration::from_secs(5));
        assert_eq!(retry_until(&Reach::No, async || since(1000)).await, Reach::Yes);
        assert_eq!(began.elapsed(), Duration::from_secs(5) + RULES_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_probe_is_not_repeated() {
        let began = Instant::now();
        let reach = retry_until(&Reach::No, async || Err(gone()).into()).await;
        assert!(matches!(reach, Reach::Unknown(..)) && began.elapsed().is_zero());
    }

    /// Runs the probe with only the programs in `path`.
    fn tried(path: &Path, port: Option<u16>) -> Reach {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", CONNECT]).env_clear().env("PATH", path);
        if let Some(port) = port {
            shell.envs([
                ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
                ("KUBERNETES_SERVICE_PORT", &port.to_string()),
            ]);
        }
        let output = shell.output().unwrap();
        let executed = Executed { output: output.stdout.into(), ..ended(output.status.code().unwrap(), "") };
        Ok(executed).into()
    }

    /// Creates a directory with only these programs.
    fn programs(programs: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, path) in programs {
            symlink(path, dir.path().join(name)).unwrap();
        }
        dir
    }

    #[test]
    fn each_program_distinguishes_reachable_from_unreachable() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let (busybox, bash) = ("/bin/busybox", "/bin/bash");
        for path in [
            programs(&[("nc", busybox)]),
            programs(&[("bash", bash), ("timeout", "/usr/bin/timeout")]),
            programs(&[("bash", bash), ("timeout", busybox)]),
            programs(&[("python3", "/usr/bin/python3")]),
        ] {
            assert_eq!(tried(path.path(), Some(port)), Reach::Yes);
            assert_eq!(tried(path.path(), Some(1)), Reach::No);
        }
    }

    #[test]
    fn probe_reports_missing_programs_and_variables() {
        let why = |reach: Reach| match reach {
            Reach::Unknown(why, _) => why,
            other => panic!("{other:?}"),
        };
        let none = programs(&[]);
        assert!(why(tried(none.path(), Some(1))).ends_with("the image has neither python3 nor nc nor bash"));
        assert!(why(tried(none.path(), None)).ends_with("KUBERNETES_SERVICE_HOST is not set"));
        let broken = programs(&[("bash", "/bin/bash")]); // without timeout
        assert_eq!(why(tried(broken.path(), Some(1))), "the try ended with code 127 without output");
    }
}
