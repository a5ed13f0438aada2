//! A real Kubernetes on this machine: `cargo xtask cluster`.
//!
//! It runs in a [`Machine`] from the binaries of [`Tools`]. `components` starts each part; `images`, `pki` and `resources`
//! create the parts' inputs.

mod components;
mod images;
mod layout;
mod machine;
mod pki;
mod processes;
mod resources;
mod roles;
mod tools;

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use self::components::Running;
use self::machine::Machine;
use self::processes::Process;
use self::tools::Tools;
use crate::packages;
use crate::progress::{Clock, step, wait_for};
use crate::shell::output;
use crate::workspace::{fingerprint, root};

pub(crate) use self::components::NAMES as COMPONENTS;
pub(crate) use self::roles::Role;
pub(crate) use self::tools::module_sources;

/// The contents of `state.json`, which describe a running testbed.
#[derive(Deserialize, Serialize)]
struct State {
    /// The hash of its inputs. A checkout with another one replaces the testbed.
    key: String,
    kubernetes: String,
    running: Running,
}

impl State {
    fn load() -> Option<Self> {
        serde_json::from_slice(&fs::read(layout::state("state.json")).ok()?).ok()
    }

    fn save(&self) -> Result<()> {
        fs::write(layout::state("state.json"), serde_json::to_vec_pretty(self)?)
            .context("cannot write state.json")
    }

    /// The first component that has ended.
    fn dead(&self) -> Option<&str> {
        components::NAMES
            .into_iter()
            .find(|name| self.running.get(*name).and_then(|record| Process::from_record(*record)).is_none())
    }
}

/// Why the testbed cannot run on this machine, if it cannot.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        return Some("it needs Linux");
    }
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root, to make namespaces and run containers");
    }
    None
}

/// Starts the cluster, unless it runs; returns the admin's kubeconfig.
pub(crate) fn up() -> Result<PathBuf> {
    demand_root()?;
    let _lock = lock()?;
    let key = key()?;
    if let Some(state) = State::load() {
        match why_unusable(&state, &key) {
            None => {
                step(format!("the testbed runs already: Kubernetes {}", state.kubernetes));
                return Ok(layout::kubeconfig("admin"));
            }
            Some(reason) => step(format!("replacing a testbed that was left here: {reason}")),
        }
    }
    packages::install(packages::TESTBED)?;
    let tools = Tools::build()?;
    let archive = images::archive(&tools)?;
    tear_down()?;
    machine::check_addresses()?;
    start(&tools, &archive, key)
        .context("the testbed did not start: try `cargo xtask cluster down`, then `up` again")?;
    Ok(layout::kubeconfig("admin"))
}

/// Stops the cluster and removes everything that it created on this machine.
pub(crate) fn down() -> Result<()> {
    demand_root()?;
    let _lock = lock()?;
    if machine::remains().is_empty() {
        step("no testbed on this machine");
        return Ok(());
    }
    step("stopping the testbed");
    tear_down()?;
    let remains = machine::remains();
    if !remains.is_empty() {
        bail!("these are left of the testbed: {}\nRun `cargo xtask cluster down` again.", remains.join(", "));
    }
    Ok(())
}

/// Prints the state of each component; fails if the cluster is unusable.
pub(crate) fn status() -> Result<()> {
    let Some(state) = State::load() else {
        bail!("no testbed runs on this machine: start it with `cargo xtask cluster up`");
    };
    println!("Kubernetes {} at {}", state.kubernetes, layout::STATE);
    for name in components::NAMES {
        let record = state.running.get(name).copied();
        match record.and_then(Process::from_record) {
            Some(process) => println!("  {name:<26} running  pid {}", process.pid.as_raw_nonzero()),
            None => println!("  {name:<26} dead     see {}", components::log(name).display()),
        }
    }
    if let Some(reason) = why_unusable(&state, &key()?) {
        bail!("the testbed cannot be used: {reason}\nRun `cargo xtask cluster up` to replace it.");
    }
    print!("{}", output(&mut Tools::build()?.kubectl("admin", ["get", "nodes", "--output=wide"]))?);
    Ok(())
}

/// Prints the shell lines that point kubectl, helm and the tests at the cluster.
pub(crate) fn env(role: Option<Role>, namespace: &str) -> Result<()> {
    if State::load().is_none() || Machine::find().is_none() {
        bail!("no testbed runs on this machine: start it with `cargo xtask cluster up`");
    }
    let tools = Tools::build()?;
    if let Some(role) = role {
        println!("export KUBECONFIG={}", roles::kubeconfig(&tools, role, namespace)?.display());
    } else {
        let admin = layout::kubeconfig("admin");
        println!("export KUBECONFIG={}", admin.display());
        println!("export SANDPOD_TEST_KUBECONFIG={}", admin.display());
    }
    println!("export PATH={}:$PATH", tools.dir.display());
    Ok(())
}

/// Creates the archive of test images and prints its path.
pub(crate) fn images() -> Result<()> {
    packages::install(packages::TESTBED)?;
    println!("{}", images::archive(&Tools::build()?)?.display());
    Ok(())
}

/// The PATH of this process, with the cluster's kubectl and helm in front.
pub(crate) fn path_with_tools() -> Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(Tools::build()?.dir).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(dirs)?)
}

