//! The machine of the testbed: namespaces on this one.
//!
//! One process, the anchor, is PID 1 of a PID, mount and network namespace, and all components run inside. So the testbed has
//! its own ports, firewall rules, mounts and bridges, its packets cannot leave this machine, and the kernel kills all of its
//! processes when the anchor ends.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Pid;

use super::layout::{self, HOST_ADDRESS, LINK, LINK_PREFIX, NODE_ADDRESS, POD_RANGE, RANGE};
use super::processes::Process;
use super::tools::Tools;
use crate::progress::wait_for;
use crate::shell::{command, output, run};

/// The anchor's binary: a copy, so that its path identifies the process.
fn anchor_binary() -> PathBuf {
    layout::state("anchor")
}

/// Directories that Kubernetes writes regardless of its settings. Inside, each is mounted from below the state directory.
const OWN_DIRS: [&str; 4] = ["/run", "/var/log", "/var/lib/cni", "/var/lib/kubelet"];

/// A running testbed machine.
pub(super) struct Machine {
    anchor: Process,
}

impl Machine {
    /// Starts the namespaces and links their network to this machine.
    pub(super) fn start(tools: &Tools) -> Result<Self> {
        make_cgroups()?;
        fs::copy(tools.path("pause"), anchor_binary()).context("cannot place the anchor")?;
        let mut unshare = command("unshare", ["--fork", "--kill-child", "--pid", "--mount", "--net"]);
        unshare.args(["--mount-proc", "--propagation", "private", "--"]).arg(anchor_binary());
        detached(&mut unshare, &layout::state("logs/anchor.log"))?;
        let mut machine = None;
        wait_for("the testbed's namespaces", Duration::from_secs(10), || {
            machine = Self::find();
            Ok(machine.is_none().then(|| "the anchor has not started yet".to_owned()))
        })?;
        let machine = machine.context("the anchor has started")?;
        machine.set_up_directories()?;
        machine.set_up_network()?;
        // Private towards this machine, but shared inside, as a kubelet requires.
        machine.run_inside(&["mount", "--make-rshared", "/"])?;
        Ok(machine)
    }

    /// Returns the running machine, if there is one. The anchor's binary identifies it, also after an interrupted start.
    pub(super) fn find() -> Option<Self> {
        Process::all().find(|process| process.runs(&anchor_binary())).map(|anchor| Self { anchor })
    }

    /// A command that runs inside.
    pub(super) fn inside(&self, program: &Path) -> Command {
        let anchor = self.anchor.pid.as_raw_nonzero().to_string();
        let mut nsenter = command("nsenter", ["--target", &anchor, "--pid", "--mount", "--net", "--"]);
        nsenter.arg(program);
        nsenter
    }

    /// Starts a program inside that outlives this process, with its output in `log`.
    pub(super) fn spawn(&self, program: &Path, args: &[String], log: &Path) -> Result<Process> {
        let mut command = self.inside(program);
        let parent = detached(command.args(args), log)?;
        // nsenter stays outside as the parent; the program is its only child.
        let mut started = None;
        wait_for("a process of the testbed", Duration::from_secs(10), || {
            started = Process::children(parent).next();
            Ok(started.is_none().then(|| format!("see {}", log.display())))
        })?;
        started.context("the process has started")
    }

    /// Drops all packets of a Pod, as the enforcer of a NetworkPolicy would, or stops dropping them.
    pub(super) fn isolate(&self, pod: std::net::Ipv4Addr, on: bool) -> Result<()> {
        let pod = pod.to_string();
        for side in ["--source", "--destination"] {
            let rule = |verb| {
                ["iptables", "--wait", "--table", "raw", verb, "PREROUTING", side, &pod, "--jump", "DROP"]
            };
            let present = self.run_inside(&rule("--check")).is_ok();
            if present != on {
                self.run_inside(&rule(if on { "--insert" } else { "--delete" }))?;
            }
        }
        Ok(())
    }

    /// Ends everything inside and waits until it is gone.
    pub(super) fn stop(self) -> Result<()> {
        self.anchor.kill()
    }

    fn run_inside(&self, words: &[&str]) -> Result<String> {
        output(self.inside(Path::new(words[0])).args(&words[1..]))
    }

    fn set_up_directories(&self) -> Result<()> {
        for dir in OWN_DIRS {
            let own = format!("{}/machine{dir}", layout::STATE);
            for dir in [dir, &own] {
                fs::create_dir_all(dir).with_context(|| format!("cannot make {dir}"))?;
            }
            self.run_inside(&["mount", "--bind", &own, dir])?;
        }
        Ok(())
    }

