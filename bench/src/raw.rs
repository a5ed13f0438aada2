//! `cargo xtask bench raw`: sandboxes from a warm pool and cold ones, many at once, and many that stay open, beside bare
//! Pods, on the testbed, in one run.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use sandpod::{Provider, RawConfig, SandboxHandle};
use sandpod_bench::measure::{median, timed};
use sandpod_bench::pods::{Volumes, config, creation, execute_true, gracefully, start, start_pod};
use sandpod_bench::report::Report;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::{Api, ListParams};
use sandpod_testbed::{Namespace, wait_until_none};
use tokio::time::{sleep, timeout};

const WARM_GOAL_MS: f64 = 150.0;
const CLAIMS: usize = 20;
const BURST: usize = 30;
/// The numbers of open sandboxes at which memory is measured.
const OPEN: [usize; 5] = [1, 50, 100, 150, 200];
/// The memory limit of an open sandbox in the client's process.
const OURS_KIB: f64 = 1024.0;
/// The memory limit of an open sandbox in the API server, which carries its stream.
const SERVER_KIB: f64 = 2048.0;

#[tokio::main]
async fn main() -> Result<()> {
    let namespace = Namespace::create().await;
    let provider = Provider::with_client(namespace.raw().await, config(&namespace))?;
    let mut report = Report::default();

    creation(&provider, &namespace, &mut report).await?;
    warm(&namespace, &mut report).await?;
    burst(&provider, &namespace, &mut report).await?;
    many_open(&provider, &mut report).await?;

    wait_until_none(&namespace.api::<Pod>()).await;
    namespace.finish().await;
    println!("{}", report.table());
    report.keep("raw")
}

/// Measures from the request to the end of the first command, with a warm Pod.
async fn warm(namespace: &Namespace, report: &mut Report) -> Result<()> {
    let config = RawConfig { warm_pool_size: 2, ..config(namespace) };
    let pooled = Provider::with_client(namespace.raw().await, config)?;
    let first = start(&pooled).await?;
    pooled.delete(first.id.as_str(), true).await?;
    let mut claims = vec![];
    for _ in 0..CLAIMS {
        // Wait for a full pool, so that it does no other work during the measurement.
        timeout(Duration::from_secs(300), async {
            while pooled.pool_status().await?.available < 2 {
                sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        })
        .await
        .context("the pool does not fill")??;
        let mut taken = None;
        claims.push(
            timed(async {
                taken = Some(start(&pooled).await?);
                Ok(())
            })
            .await?,
        );
        let taken = taken.context("it was taken")?;
        let cold = pooled.info(taken.id.as_str()).await?.cold_reason;
        anyhow::ensure!(cold.is_none(), "it was not warm: {cold:?}");
        pooled.delete(taken.id.as_str(), true).await?;
    }
    report.within("warm claim to first command", median(claims), WARM_GOAL_MS, "ms");
    pooled.close().await;
    pooled.cleanup(Some(Duration::ZERO)).await?;
    Ok(())
}

/// Creates many sandboxes at once until the last one has answered, beside as many Pods with as many volumes until the last
/// one is Ready. The node's time for these Pods is the floor. Pods without volumes are faster, and are shown, too.
async fn burst(provider: &Provider, namespace: &Namespace, report: &mut Report) -> Result<()> {
    let pods: Api<Pod> = namespace.api();
    wait_until_none(&pods).await;
    let bare = burst_of_pods(&pods, Volumes::None).await?;
    let floor = burst_of_pods(&pods, Volumes::AsSandboxes).await?;
    println!("burst of {BURST} Pods without a volume: {bare:.0} ms");
    let mut made = vec![];
    let ours = timed(async {
        made = try_join_all((0..BURST).map(|_| start(provider))).await?;
        Ok(())
    })
    .await?;
    delete_all(provider, made).await?;
    report.near(format!("burst of {BURST}, to {BURST} Pods with as many volumes"), ours, floor, 1.25);
    Ok(())
}

async fn burst_of_pods(pods: &Api<Pod>, volumes: Volumes) -> Result<f64> {
    let names: Vec<_> = (0..BURST).map(|number| format!("bare-{number}")).collect();
    let starting = names.iter().map(|name| start_pod(pods, name, volumes));
    let took = timed(async { try_join_all(starting).await.map(drop) }).await?;
    pods.delete_collection(&gracefully(), &ListParams::default()).await?;
    wait_until_none(pods).await;
    Ok(took)
}

/// Opens more and more sandboxes with their streams and measures the memory.
async fn many_open(provider: &Provider, report: &mut Report) -> Result<()> {
    let programs = [
        ("ours", std::process::id()),
        ("API server", pid_of("kube-apiserver")?),
        ("containerd", pid_of("containerd")?),
    ];
    let mut open: Vec<SandboxHandle> = vec![];
    let mut looks = vec![];
    for count in OPEN {
        open.extend(try_join_all((open.len()..count).map(|_| start(provider))).await?);
        // Each one answers once more, so all streams are open at the same time.
        try_join_all(open.iter().map(execute_true)).await?;
        let look = programs.iter().map(|(_, pid)| resident_kib(*pid)).collect::<Result<Vec<_>>>()?;
        let shown =
            programs.iter().zip(&look).map(|((name, _), kib)| format!("{name} {:.0} MiB", kib / 1024.0));
        println!("{count} open sandboxes: {}", shown.collect::<Vec<_>>().join(", "));
        looks.push(look);
    }
    let (first, last) = (&looks[0], &looks[OPEN.len() - 1]);
    let more = f64::from(u32::try_from(OPEN[OPEN.len() - 1] - OPEN[0])?);
    report.within("our memory for an open sandbox", (last[0] - first[0]) / more, OURS_KIB, "KiB");
    report.within("the API server's for an open sandbox", (last[1] - first[1]) / more, SERVER_KIB, "KiB");
    println!("containerd's for an open sandbox: {:.0} KiB", (last[2] - first[2]) / more);
    delete_all(provider, open).await
}

async fn delete_all(provider: &Provider, handles: Vec<SandboxHandle>) -> Result<()> {
    let deleting =
        stream::iter(handles).map(|handle| async move { provider.delete(handle.id.as_str(), true).await });
    Ok(deleting.buffer_unordered(16).try_collect().await?)
}

/// Finds the process of a component of the testbed, which runs on this machine.
fn pid_of(program: &str) -> Result<u32> {
    let pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids = pids.filter(|pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == program)
    });
    pids.next().with_context(|| format!("{program} does not run here"))
}

fn resident_kib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no line VmRSS")?;
    Ok(line.split_whitespace().next().context("no figure")?.parse()?)
}
