//! The components of the cluster, with their arguments and readiness checks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::images;
use super::layout::{self, CGROUP, NODE, NODE_ADDRESS, POD_RANGE, SERVICE_RANGE, STATE};
use super::machine::Machine;
use super::processes::{Process, Record};
use super::tools::Tools;
use crate::progress::wait_for;
use crate::shell::{last_lines, output, succeeds};
use crate::workspace::root;

/// The components in the order in which they start.
pub(crate) const NAMES: [&str; 8] = [
    "etcd",
    "containerd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "agent-sandbox-controller",
];

/// The running components, by name.
pub(super) type Running = BTreeMap<String, Record>;

/// Starts a component, with its output in `logs/NAME.log`.
pub(super) fn start(machine: &Machine, tools: &Tools, name: &str) -> Result<Process> {
    let binary = if name == "containerd" { PathBuf::from(name) } else { tools.path(name) };
    machine.spawn(&binary, &arguments(name), &log(name)).with_context(|| format!("cannot start {name}"))
}

/// Waits until a component answers. The error after the limit has the end of its log.
pub(super) fn wait_until_ready(machine: &Machine, tools: &Tools, name: &str, process: Process) -> Result<()> {
    let record = process.record();
    wait_for(name, Duration::from_secs(60), || {
        if Process::from_record(record).is_none() {
            bail!("{name} has ended");
        }
        Ok((!is_ready(machine, tools, name)).then(|| "it does not answer yet".to_owned()))
    })
    .with_context(|| {
        let said = fs::read_to_string(log(name)).unwrap_or_default();
        format!("the end of {}:\n{}", log(name).display(), last_lines(&said, 12))
    })
}

/// Writes the components' configuration files below the state directory.
pub(super) fn write_configuration() -> Result<()> {
    for dir in ["cni/conf", "containerd", "etcd", "kubelet", "logs"] {
        let dir = layout::state(dir);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    fs::write(layout::state("resolv.conf"), "")?;
    fs::write(layout::state("cni/conf/testbed.conflist"), configuration("cni.conflist")?)?;
    for file in ["containerd.toml", "kubelet.yaml", "kube-proxy.yaml"] {
        fs::write(layout::state(file), configuration(file)?)?;
    }
    Ok(())
}

/// The log of a component.
pub(super) fn log(name: &str) -> PathBuf {
    layout::state(&format!("logs/{name}.log"))
}

/// A file of `testbed/config` with its `@NAMES@` filled in.
fn configuration(file: &str) -> Result<String> {
    let path = root().join("testbed/config").join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok([
        ("@STATE@", STATE),
        ("@PAUSE_IMAGE@", images::PAUSE),
        ("@POD_RANGE@", POD_RANGE),
        ("@NODE_ADDRESS@", NODE_ADDRESS),
        ("@NODE@", NODE),
        ("@CGROUP@", CGROUP),
    ]
    .into_iter()
    .fold(text, |text, (name, value)| text.replace(name, value)))
}

fn is_ready(machine: &Machine, tools: &Tools, name: &str) -> bool {
    let answers = |url: &str| {
        succeeds(machine.inside(Path::new("curl")).args(["--insecure", "--fail", "--silent", url]))
    };
    match name {
        "etcd" => answers("http://127.0.0.1:2379/health"),
        "containerd" => output(&mut ctr(machine, &["version"])).is_ok(),
        "kube-apiserver" => succeeds(&mut tools.kubectl("admin", ["get", "--raw", "/readyz"])),
        "kube-controller-manager" => answers("https://127.0.0.1:10257/healthz"),
        "kube-scheduler" => answers("https://127.0.0.1:10259/healthz"),
        "kube-proxy" => answers(&format!("http://{NODE_ADDRESS}:10256/healthz")),
        "kubelet" => answers("http://127.0.0.1:10248/healthz"),
        _ => answers("http://127.0.0.1:18081/readyz"),
    }
}

/// `ctr` on the testbed's containerd, in the namespace of its kubelet.
pub(super) fn ctr(machine: &Machine, args: &[&str]) -> std::process::Command {
    let mut ctr = machine.inside(Path::new("ctr"));
    ctr.arg("--address").arg(layout::state("containerd.sock")).args(["--namespace", "k8s.io"]).args(args);
    ctr
}

fn arguments(name: &str) -> Vec<String> {
    let state = STATE;
    let pki = format!("{STATE}/pki");
    let kubeconfig = format!("--kubeconfig={}", layout::kubeconfig(name).display());
    // Tests create and delete many objects at once, which must not queue in the components' clients.
    let fast = ["--kube-api-qps=300".to_owned(), "--kube-api-burst=600".to_owned()];
    match name {
        "etcd" => vec![
            format!("--data-dir={state}/etcd"),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            "--unsafe-no-fsync".to_owned(),
        ],
        "containerd" => vec!["--config".to_owned(), format!("{state}/containerd.toml")],
        "kube-apiserver" => vec![
            format!("--advertise-address={NODE_ADDRESS}"),
            "--allow-privileged=false".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            format!("--client-ca-file={pki}/ca.crt"),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            format!("--kubelet-certificate-authority={pki}/ca.crt"),
            format!("--kubelet-client-certificate={pki}/apiserver-to-kubelet.crt"),
            format!("--kubelet-client-key={pki}/apiserver-to-kubelet.key"),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--secure-port=6443".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={pki}/service-accounts.pub"),
            format!("--service-account-signing-key-file={pki}/service-accounts.key"),
            format!("--service-cluster-ip-range={SERVICE_RANGE}"),
            format!("--tls-cert-file={pki}/apiserver.crt"),
            format!("--tls-private-key-file={pki}/apiserver.key"),
        ],
        "kube-controller-manager" => [
            vec![
                kubeconfig,
                "--bind-address=127.0.0.1".to_owned(),
                "--concurrent-gc-syncs=20".to_owned(),
                "--concurrent-namespace-syncs=20".to_owned(),
                "--leader-elect=false".to_owned(),
                format!("--root-ca-file={pki}/ca.crt"),
                format!("--service-account-private-key-file={pki}/service-accounts.key"),
                "--use-service-account-credentials=true".to_owned(),
            ],
            fast.to_vec(),
        ]
        .concat(),
        "kube-scheduler" => [
            vec![kubeconfig, "--bind-address=127.0.0.1".to_owned(), "--leader-elect=false".to_owned()],
            fast.to_vec(),
        ]
        .concat(),
        "kube-proxy" => vec![format!("--config={state}/kube-proxy.yaml")],
        "kubelet" => vec![
            kubeconfig,
            format!("--config={state}/kubelet.yaml"),
            format!("--hostname-override={NODE}"),
            format!("--node-ip={NODE_ADDRESS}"),
            format!("--root-dir={state}/kubelet"),
        ],
        _ => vec![
            kubeconfig,
            "--enable-webhook=false".to_owned(),
            "--extensions".to_owned(),
            "--health-probe-bind-address=127.0.0.1:18081".to_owned(),
            "--leader-elect=false".to_owned(),
            "--metrics-bind-address=127.0.0.1:18080".to_owned(),
        ],
    }
}
