//! `cargo xtask bench spine`: calls, commands, transfers and creation beside a bare exec stream, one
//! exec per command, kubectl and a bare Pod, on the testbed, in one run.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use sandpod::{Provider, RawConfig, SandboxHandle, SandboxRequest};
use sandpod_bench::measure::{BULK, BULK_MIB, median, noise, timed};
use sandpod_bench::peer::{python, script};
use sandpod_bench::pods::{config, creation, execute_true};
use sandpod_bench::report::Report;
use sandpod_kube::exec::{self, PodRef};
use sandpod_kube::kube::Client;
use sandpod_testbed::Namespace;
use sandpod_testbed::proxy::FaultProxy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

const CALLERS: u32 = 16;
const EACH: u32 = 40;

#[tokio::main]
async fn main() -> Result<()> {
    // On a worker thread, as in a program, and not on the thread that only waits.
    tokio::spawn(measure()).await?
}

async fn measure() -> Result<()> {
    let namespace = Namespace::create().await;
    let client = namespace.raw().await;
    let provider = Provider::with_client(client.clone(), roomy(&namespace))?;
    let handle = provider.get_or_create(SandboxRequest::default()).await?;
    let mut report = Report::default();

    latencies("", &client, &handle, &mut report).await?;
    peers(&handle, &mut report).await?;
    transfers(&handle, &mut report).await?;
    creation(&provider, &namespace, &mut report).await?;
    for round_trip in [20, 80] {
        let proxy = FaultProxy::start(namespace.api_address()).await?;
        proxy.set_round_trip(Duration::from_millis(round_trip));
        let far = namespace.raw_through(proxy.address()).await;
        let provider = Provider::with_client(far.clone(), roomy(&namespace))?;
        let handle = provider.reconnect(handle.id.as_str()).await?;
        latencies(&format!(" at {round_trip} ms"), &far, &handle, &mut report).await?;
    }

    provider.delete(handle.id.as_str(), true).await?;
    namespace.finish().await;
    println!("{}", report.table());
    report.keep("spine")
}

/// Returns a configuration with room for the transferred files.
fn roomy(namespace: &Namespace) -> RawConfig {
    RawConfig { ephemeral_storage_limit: "1Gi".to_owned(), ..config(namespace) }
}

/// Measures one call and one command at a time, beside a bare exec stream for the same work.
async fn latencies(at: &str, client: &Client, handle: &SandboxHandle, report: &mut Report) -> Result<()> {
    let pod = pod_of(handle)?;
    let mut echo = exec::stream(client, &pod, "sandbox", ["cat"]).await?;
    let mut shell =
        exec::stream(client, &pod, "sandbox", ["sh", "-c", "while read x; do sh -c true; echo; done"])
            .await?;
    let (mut bare_echo, mut calls, mut bare_true, mut trues) = (vec![], vec![], vec![], vec![]);
    // Alternate, so that noise of the machine affects both sides equally.
    for _ in 0..200 {
        bare_echo.push(timed(async { round_trip(&mut echo).await }).await?);
        calls.push(timed(async { Ok(handle.sandbox.stat("/", true).await.map(drop)?) }).await?);
        bare_true.push(timed(async { round_trip(&mut shell).await }).await?);
        trues.push(timed(execute_true(handle)).await?);
    }
    report.near(format!("a call, to a bare stream's echo{at}"), median(calls), median(bare_echo), 1.5);
    report.near(format!("execute true, to a shell loop{at}"), median(trues), median(bare_true), 1.5);
    Ok(())
}

/// Measures commands beside the method of earlier packages: one exec for each, by the Python client.
async fn peers(handle: &SandboxHandle, report: &mut Report) -> Result<()> {
    let peer = one_exec_each(&pod_of(handle)?).await?;
    let mut alone = vec![];
    for _ in 0..200 {
        alone.push(timed(execute_true(handle)).await?);
    }
    report.faster("execute true, to one exec each", median(alone), peer.median_ms, 40.0);
    let together = timed(async {
        try_join_all((0..CALLERS).map(|_| async {
            for _ in 0..EACH {
                execute_true(handle).await?;
            }
            anyhow::Ok(())
        }))
        .await
        .map(drop)
    })
    .await?;
    let rate = f64::from(CALLERS * EACH) / together * 1000.0;
    report.rate("16 callers, to one exec each", rate, peer.rate, "/s", 50.0);
    Ok(())
}

#[derive(serde::Deserialize)]
struct Peer {
    median_ms: f64,
    rate: f64,
}

async fn one_exec_each(pod: &PodRef) -> Result<Peer> {
    let output = python()
        .arg(script("one_exec_each.py"))
        .args([&pod.namespace, &pod.name])
        .args(["20", "16", "4"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .await?;
    serde_json::from_slice(&output.stdout).context("the peer printed no figures")
}

/// Measures 64 MiB up and down, beside `kubectl exec` with a pipe.
async fn transfers(handle: &SandboxHandle, report: &mut Report) -> Result<()> {
    let content = bytes::Bytes::from(noise(BULK));
    let pod = pod_of(handle)?;
    let (mut up, mut kubectl_up, mut down, mut kubectl_down) = (vec![], vec![], vec![], vec![]);
    for _ in 0..3 {
        // Without the echo kubectl treats a closed stdout as the end and drops most of the input.
        let receive = ["sh", "-c", "cat > /workspace/peer; echo"];
        kubectl_up.push(timed(kubectl(&pod, &receive, &content)).await?);
        up.push(
            timed(async { Ok(handle.sandbox.write("/workspace/ours", content.clone()).await.map(drop)?) })
                .await?,
        );
        kubectl_down.push(timed(kubectl(&pod, &["cat", "/workspace/ours"], &[])).await?);
        down.push(
            timed(async { Ok(handle.sandbox.download("/workspace/ours", BULK as u64).await.map(drop)?) })
                .await?,
        );
    }
    let rate = |milliseconds: Vec<f64>| f64::from(BULK_MIB) / median(milliseconds) * 1000.0;
    report.rate("64 MiB up, to kubectl exec", rate(up), rate(kubectl_up), "MiB/s", 0.8);
    report.rate("64 MiB down, to kubectl exec", rate(down), rate(kubectl_down), "MiB/s", 0.8);
    Ok(())
}

async fn round_trip(stream: &mut exec::ExecStream) -> Result<()> {
    stream.write_all(b"\n").await?;
    stream.flush().await?;
    stream.read_exact(&mut [0]).await?;
    Ok(())
}

async fn kubectl(pod: &PodRef, command: &[&str], input: &[u8]) -> Result<()> {
    let mut kubectl = Command::new("kubectl");
    kubectl
        .env("KUBECONFIG", std::env::var_os("SANDPOD_TEST_KUBECONFIG").unwrap_or_default())
        .args(["exec", "--stdin", "--namespace", &pod.namespace, &pod.name, "--"])
        .args(command)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = kubectl.spawn().context("kubectl is not on PATH")?;
    let mut stdin = child.stdin.take().context("it is piped")?;
    let write = async move {
        stdin.write_all(input).await?;
        stdin.shutdown().await
    };
    let (written, output) = tokio::join!(write, child.wait_with_output());
    written?;
    anyhow::ensure!(output?.status.success(), "kubectl exec failed");
    Ok(())
}

fn pod_of(handle: &SandboxHandle) -> Result<PodRef> {
    let (namespace, name) = handle.pod.split_once('/').context("a Pod has a namespace")?;
    Ok(PodRef::new(namespace, name))
}
