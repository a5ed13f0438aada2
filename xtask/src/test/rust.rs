//! The workspace's Rust tests: one suite per test binary, and the examples in the docs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use serde::Deserialize;

use super::Part;
use super::runner::run_and_read;
use crate::cluster;
use crate::progress::step;
use crate::results::{Outcome, Results};
use crate::shell::{command, output};
use crate::workspace::root;

/// The module of a cluster suite whose tests need agent-sandbox too.
const AGENT_SANDBOX: &str = "agent_sandbox::";
/// The package that is tested twice: as it is, and as on a kernel that lacks what the variable names.
const GUEST: &str = "crates/sandpod-guest";
const LACKING: (&str, &str) = ("SANDPOD_DISABLED_KERNEL_FEATURES", "landlock,openat2");

/// The tests of one binary that belong to one part.
pub(super) struct Suite {
    pub(super) part: Part,
    /// Its source's path from the root, which its tests' names start with.
    name: String,
    binary: PathBuf,
    package: PathBuf,
    /// As on a kernel that lacks something.
    lacking: bool,
}

/// What cargo says of a test binary it built.
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
    let mut cargo = cargo(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let messages = output(cargo.stderr(Stdio::inherit()))?;
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    Ok(artifacts.filter(|artifact| artifact.profile.test).flat_map(Suite::of).collect())
}

/// Runs the examples in the docs.
pub(super) fn run_doc_tests(results: &mut Results) -> Result<()> {
    run_and_read(
        &mut cargo(["test", "--workspace", "--doc", "--no-fail-fast"]),
        "docs",
        results,
        reader("docs"),
    )
}

impl Suite {
    /// The suites of a test binary: one of the cluster or the guest has two, every other one.
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
        let suite = |part, lacking| {
            let name = if lacking { format!("{name} without {}", LACKING.1) } else { name.clone() };
            Self { part, name, binary: binary.clone(), package: package.clone(), lacking }
        };
        let lacking = (place == GUEST).then(|| suite(Part::Rust, true));
        parts.iter().map(|&part| suite(part, false)).chain(lacking).collect()
    }

    /// Runs the tests, on the cluster of `kubeconfig` if they need one.
    pub(super) fn run(&self, kubeconfig: Option<&OsStr>, results: &mut Results) -> Result<()> {
        let mut command = self.command();
        if let Some(kubeconfig) = kubeconfig {
            // Cluster tests wait more than they work: more of them at once than there are cores.
            command.env("SANDPOD_TEST_KUBECONFIG", kubeconfig).env("RUST_TEST_THREADS", "8");
            // For tests that break the testbed on purpose.
            command.env("SANDPOD_XTASK", std::env::current_exe()?);
            // For tests of what kubectl is given.
            command.env("PATH", cluster::path_with_tools()?);
        }
        run_and_read(&mut command, &self.name, results, reader(&self.name))
    }

    /// Counts the tests as skipped.
    pub(super) fn skip(&self, results: &mut Results) -> Result<()> {
        let listing = output(self.command().args(["--list", "--format=terse"]))?;
        for test in listing.lines().filter_map(|line| line.strip_suffix(": test")) {
            results.push(format!("{}::{test}", self.name), Outcome::Skipped);
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let filter = match self.part {
            Part::Cluster => &["--skip", AGENT_SANDBOX][..],
            Part::AgentSandbox => &[AGENT_SANDBOX],
            // It prints how often what was broken, and the seed to do it again.
            Part::Faults => &["--show-output"],
            _ => &[],
        };
        let mut command = command(&self.binary, filter);
        command.current_dir(&self.package);
        if self.lacking {
            command.env(LACKING.0, LACKING.1);
        }
        command
    }
}

fn cargo<const N: usize>(args: [&str; N]) -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args);
    cargo.current_dir(root());
    cargo
}

/// Reads the lines of the test binary `suite`.
fn reader(suite: &str) -> impl Fn(&str) -> Option<(String, Outcome)> {
    move |line| parse(line).map(|(test, outcome)| (format!("{suite}::{test}"), outcome))
}

/// A test and its outcome, from a line such as `test module::name ... ok`.
fn parse(line: &str) -> Option<(&str, Outcome)> {
    let (test, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match outcome.split([',', ' ']).next()? {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "ignored" => Outcome::Skipped,
        _ => return None,
    };
    // A suite with a harness of its own pads names.
    Some((test.trim_end(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_test_binary_gives_a_test_and_its_outcome() {
        assert_eq!(parse("test a::b ... ok"), Some(("a::b", Outcome::Passed)));
        assert_eq!(parse("test a::b   ... FAILED"), Some(("a::b", Outcome::Failed)));
        assert_eq!(parse("test a::b ... ignored, needs more"), Some(("a::b", Outcome::Skipped)));
        assert_eq!(
            parse("test src/x.rs - x (line 3) - compile ... ok"),
            Some(("src/x.rs - x (line 3) - compile", Outcome::Passed))
        );
        assert_eq!(parse("test result: ok. 3 passed; 0 failed"), None);
        assert_eq!(parse("running 3 tests"), None);
    }

    #[test]
    fn the_guest_is_tested_a_second_time_as_on_a_kernel_that_lacks_something() {
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
        let has_variable = |suite: &Suite| suite.command().get_envs().any(|(name, _)| name == LACKING.0);
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
