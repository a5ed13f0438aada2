//! Injects faults: network faults, restarts of cluster components, and killed guests.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandpod_testbed::PATIENCE;
use sandpod_testbed::proxy::FaultProxy;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::say;

/// A kind of fault.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Kind {
    Reset,
    Stall,
    Plus20Ms,
    Plus80Ms,
    Apiserver,
    Kubelet,
    Containerd,
    GuestKilled,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Reset,
        Self::Stall,
        Self::Plus20Ms,
        Self::Plus80Ms,
        Self::Apiserver,
        Self::Kubelet,
        Self::Containerd,
        Self::GuestKilled,
    ];
}

/// Injects faults, and waits after each until calls succeed again.
pub(crate) struct Driver {
    pub(crate) proxy: FaultProxy,
    pub(crate) pod_uid: String,
    /// Counts the operations that were acknowledged.
    pub(crate) acknowledged: watch::Receiver<u64>,
    pub(crate) random: fastrand::Rng,
    pub(crate) counts: BTreeMap<Kind, u32>,
}

impl Driver {
    /// Injects one fault of each kind, in random order.
    pub(crate) async fn round(&mut self) {
        let mut kinds = Kind::ALL;
        self.random.shuffle(&mut kinds);
        for kind in kinds {
            say(&format!("{kind:?} after {} operations", *self.acknowledged.borrow()));
            self.make(kind).await;
            *self.counts.entry(kind).or_default() += 1;
            self.work_goes_on(60).await;
        }
    }

    /// Waits until `more` operations are acknowledged.
    pub(crate) async fn work_goes_on(&mut self, more: u64) {
        let enough = *self.acknowledged.borrow() + more;
        let going = timeout(2 * PATIENCE, self.acknowledged.wait_for(|count| *count >= enough)).await;
        assert!(going.is_ok(), "calls don't get through any more");
    }

    async fn make(&mut self, kind: Kind) {
        match kind {
            Kind::Reset => self.proxy.reset_all(),
            Kind::Stall => {
                self.proxy.set_stalled(true);
                sleep(Duration::from_millis(self.random.u64(1000..3000))).await;
                self.proxy.set_stalled(false);
            }
            Kind::Plus20Ms => self.slow(20).await,
            Kind::Plus80Ms => self.slow(80).await,
            Kind::Apiserver => restart("kube-apiserver").await,
            Kind::Kubelet => restart("kubelet").await,
            Kind::Containerd => restart("containerd").await,
            Kind::GuestKilled => kill_guest(&self.pod_uid).await,
        }
    }

    async fn slow(&mut self, milliseconds: u64) {
        self.proxy.set_round_trip(Duration::from_millis(milliseconds));
        self.work_goes_on(60).await;
        self.proxy.set_round_trip(Duration::ZERO);
    }
}

/// Kills a component of the testbed and starts it again.
pub(crate) async fn restart(component: &str) {
    let mut said = String::new();
    // The new process cannot listen before the kernel has closed the last socket of the killed one.
    for _ in 0..3 {
        let done = xtask(["cluster", "restart", component]).output().await.expect("xtask can be run");
        if done.status.success() {
            return;
        }
        said = String::from_utf8_lossy(&done.stderr).into_owned();
    }
    panic!("{component} was not restarted: {said}");
}

fn xtask<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = if let Some(xtask) = std::env::var_os("SANDPOD_XTASK") {
        Command::new(xtask)
    } else {
        let mut cargo = Command::new("cargo");
        cargo.arg("xtask");
        cargo
    };
    // Not killed on drop: that would leave the testbed without its API server.
    command.args(arguments);
    command
}

/// Kills the guest of a Pod from outside, as the kernel does when memory is short.
pub(crate) async fn kill_guest(pod_uid: &str) {
    let killing = async {
        // The guest may still be restarting after the previous kill.
        loop {
            if let Some(guest) = find_guest(pod_uid)
                && kill_process(guest, Signal::KILL).is_ok()
            {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let killed = timeout(PATIENCE, killing).await;
    assert!(killed.is_ok(), "no guest of Pod {pod_uid} runs on this machine");
}

fn find_guest(pod_uid: &str) -> Option<Pid> {
    let entries = fs::read_dir("/proc").expect("there is a /proc").flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| is_guest(*pid, pod_uid).unwrap_or_default()).and_then(Pid::from_raw)
}

/// Whether a process is the first of the Pod's container. Wardens have the guest's name, too.
fn is_guest(pid: i32, pod_uid: &str) -> Option<bool> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    let is_first = |status: &String| {
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        pids.and_then(|pids| pids.split_whitespace().next_back()) == Some("1")
    };
    let in_pod = read("cgroup")?.contains(pod_uid);
    Some(
        in_pod
            && read("cmdline")?.starts_with("sandpod-guest")
            && read("status").as_ref().is_some_and(is_first),
    )
}