    fn set_up_network(&self) -> Result<()> {
        let anchor = self.anchor.pid.as_raw_nonzero().to_string();
        let host = format!("{HOST_ADDRESS}/{LINK_PREFIX}");
        let node = format!("{NODE_ADDRESS}/{LINK_PREFIX}");
        ip(&["link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", &anchor])?;
        ip(&["address", "add", &host, "dev", LINK])?;
        ip(&["link", "set", LINK, "up"])?;
        ip(&["route", "add", RANGE, "via", NODE_ADDRESS, "dev", LINK])?;
        for words in [
            &["ip", "link", "set", "lo", "up"][..],
            &["ip", "address", "add", &node, "dev", "eth0"],
            &["ip", "link", "set", "eth0", "up"],
            &[
                "sysctl",
                "--quiet",
                "--write",
                "net.ipv4.ip_forward=1",
                "net.bridge.bridge-nf-call-iptables=1",
            ],
            // The edge: a Pod answers this machine, and opens nothing towards it or beyond.
            &[
                "iptables",
                "--append",
                "FORWARD",
                "--source",
                POD_RANGE,
                "--out-interface",
                "eth0",
                "--match",
                "conntrack",
                "--ctstate",
                "NEW",
                "--jump",
                "DROP",
            ],
        ] {
            self.run_inside(words)?;
        }
        Ok(())
    }
}

/// Removes the link, the cgroups and the files that a testbed leaves on this machine.
pub(super) fn sweep() -> Result<()> {
    if Path::new("/sys/class/net").join(LINK).exists() {
        // The kernel removes the link with its namespace, but not always at once.
        let _ = ip(&["link", "delete", LINK]);
    }
    remove_cgroups()?;
    for dir in OWN_DIRS.iter().filter(|dir| dir.starts_with("/var/lib/")) {
        // One with content is not the testbed's.
        let _ = fs::remove_dir(dir);
    }
    match fs::remove_dir_all(layout::STATE) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", layout::STATE))
        }
        _ => Ok(()),
    }
}

/// Descriptions of what a testbed has left on this machine. Empty after `down`.
pub(super) fn remains() -> Vec<String> {
    let mut remains = Vec::new();
    if let Some(machine) = Machine::find() {
        remains.push(format!("process {}", machine.anchor.pid.as_raw_nonzero()));
    }
    for path in cgroups().into_iter().chain([layout::STATE.into(), Path::new("/sys/class/net").join(LINK)]) {
        if path.exists() {
            remains.push(path.display().to_string());
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    remains.extend(
        mounts.lines().filter(|line| line.contains(layout::STATE)).map(|line| format!("mount {line}")),
    );
    remains
}

/// Fails if this machine uses the testbed's addresses for something else, and keeps their packets on this machine.
pub(super) fn check_addresses() -> Result<()> {
    let routes = output(&mut command("ip", ["-oneline", "route", "show", "root", RANGE]))?;
    let foreign = routes.lines().find(|route| !route.starts_with("unreachable") && !route.contains(LINK));
    if let Some(route) = foreign {
        bail!(
            "this machine already routes addresses of the testbed's range {RANGE}: {route}\n\
             Remove that route, or run the tests on a cluster of yours: set SANDPOD_TEST_KUBECONFIG."
        );
    }
    // Stays after `down`: a client that still connects to the testbed gets an error, and no other host.
    ip(&["route", "replace", "unreachable", RANGE, "metric", "4278198272"])
}

fn ip(words: &[&str]) -> Result<()> {
    run(&mut command("ip", words))
}

/// Spawns a process that outlives this one and gets no signals from its terminal.
fn detached(command: &mut Command, log: &Path) -> Result<Pid> {
    let log = File::options().create(true).append(true).open(log).context("cannot open a log file")?;
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    Ok(Pid::from_child(&child))
}

/// The testbed's cgroup: in each hierarchy (v1), or in the only one (v2).
fn cgroups() -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    if top.join("cgroup.controllers").exists() {
        return vec![top.join(layout::CGROUP)];
    }
    let hierarchies = fs::read_dir(top).into_iter().flatten().flatten();
    hierarchies.map(|hierarchy| hierarchy.path().join(layout::CGROUP)).collect()
}

/// Creates the cgroup of the Pods, which the kubelet requires.
fn make_cgroups() -> Result<()> {
    cgroups().iter().try_for_each(|cgroup| {
        fs::create_dir_all(cgroup).with_context(|| format!("cannot make {}", cgroup.display()))
    })
}

fn remove_cgroups() -> Result<()> {
    for cgroup in cgroups().into_iter().filter(|cgroup| cgroup.exists()) {
        // A cgroup is busy until the kernel has removed its last process.
        wait_for("the end of the testbed's cgroups", Duration::from_secs(30), || {
            Ok(remove_cgroup(&cgroup).err().map(|error| format!("{}: {error}", cgroup.display())))
        })?;
    }
    Ok(())
}

/// Removes a cgroup and those below it. Only the directories are removed: their files belong to the kernel.
fn remove_cgroup(cgroup: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}
