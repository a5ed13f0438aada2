//! A mix of operations by many callers under all faults.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use sandpod::{ExecuteOptions, Provider, SandboxHandle, SandboxRequest};
use sandpod_kube::k8s_openapi::api::core::v1::Pod;
use sandpod_kube::kube::ResourceExt;
use sandpod_testbed::Namespace;
use sandpod_testbed::proxy::FaultProxy;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::caller::Caller;
use crate::driver::Driver;
use crate::setup::{BUSYBOX, config, execute, provider, soon};
use crate::{CLUSTER, say};

const CALLERS: usize = 10;
/// The least number of operations and the number of rounds of faults: of every run, and with `cargo xtask test --long`.
const SHORT: (u64, usize) = (1200, 2);
const LONG: (u64, usize) = (3000, 5);
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_and_nothing_runs_twice_under_faults() {
    let _alone = CLUSTER.write().await;
    let seed = seed();
    let (operations, rounds) = if std::env::var_os("SANDPOD_TEST_LONG").is_some() { LONG } else { SHORT };
    say(&format!("seed {seed}"));
    let mut random = fastrand::Rng::with_seed(seed);
    let namespace = Namespace::create().await;
    let direct = provider(&namespace, config(&namespace, BUSYBOX)).await;
    let proxy = FaultProxy::start(namespace.api_address()).await.unwrap();
    let client = namespace.raw_through(proxy.address()).await;
    let shaky = Provider::with_client(client, config(&namespace, BUSYBOX)).unwrap();
    let handle = soon("creating", shaky.get_or_create(SandboxRequest::named("mix"))).await.unwrap();
    let pod_uid = namespace.api::<Pod>().get("mix-1").await.unwrap().uid().unwrap();

    let (acknowledged, stop) = (watch::Sender::new(0), watch::Sender::new(false));
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        execute(&handle, &format!("mkdir caller-{number}")).await;
        let caller = Caller::new(number, handle.sandbox.clone(), random.fork(), acknowledged.clone());
        callers.spawn(caller.work(stop.subscribe()));
    }
    let counts = BTreeMap::new();
    let mut driver = Driver { proxy, pod_uid, acknowledged: acknowledged.subscribe(), random, counts };
    let driving = async {
        for _ in 0..rounds {
            driver.round().await;
        }
        driver.work_goes_on(operations.saturating_sub(*acknowledged.borrow())).await;
    };
    timeout(LIMIT, driving).await.expect("the faults are through in time");
    stop.send_replace(true);
    let callers = soon("the callers' last calls", callers.join_all()).await;

    drop(handle);
    let calm = soon("reconnecting", direct.reconnect("mix")).await.unwrap();
    let (mut unknown, mut undone, mut slowest, mut violations) = (0, 0, Duration::ZERO, Vec::new());
    for mut caller in callers {
        caller.verify(&calm.sandbox).await;
        unknown += caller.report.unknown;
        undone += caller.report.undone;
        slowest = slowest.max(caller.report.slowest);
        violations.extend(caller.report.violations);
    }
    streams_end(&calm).await;
    say(&format!(
        "seed {seed}, {} operations acknowledged, {unknown} unknown, {undone} not done, slowest {slowest:.1?}, \
         kinds {:?}, {} temporary files of killed guests, violations {}",
        *acknowledged.borrow(),
        driver.counts,
        execute(&calm, "find /workspace -name '.sandpod-*' | wc -l").await.trim(),
        violations.len(),
    ));
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    assert_eq!(calm.generation, 1, "a guest that is killed does not take its Pod with it");
    soon("deleting", direct.delete("mix", true)).await.unwrap();
    namespace.finish().await;
}

/// Waits until only the streams of this handle are left in the sandbox: the guest closes the cut and stalled ones when
/// their pings get no answer.
async fn streams_end(handle: &SandboxHandle) {
    let line = "until [ $(cat /proc/[0-9]*/comm | grep -c '^boot$') -le 2 ]; do sleep 0.2; done";
    let options = ExecuteOptions { timeout: Some(Duration::from_secs(90)), ..ExecuteOptions::default() };
    let ended = handle.sandbox.execute(line, options).await.expect("the sandbox works");
    let left = execute(handle, "cat /proc/[0-9]*/comm").await;
    assert_eq!(ended.exit_code, Some(0), "there are more ends of streams than streams: {left}");
}

fn seed() -> u64 {
    let now = || SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    std::env::var("SANDPOD_FAULT_SEED")
        .map_or_else(|_| now(), |seed| seed.parse().expect("a seed is a number"))
}
