//! `cargo xtask bench agent-sandbox`: sandboxes claimed from a warm pool, commands and files in them, and many claimed at
//! once, beside agent-sandbox's own client as users install it, on the testbed, in one run.
//!
//! Both claim from the same pool and work in Pods of the same template. Our guest also serves the API of the peer's first
//! runtime there, and faster than that runtime, so the benchmark compares the clients and their connections.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::{BoxFuture, FutureExt as _, join_all, try_join_all};
use sandpod::{AgentSandboxConfig, Provider, SandboxHandle, install_guest};
use sandpod_bench::measure::{median, timed};
use sandpod_bench::peer::{Peer, Took};
use sandpod_bench::pods::{execute_true, start};
use sandpod_bench::report::Report;
use sandpod_client::ReadOptions;
use sandpod_kube::agent_sandbox::SandboxWarmPool;
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::api::{ListParams, Patch, PatchParams};
use sandpod_testbed::Namespace;
use sandpod_testbed::agent_sandbox::{TEMPLATE, clear, make_pool, make_template, pod_spec};
use serde_json::json;
use tokio::time::{sleep, timeout};

const POOL: &str = "pool";
const SPARE: u32 = 2;
const CLAIMS: usize = 10;
const CALLS: usize = 100;
const BURST: u32 = 30;
/// The namespace of both.
const DIR: &str = "/workspace";

// One worker thread is enough for a program with one sandbox at a time.
#[tokio::main(worker_threads = 1)]
async fn main() -> Result<()> {
    // On a worker thread, as in a program, and not on the thread that only waits.
    tokio::spawn(measure()).await?
}

async fn measure() -> Result<()> {
    let namespace = Namespace::create().await;
    set_up(&namespace).await?;
    let config = AgentSandboxConfig {
        namespace: namespace.name.clone(),
        startup_timeout_seconds: 600,
        ..AgentSandboxConfig::of_template(TEMPLATE)
    };
    let provider = Provider::agent_sandbox_with_client(namespace.agent_sandbox().await, config)?;
    let mut peer = Peer::start("k8s_agent_sandbox_client.py", &[&namespace.name, POOL])?;
    let mut report = Report::default();

    claims(&namespace, &provider, &mut peer, &mut report).await?;
    calls(&namespace, &provider, &mut peer, &mut report).await?;
    burst(&namespace, &provider, &mut peer, &mut report).await?;

    drop(peer);
    clear(&namespace).await;
    namespace.finish().await;
    println!("{}", report.table());
    report.keep("agent-sandbox")
}

/// Creates a template whose Pods serve both clients, and a pool of it.
async fn set_up(namespace: &Namespace) -> Result<()> {
    let guest = install_guest(namespace.admin.clone(), &namespace.name, "amd64", None).await?;
    let mut spec = pod_spec(&guest);
    let container = &mut spec["containers"][0];
    container["command"] = json!(["/sandpod/boot", "serve", "--stock-apis"]);
    let env = container["env"].as_array_mut().context("it has an environment")?;
    env.push(json!({ "name": "SANDBOX_BASE_DIR", "value": DIR }));
    make_template(namespace, TEMPLATE, spec).await;
    make_pool(namespace, POOL, i32::try_from(SPARE)?).await;
    Ok(())
}

/// Measures from the request to the end of the first command, with a warm Pod.
async fn claims(
    namespace: &Namespace,
    provider: &Provider,
    peer: &mut Peer,
    report: &mut Report,
) -> Result<()> {
    let (mut ours, mut theirs) = (vec![], vec![]);
    for _ in 0..CLAIMS {
        until_full(namespace, provider, SPARE).await?;
        theirs.push(peer.ask("claim").await?);
        done(peer.ask("release").await?)?;
        until_full(namespace, provider, SPARE).await?;
        let mut taken = None;
        ours.push(
            timed(async {
                taken = Some(start(provider).await?);
                Ok(())
            })
            .await?,
        );
        let taken = taken.context("it was taken")?;
        ensure!(taken.pod.contains(&format!("/{POOL}-")), "{} was not warm", taken.pod);
        provider.delete(taken.id.as_str(), true).await?;
    }
    report.beside("warm claim to first command", median(ours), middle(theirs), 3.0);
    Ok(())
}

