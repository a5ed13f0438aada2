//! `cargo xtask bench node`: calls and transfers of the npm package beside the same calls from Rust, in one sandbox, in one
//! run. The sandbox is one on this machine, and then one in a Pod if there is a cluster.
#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::env;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use futures::future::try_join_all;
use sandpod::{LocalConfig, Provider, RawConfig, SandboxHandle, SandboxRequest};
use sandpod_bench::measure::{BULK, BULK_MIB, median, noise, timed};
use sandpod_bench::peer::{Peer, script};
use sandpod_bench::pods::{config, execute_true};
use sandpod_bench::report::Report;
use sandpod_testbed::Namespace;
use serde_json::{Value, json};
use tokio::process::Command;

const ROUNDS: usize = 300;
/// Rounds before those that count, in which JavaScript is compiled and connections are made.
const WARM_UP: usize = 50;
const FEW_ROUNDS: usize = 9;
const CALLERS: usize = 16;
const EACH: usize = 20;
/// The largest time of a call from Node, as a multiple of Rust's.
const CALL_GOAL: f64 = 1.3;
/// The smallest rate of a transfer from Node, as a multiple of Rust's.
const TRANSFER_GOAL: f64 = 0.8;

#[tokio::main]
async fn main() -> Result<()> {
    // On a worker thread, as in a program, and not on the thread that only waits.
    tokio::spawn(measure()).await?
}

async fn measure() -> Result<()> {
    let mut report = Report::default();
    let local = Provider::local(&LocalConfig::default())?;
    compare("local", &local, &json!({ "mode": "local" }), &mut report).await?;
    if let Some(kubeconfig) = env::var("SANDPOD_TEST_KUBECONFIG").ok().filter(|path| !path.is_empty()) {
        let namespace = Namespace::create().await;
        let roomy = RawConfig { ephemeral_storage_limit: "1Gi".to_owned(), ..config(&namespace) };
        let raw = Provider::with_client(namespace.raw().await, roomy)?;
        let options = json!({ "mode": "raw", "namespace": namespace.name, "kubeconfigPath": kubeconfig });
        compare("raw", &raw, &options, &mut report).await?;
        namespace.finish().await;
    }
    println!("{}", report.table());
    report.keep("node")
}

/// Measures both sides in one sandbox, which is deleted at the end.
async fn compare(mode: &str, provider: &Provider, options: &Value, report: &mut Report) -> Result<()> {
    let handle = provider.get_or_create(SandboxRequest::default()).await?;
    let measured = measure_in(mode, &handle, options, report).await;
    provider.delete(handle.id.as_str(), true).await?;
    measured
}

async fn measure_in(mode: &str, handle: &SandboxHandle, options: &Value, report: &mut Report) -> Result<()> {
    let mut sides = Sides { handle, node: start_node(handle, options)?, bulk: noise(BULK).into() };
    for step in [Step::Execute, Step::Write, Step::Read] {
        let [rust, node] = sides.medians(step, WARM_UP, ROUNDS).await?;
        report.near(format!("{}, {mode}", step.title()), node, rust, CALL_GOAL);
    }
    let [rust, node] = sides.medians(Step::Parallel, 2, FEW_ROUNDS).await?;
    report.near(format!("{}, {mode}", Step::Parallel.title()), node, rust, CALL_GOAL);
    for step in [Step::Up, Step::Down] {
        let rates = sides.medians(step, 1, FEW_ROUNDS).await?.map(|ms| f64::from(BULK_MIB) / ms * 1000.0);
        let [rust, node] = rates;
        report.rate(&format!("{}, {mode}", step.title()), node, rust, "MiB/s", TRANSFER_GOAL);
    }
    Ok(())
}

/// Starts the program that makes the calls from Node, in the same sandbox.
fn start_node(handle: &SandboxHandle, options: &Value) -> Result<Peer> {
    let package = env::var("SANDPOD_BENCH_NODE_PACKAGE").context("SANDPOD_BENCH_NODE_PACKAGE is not set")?;
    let sizes = json!({ "bulk": BULK, "callers": CALLERS, "each": EACH });
    let arguments = [&package, &options.to_string(), handle.id.as_str(), &sizes.to_string()];
    Peer::of(Command::new("node").arg(script("node_calls.mjs")).args(arguments))
}

/// What both sides do and measure.
#[derive(Clone, Copy)]
enum Step {
    Execute,
    Write,
    Read,
    Parallel,
    Up,
    Down,
}

impl Step {
    fn title(self) -> String {
        match self {
            Self::Execute => "execute true".to_owned(),
            Self::Write => "write of 1 KiB".to_owned(),
            Self::Read => "read of 1 KiB".to_owned(),
            Self::Parallel => format!("{EACH} times true, {CALLERS} at once"),
            Self::Up => format!("{BULK_MIB} MiB up"),
            Self::Down => format!("{BULK_MIB} MiB down"),
        }
    }

    /// The name of the step in the program of the other side.
    fn name(self) -> &'static str {
        match self {
            Self::Execute => "execute",
            Self::Write => "write",
            Self::Read => "read",
            Self::Parallel => "parallel",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

struct Sides<'a> {
    handle: &'a SandboxHandle,
    node: Peer,
    bulk: Bytes,
}

impl Sides<'_> {
    /// Returns the median times of Rust and of Node in milliseconds.
    async fn medians(&mut self, step: Step, warm_up: usize, rounds: usize) -> Result<[f64; 2]> {
        let (mut rust, mut node) = (vec![], vec![]);
        // Alternate, so that noise of the machine affects both sides equally.
        for _ in 0..warm_up + rounds {
            rust.push(timed(self.in_rust(step)).await?);
            node.push(self.node.ask(step.name()).await?.map_err(|why| anyhow!("Node failed: {why}"))?);
        }
        Ok([rust, node].map(|mut all| median(all.split_off(warm_up))))
    }

    async fn in_rust(&self, step: Step) -> Result<()> {
        let sandbox = &self.handle.sandbox;
        match step {
            Step::Execute => execute_true(self.handle).await,
            Step::Write => Ok(sandbox.write("/workspace/small", vec![b'a'; 1024]).await.map(drop)?),
            Step::Read => Ok(sandbox.read_bytes("/workspace/small", 1024).await.map(drop)?),
            Step::Parallel => try_join_all((0..CALLERS).map(|_| async {
                for _ in 0..EACH {
                    execute_true(self.handle).await?;
                }
                anyhow::Ok(())
            }))
            .await
            .map(drop),
            Step::Up => Ok(sandbox.write("/workspace/bulk", self.bulk.clone()).await.map(drop)?),
            Step::Down => Ok(sandbox.read_bytes("/workspace/bulk", BULK as u64).await.map(drop)?),
        }
    }
}
