//! The Rust tests of the workspace: one suite per test binary, and the examples in the documentation.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use serde::Deserialize;

use super::Part;
use super::libtest::{Reader, listed};
use super::runner::run_and_read;
use crate::progress::step;
use crate::python::Environment;
use crate::results::{Outcome, Results};
use crate::shell::{command, output};
use crate::workspace::root;
use crate::{cluster, dist};

/// The module of a cluster suite whose tests also need agent-sandbox.
const AGENT_SANDBOX: &str = "agent_sandbox::";
/// The crate that is tested twice: as it is, and as on a kernel without the features that the variable names.
const GUEST: &str = "crates/sandpod-guest";
const WITHOUT: (&str, &str) = ("SANDPOD_DISABLED_KERNEL_FEATURES", "landlock,openat2");
/// Tests wait more than they compute, so more of them run at once than there are cores.
const THREADS: usize = 8;

/// The tests of one binary that belong to one part.
pub(super) struct Suite {
    pub(super) part: Part,
    /// The path of its source from the root, which the names of its tests start with.
    pub(super) name: String,
    binary: PathBuf,
    package: PathBuf,
    /// Whether it runs as on a kernel without some features.
    without_features: bool,
}

/// A test binary in cargo's messages.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    profile: Profile,
    target: Target,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

/// Builds every test binary of the workspace.
pub(super) fn build() -> Result<Vec<Suite>> {
    step("building the Rust tests");
    let mut cargo =
        cargo(["test", "--workspace", "--no-run", "--quiet", "--message-format=json-render-diagnostics"]);
    let messages = output(cargo.stderr(Stdio::inherit()))?;
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    Ok(artifacts.filter(|artifact| artifact.profile.test).flat_map(Suite::of).collect())
}

/// Runs the examples in the documentation.
pub(super) fn run_doc_tests(results: &mut Results) -> Result<()> {
    // Cargo compiles and runs those of one crate at a time, so they have no times of their own.
    let mut reader = Reader::new("docs", Vec::new(), 0);
    let mut tests = cargo(["test", "--workspace", "--doc", "--no-fail-fast"]);
    run_and_read(&mut tests, "docs", results, |line| reader.read(line))
}

impl Suite {
    /// The suites of a test binary: two for one that needs a cluster or tests the guest, one for any other.
    fn of(artifact: Artifact) -> Vec<Self> {
        let Some(binary) = artifact.executable else { return Vec::new() };
        let package = artifact.manifest_path.parent().map(Path::to_owned).unwrap_or_default();
        let place = package.strip_prefix(root()).unwrap_or(&package).display().to_string();
        let is_test = artifact.target.kind.iter().any(|kind| kind == "test");
        let target = artifact.target.name.as_str();
        let name = if is_test { format!("{place}/tests/{target}") } else { format!("{place}/src") };
        let parts: &[Part] = match (is_test, target) {
            (true, "cluster") => &[Part::Cluster, Part::AgentSandbox],
            (true, "faults") => &[Part::Faults],
            _ => &[Part::Rust],
        };
        let suite = |part, without_features| {
            let name = if without_features { format!("{name} without {}", WITHOUT.1) } else { name.clone() };
            Self { part, name, binary: binary.clone(), package: package.clone(), without_features }
        };
        let without_features = (place == GUEST).then(|| suite(Part::Rust, true));
        parts.iter().map(|&part| suite(part, false)).chain(without_features).collect()
    }

    /// Runs the tests, on the cluster of `kubeconfig` if they need one. Random tests run longer if `long`.
    pub(super) fn run(&self, kubeconfig: Option<&OsStr>, long: bool, results: &mut Results) -> Result<()> {
        let tests = self.tests()?;
        if tests.is_empty() {
            return Ok(());
        }
        let mut command = self.command();
        command.env("RUST_TEST_THREADS", THREADS.to_string());
        if long {
            command.env("SANDPOD_TEST_LONG", "1").env("SANDPOD_TEST_SANDBOXES", "10000");
        }
        if let Some(kubeconfig) = kubeconfig {
            command.env("SANDPOD_TEST_KUBECONFIG", kubeconfig);
            // For tests that restart components of the testbed.
            command.env("SANDPOD_XTASK", std::env::current_exe()?);
            // For tests that install the released files.
            command.env(dist::TEST_VARIABLE, dist::files_for_tests()?.dir());
            // For tests that run kubectl.
            command.env("PATH", cluster::path_with_tools()?);
        }
        if self.part == Part::AgentSandbox && kubeconfig.is_some() {
            // For tests that run agent-sandbox's own client.
            command.env("SANDPOD_TEST_PYTHON", Environment::prepare()?.program("python"));
        }
        let mut reader = Reader::new(&self.name, tests, THREADS);
        run_and_read(&mut command, &self.name, results, |line| reader.read(line))
    }

    /// Counts the tests as skipped.
    pub(super) fn skip(&self, results: &mut Results) -> Result<()> {
        for test in self.tests()? {
            results.push(format!("{}::{test}", self.name), Outcome::Skipped);
        }
        Ok(())
    }

    /// The names of its tests, in the order in which the binary starts them.
    fn tests(&self) -> Result<Vec<String>> {
        Ok(listed(&output(self.command().args(["--list", "--format=terse"]))?))
    }

    fn command(&self) -> Command {
        let filter = match self.part {
            Part::Cluster => &["--skip", AGENT_SANDBOX][..],
            Part::AgentSandbox => &[AGENT_SANDBOX],
            // They print which faults they injected, and the seed that repeats them.
            Part::Faults => &["--show-output"],
            _ => &[],
        };
        let mut command = command(&self.binary, filter);
        command.current_dir(&self.package);
        if self.without_features {
            command.env(WITHOUT.0, WITHOUT.1);
        }
        command
    }
}

fn cargo<const N: usize>(args: [&str; N]) -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args);
    cargo.current_dir(root());
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_is_tested_a_second_time_as_on_a_kernel_without_some_features() {
        let artifact = Artifact {
            executable: Some("/t/deps/it-1".into()),
            manifest_path: root().join(GUEST).join("Cargo.toml"),
            profile: Profile { test: true },
            target: Target { kind: vec!["test".to_owned()], name: "it".to_owned() },
        };
        let suites = Suite::of(artifact);
        let names: Vec<_> = suites.iter().map(|suite| suite.name.as_str()).collect();
        let name = "crates/sandpod-guest/tests/it";
        assert_eq!(names, [name, &format!("{name} without landlock,openat2")]);
        let has_variable = |suite: &Suite| suite.command().get_envs().any(|(name, _)| name == WITHOUT.0);
        assert_eq!(suites.iter().map(has_variable).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_cluster_binary_has_a_part_of_its_own_for_agent_sandbox() {
        let artifact = Artifact {
            executable: Some("/t/deps/cluster-1".into()),
            manifest_path: root().join("crates/x/Cargo.toml"),
            profile: Profile { test: true },
            target: Target { kind: vec!["test".to_owned()], name: "cluster".to_owned() },
        };
        let suites = Suite::of(artifact);
        assert_eq!(
            suites.iter().map(|suite| suite.part).collect::<Vec<_>>(),
            [Part::Cluster, Part::AgentSandbox]
        );
        assert_eq!(suites[0].name, "crates/x/tests/cluster");
        assert!(suites[0].package.ends_with("crates/x"));
    }
}