/// Each call, its name in the peer's program, and the required speed-up.
type Call = (&'static str, &'static str, f64, for<'a> fn(&'a SandboxHandle) -> BoxFuture<'a, Result<()>>);

const WORK: [Call; 5] = [
    ("execute true", "execute", 2.0, |handle| execute_true(handle).boxed()),
    ("write 1 KiB", "write", 1.0, |handle| write(handle).boxed()),
    ("read 1 KiB", "read", 1.0, |handle| read(handle).boxed()),
    ("list a directory", "list", 1.0, |handle| list(handle).boxed()),
    ("does a file exist", "exists", 1.0, |handle| exists(handle).boxed()),
];

/// Measures one call at a time in an open sandbox.
async fn calls(
    namespace: &Namespace,
    provider: &Provider,
    peer: &mut Peer,
    report: &mut Report,
) -> Result<()> {
    until_full(namespace, provider, SPARE).await?;
    done(peer.ask("claim").await?)?;
    let handle = start(provider).await?;
    for (what, known_as, least, call) in WORK {
        let (mut ours, mut theirs) = (vec![], vec![]);
        // Alternate, so that noise of the machine affects both sides equally.
        for _ in 0..CALLS {
            theirs.push(peer.ask(known_as).await?);
            ours.push(timed(call(&handle)).await?);
        }
        report.beside(what, median(ours), middle(theirs), least);
    }
    done(peer.ask("release").await?)?;
    Ok(provider.delete(handle.id.as_str(), true).await?)
}

/// Claims all sandboxes of the pool at once, until the last one has answered.
async fn burst(
    namespace: &Namespace,
    provider: &Provider,
    peer: &mut Peer,
    report: &mut Report,
) -> Result<()> {
    let more = json!({ "spec": { "replicas": BURST } });
    namespace.api::<SandboxWarmPool>().patch(POOL, &PatchParams::default(), &Patch::Merge(&more)).await?;
    until_full(namespace, provider, BURST).await?;
    let theirs = peer.ask(&format!("burst {BURST}")).await?;
    until_full(namespace, provider, BURST).await?;
    let mut made = vec![];
    let ours = timed(async {
        made = try_join_all((0..BURST).map(|_| start(provider))).await?;
        Ok(())
    })
    .await?;
    let deleting = made.iter().map(|handle| provider.delete(handle.id.as_str(), true));
    join_all(deleting).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    report.beside(format!("burst of {BURST}"), ours, theirs, 1.0);
    Ok(())
}

/// Waits until the pool is full and no other Pod exists, so that neither side is measured while the node ends the Pods of
/// the other.
async fn until_full(namespace: &Namespace, provider: &Provider, size: u32) -> Result<()> {
    let pods = namespace.api::<Pod>();
    let filling = async {
        loop {
            let status = provider.pool_status().await?;
            let alone = pods.list_metadata(&ListParams::default()).await?.items.len() == size as usize;
            if alone && status.available == size as usize && status.active == 0 {
                return anyhow::Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(600), filling).await.context("the pool does not fill")?
}

/// Returns an error if the peer failed.
fn done(took: Took) -> Result<()> {
    took.map(drop).map_err(|why| anyhow::anyhow!("the peer failed: {why}"))
}

/// Returns the median, if all succeeded.
fn middle(times: Vec<Took>) -> Took {
    times.into_iter().collect::<Result<Vec<_>, _>>().map(median)
}

async fn write(handle: &SandboxHandle) -> Result<()> {
    Ok(handle.sandbox.write(&format!("{DIR}/ours.txt"), vec![b'x'; 1024]).await.map(drop)?)
}

async fn read(handle: &SandboxHandle) -> Result<()> {
    Ok(handle.sandbox.read(&format!("{DIR}/ours.txt"), ReadOptions::default()).await.map(drop)?)
}

async fn list(handle: &SandboxHandle) -> Result<()> {
    Ok(handle.sandbox.list(DIR).await.map(drop)?)
}

async fn exists(handle: &SandboxHandle) -> Result<()> {
    Ok(handle.sandbox.stat(&format!("{DIR}/ours.txt"), true).await.map(drop)?)
}
