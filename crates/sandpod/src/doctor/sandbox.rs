//! What sandboxes really do here.

use std::time::Duration;

use sandpod_client::ExecuteOptions;
use tokio::time::Instant;

use super::Finding;
use crate::{Provider, RawConfig, Result, Sandbox, SandboxHandle, SandboxRequest};

/// When what we make ends if we can't delete it.
const TTL: Duration = Duration::from_secs(600);
/// How long a command of ours may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Connects to the API server, which every Pod knows, with whatever the image has. It prints what came of it.
const CONNECT: &str = r#"
h=$KUBERNETES_SERVICE_HOST p=$KUBERNETES_SERVICE_PORT
test -n "$h" || exit 0
for tool in python3 nc bash; do
    if command -v $tool > /dev/null; then echo tried; break; fi
done
if command -v python3 > /dev/null; then
    python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)' "$h" "$p" && echo reached
elif command -v nc > /dev/null; then
    nc -w 3 "$h" "$p" < /dev/null && echo reached
elif command -v bash > /dev/null; then
    timeout 3 bash -c 'exec 3<> "/dev/tcp/$0/$1"' "$h" "$p" && echo reached
fi
"#;

/// Makes a sandbox, uses it and deletes it.
pub async fn examine_sandbox(provider: &Provider) -> Vec<Finding> {
    let began = Instant::now();
    let handle = match make(provider).await {
        Ok(handle) => handle,
        Err(error) => return vec![Finding::of("sandbox", &error)],
    };
    let mut findings = vec![used(&handle.sandbox, began).await, guest(&handle.sandbox).await];
    if let Err(error) = provider.delete(handle.id.as_str(), true).await {
        findings.push(Finding::of("sandbox", &error));
    }
    findings
}

async fn make(provider: &Provider) -> Result<SandboxHandle> {
    provider.get_or_create(SandboxRequest { ttl: Some(TTL), ..SandboxRequest::default() }).await
}

async fn used(sandbox: &Sandbox, began: Instant) -> Finding {
    const CHECK: &str = "sandbox";
    let options = ExecuteOptions { timeout: Some(PATIENCE), ..ExecuteOptions::default() };
    match sandbox.execute("true", options).await {
        Ok(executed) if executed.exit_code == Some(0) => {
            Finding::good(CHECK, format!("made and used within {:.1?}", began.elapsed()))
        }
        Ok(executed) => Finding::bad(
            CHECK,
            format!("the command true ended with {:?}", executed.exit_code),
            "See what the image's /bin/sh says: sandpod run -- /bin/sh -c true",
        ),
        Err(error) => Finding::bad(CHECK, error.to_string(), "See why its place is not running."),
    }
}

async fn guest(sandbox: &Sandbox) -> Finding {
    const CHECK: &str = "guest";
    let ours = env!("CARGO_PKG_VERSION");
    match sandbox.unguarded().info().await {
        Ok(greeting) if greeting.guest_version == ours => {
            let enforced = greeting.enforced;
            let all =
                [("roots", enforced.files), ("no network", enforced.network), ("ports", enforced.ports)];
            let holds: Vec<_> = all.iter().filter(|(_, holds)| *holds).map(|(name, _)| *name).collect();
            let holds = if holds.is_empty() { "nothing".to_owned() } else { holds.join(", ") };
            Finding::good(CHECK, format!("version {ours}; policies can enforce {holds}"))
        }
        Ok(greeting) => Finding::unsure(
            CHECK,
            format!("version {}, and this is {ours}", greeting.guest_version),
            "Build the guest anew with `cargo xtask guest`, or use the one that came with this version.",
        ),
        Err(error) => Finding::bad(CHECK, error.to_string(), "See why its place is not running."),
    }
}

/// Finds out whether a cluster enforces the deny-all policy, by two sandboxes: one that should reach nothing, and one that
/// shows that there is something to reach.
pub async fn examine_network(config: &RawConfig) -> Finding {
    const CHECK: &str = "network policy";
    if !config.block_network {
        return Finding::unsure(
            CHECK,
            "sandboxes have network: block_network is false",
            "Set block_network to true to cut them off.",
        );
    }
    let open = RawConfig { block_network: false, ..config.clone() };
    match (reaches(config).await, reaches(&open).await) {
        (Ok(true), _) => Finding::bad(
            CHECK,
            "not enforced: a sandbox without network reached the API server",
            "Install a network plugin that enforces NetworkPolicies, such as Calico or Cilium; until then sandboxes \
             have network whatever block_network says.",
        ),
        (Ok(false), Ok(true)) => Finding::good(CHECK, "enforced: a sandbox without network reaches nothing"),
        (Ok(false), Ok(false)) => Finding::unsure(
            CHECK,
            "it can't be told: a sandbox with network reaches nothing either",
            "Try an image that has python3, nc or bash: --image python:3.12-slim",
        ),
        (Err(error), _) | (_, Err(error)) => Finding::of(CHECK, &error),
    }
}

/// Whether a sandbox of this configuration reaches the API server.
async fn reaches(config: &RawConfig) -> Result<bool> {
    let provider = Provider::connect(config.clone()).await?;
    Ok(connect(&provider).await? == Some(true))
}

/// Finds out whether what keeps sandboxes of a template from the network is enforced, by one of them. With the policies of
/// agent-sandbox and with ours none reaches the API server.
pub async fn examine_isolation(provider: &Provider) -> Finding {
    judge_isolation(connect(provider).await)
}

fn judge_isolation(reached: Result<Option<bool>>) -> Finding {
    const CHECK: &str = "isolation";
    match reached {
        Ok(Some(true)) => Finding::bad(
            CHECK,
            "no network policy is enforced: a sandbox reached the API server",
            "Install a network plugin that enforces NetworkPolicies, such as Calico or Cilium, and let a policy select the \
             template's Pods.",
        ),
        Ok(Some(false)) => Finding::good(CHECK, "a sandbox does not reach the API server"),
        Ok(None) => Finding::unsure(
            CHECK,
            "it can't be told: the image has nothing to try it with",
            "Try a template whose image has python3, nc or bash.",
        ),
        Err(error) => Finding::of(CHECK, &error),
    }
}

/// Whether a new sandbox reaches the API server; none: its image has nothing to try it with.
async fn connect(provider: &Provider) -> Result<Option<bool>> {
    let handle = make(provider).await?;
    let options = ExecuteOptions { timeout: Some(PATIENCE), ..ExecuteOptions::default() };
    let connected = handle.sandbox.execute(CONNECT, options).await;
    provider.delete(handle.id.as_str(), true).await?;
    let output = connected.map(|executed| executed.output).unwrap_or_default();
    let says = |word: &[u8]| output.split(|byte| *byte == b'\n').any(|line| line == word);
    Ok(says(b"tried").then(|| says(b"reached")))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_sandbox_that_is_not_cut_off_is_found() {
        assert_eq!(judge_isolation(Ok(Some(false))).verdict, Verdict::Good);
        assert_eq!(judge_isolation(Ok(None)).verdict, Verdict::Unsure);
        let finding = judge_isolation(Ok(Some(true)));
        assert_eq!(finding.verdict, Verdict::Bad);
        assert!(finding.fix.unwrap().contains("Install a network plugin that enforces"));
    }
}
