//! The cluster's binaries, built from the Go modules pinned in `testbed/`.
//!
//! They are built once and kept in the cache under a hash of their inputs, for all checkouts.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::progress::{Clock, step};
use crate::shell::{command, on_path, output, run};
use crate::workspace::{cache, fingerprint, root};

/// Go packages of one module, and the names of their binaries.
struct Module {
    /// Its directory, relative to the checkout.
    dir: &'static str,
    binaries: &'static [(&'static str, &'static str)],
}

const MODULES: &[Module] = &[
    Module {
        dir: "testbed",
        binaries: &[
            ("pause", "sandpod.dev/testbed/pause"),
            ("etcd", "go.etcd.io/etcd/server/v3"),
            ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
            ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
            ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            ("helm", "helm.sh/helm/v3/cmd/helm"),
        ],
    },
    Module {
        dir: "testbed/agent-sandbox",
        binaries: &[
            ("agent-sandbox-controller", "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller"),
            ("sandbox-router", "sigs.k8s.io/agent-sandbox/sandbox-router/cmd"),
            ("sandboxd", "sigs.k8s.io/agent-sandbox/packages/sandboxd/cmd/sandboxd"),
        ],
    },
];

/// The directory of the cluster's binaries.
pub(super) struct Tools {
    pub(super) dir: PathBuf,
}

impl Tools {
    /// Returns the binaries from the cache, or builds them.
    pub(super) fn build() -> Result<Self> {
        if !on_path("go") {
            bail!(
                "the testbed's binaries are built with Go, and there is no `go` on PATH: install Go 1.26 or newer"
            );
        }
        let tools = Self { dir: cache()?.join("testbed/tools").join(key()?) };
        let missing: Vec<_> = MODULES
            .iter()
            .flat_map(|module| module.binaries.iter().map(move |binary| (module, *binary)))
            .filter(|(_, (name, _))| !tools.path(name).exists())
            .collect();
        if missing.is_empty() {
            return Ok(tools);
        }
        let clock = Clock::start();
        step(format!(
            "building {} cluster binaries with Go, once: about ten minutes on two cores",
            missing.len()
        ));
        fs::create_dir_all(&tools.dir).with_context(|| format!("cannot make {}", tools.dir.display()))?;
        for (number, (module, (name, package))) in missing.iter().enumerate() {
            step(format!("building {name} ({} of {})", number + 1, missing.len()));
            tools.build_one(module, name, package)?;
        }
        step(format!("built in {:.0}s", clock.seconds()));
        Ok(tools)
    }

    /// The path of the binary `name`.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `kubectl` as `user`.
    pub(super) fn kubectl<'a>(&self, user: &str, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut kubectl = command(self.path("kubectl"), args);
        kubectl.env("KUBECONFIG", super::layout::kubeconfig(user));
        kubectl
    }

    fn build_one(&self, module: &Module, name: &str, package: &str) -> Result<()> {
        // Renamed when it is complete, so that an interrupted build leaves no partial binary.
        let unfinished = self.path(&format!(".{name}.unfinished"));
        let flags = format!("-s -w {}", version_flags()?);
        let mut build = command("go", ["build", "-trimpath", "-ldflags", &flags, "-o"]);
        build.arg(&unfinished).arg(package);
        build.current_dir(root().join(module.dir)).env("CGO_ENABLED", "0").stdout(std::io::stderr());
        run(&mut build)
            .with_context(|| format!("cannot build {name}: try `go mod download` in {}", module.dir))?;
        fs::rename(&unfinished, self.path(name)).with_context(|| format!("cannot keep {name} in the cache"))
    }
}

/// Returns the directory of a Go module's sources, which are downloaded if needed.
pub(crate) fn module_sources(dir: &str, module: &str) -> Result<PathBuf> {
    let dir = root().join(dir);
    run(command("go", ["mod", "download", module]).current_dir(&dir))?;
    let path = output(command("go", ["list", "-m", "-f", "{{.Dir}}", module]).current_dir(&dir))?;
    Ok(PathBuf::from(path.trim()))
}

/// The pinned version of Kubernetes, such as `v1.34.4`.
pub(super) fn kubernetes_version() -> Result<String> {
    let text = fs::read_to_string(root().join("testbed/go.mod")).context("cannot read testbed/go.mod")?;
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
        .find_map(|rest| rest.split_whitespace().next())
        .map(str::to_owned)
        .context("testbed/go.mod pins no k8s.io/kubernetes")
}

fn key() -> Result<String> {
    let testbed = root().join("testbed");
    let inputs: Vec<PathBuf> = ["go.mod", "go.sum", "pause", "agent-sandbox/go.mod", "agent-sandbox/go.sum"]
        .iter()
        .map(|path| testbed.join(Path::new(path)))
        .collect();
    fingerprint(&inputs, &format!("{ARCH} {}", output(&mut command("go", ["env", "GOVERSION"]))?))
}

/// Linker flags with the version of Kubernetes, as its release builds have them.
fn version_flags() -> Result<String> {
    let version = kubernetes_version()?;
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    Ok([
        ("k8s.io/component-base/version.gitVersion", version.as_str()),
        ("k8s.io/component-base/version.gitMajor", major),
        ("k8s.io/component-base/version.gitMinor", minor),
        ("k8s.io/client-go/pkg/version.gitVersion", version.as_str()),
    ]
    .map(|(variable, value)| format!("-X {variable}={value}"))
    .join(" "))
}