/// Kills a component as a crash would and starts it again.
pub(crate) fn restart(name: &str) -> Result<()> {
    let _lock = lock()?;
    let (Some(mut state), Some(machine)) = (State::load(), Machine::find()) else {
        bail!("no testbed runs on this machine: start it with `cargo xtask cluster up`");
    };
    if let Some(process) = state.running.get(name).copied().and_then(Process::from_record) {
        process.kill()?;
    }
    let tools = Tools::build()?;
    let process = components::start(&machine, &tools, name)?;
    state.running.insert(name.to_owned(), process.record());
    state.save()?;
    components::wait_until_ready(&machine, &tools, name, process)
}

/// Drops all packets of a Pod, or stops dropping them.
pub(crate) fn isolate(pod: Ipv4Addr, on: bool) -> Result<()> {
    let machine =
        Machine::find().context("no testbed runs on this machine: start it with `cargo xtask cluster up`")?;
    machine.isolate(pod, on)
}

fn start(tools: &Tools, archive: &std::path::Path, key: String) -> Result<()> {
    let clock = Clock::start();
    step("starting the testbed");
    components::write_configuration()?;
    pki::create()?;
    let machine = Machine::start(tools)?;
    let mut state = State { key, kubernetes: tools::kubernetes_version()?, running: Running::new() };
    state.save()?;

    let mut launch = |name: &str| -> Result<Process> {
        let process = components::start(&machine, tools, name)?;
        state.running.insert(name.to_owned(), process.record());
        state.save()?;
        Ok(process)
    };
    let ready = |name: &str, process| components::wait_until_ready(&machine, tools, name, process);

    let (etcd, containerd) = (launch("etcd")?, launch("containerd")?);
    thread::scope(|scope| {
        let images = scope.spawn(|| {
            ready("containerd", containerd)?;
            import(&machine, archive)
        });
        ready("etcd", etcd)?;
        let api = launch("kube-apiserver")?;
        ready("kube-apiserver", api)?;
        let cluster = ["kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy"];
        let cluster = cluster.map(|name| launch(name).map(|process| (name, process)));
        resources::install(tools)?;
        let controller = launch("agent-sandbox-controller")?;
        for part in cluster {
            let (name, process) = part?;
            ready(name, process)?;
        }
        ready("agent-sandbox-controller", controller)?;
        images.join().map_err(|_| anyhow!("the image import panicked"))?
    })?;
    wait_for("the node and the router", Duration::from_secs(60), || Ok(unready(tools)))?;
    step(format!(
        "the testbed is up after {:.1}s: eval \"$(cargo xtask cluster env)\" points kubectl at it",
        clock.seconds()
    ));
    Ok(())
}

fn import(machine: &Machine, archive: &std::path::Path) -> Result<()> {
    let archive = archive.to_str().context("the cache's path is no UTF-8")?;
    output(&mut components::ctr(machine, &["images", "import", archive])).map(|_| ())
}

/// Ends a testbed, also one that is incomplete.
fn tear_down() -> Result<()> {
    if let Some(machine) = Machine::find() {
        machine.stop()?;
    }
    machine::sweep()
}

/// Why this checkout cannot use the running testbed, if it cannot.
fn why_unusable(state: &State, key: &str) -> Option<String> {
    if state.key != key {
        return Some("it was made from other versions".to_owned());
    }
    if let Some(name) = state.dead() {
        return Some(format!("{name} does not run"));
    }
    match Tools::build() {
        Ok(tools) => unready(&tools),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// Why Pods cannot run yet, if they cannot: the node must be Ready and the router available.
fn unready(tools: &Tools) -> Option<String> {
    let lacks = |kind: &str, name: &str, condition: &str, namespace: &str| {
        let path = format!("jsonpath={{.status.conditions[?(@.type=='{condition}')].status}}");
        let args = ["get", kind, name, "--namespace", namespace, "--request-timeout=5s", "--output", &path];
        match output(&mut tools.kubectl("admin", args)) {
            Ok(status) if status == "True" => None,
            Ok(status) => Some(format!("{kind} {name}: {condition} is {status:?}")),
            Err(error) => Some(format!("{error:#}")),
        }
    };
    lacks("node", layout::NODE, "Ready", "")
        .or_else(|| lacks("deployment", "sandbox-router", "Available", "agent-sandbox-system"))
}

/// The hash of the inputs of a testbed.
fn key() -> Result<String> {
    let testbed = ["go.mod", "go.sum", "agent-sandbox", "config", "gateway-api", "pause"];
    let inputs: Vec<_> = testbed.map(|part| root().join("testbed").join(part)).into();
    fingerprint(&[inputs, vec![root().join("xtask/src/cluster")]].concat(), "")
}

fn demand_root() -> Result<()> {
    match obstacle() {
        Some(reason) => bail!(
            "the testbed cannot run here: {reason}.\n\
             Run this as root, or set SANDPOD_TEST_KUBECONFIG to the kubeconfig of a cluster of yours."
        ),
        None => Ok(()),
    }
}

/// Takes the lock that lets one `up` or `down` run at a time.
fn lock() -> Result<File> {
    let file = File::create(layout::LOCK).with_context(|| format!("cannot open {}", layout::LOCK))?;
    if file.try_lock().is_err() {
        step("waiting for another `cargo xtask cluster` to finish");
        file.lock().context("cannot wait for the testbed's lock")?;
    }
    Ok(file)
}
