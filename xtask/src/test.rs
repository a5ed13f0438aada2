//! `cargo xtask test`: sets up what tests need, runs every test of every language, and keeps what
//! each came to.

mod fuzz;
mod peers;
mod python;
mod runner;
mod rust;

use std::env;
use std::ffi::{OsStr, OsString};

use anyhow::{Result, bail};
use clap::ValueEnum;

use self::runner::{Job, side_by_side};
use crate::progress::{Clock, step};
use crate::python::Environment;
use crate::results::{Outcome, Results};
use crate::workspace::root;
use crate::{acceptance, cluster, command_image, guest, guest_image, sandboxd_image, stock_images};

/// A part of the tests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Part {
    /// What needs nothing but Rust
    Rust,
    /// The Python package
    Python,
    /// The test suites of packages that the Python one replaces
    Peers,
    /// The Node package
    Node,
    /// What needs a cluster
    Cluster,
    /// What needs agent-sandbox in the cluster
    AgentSandbox,
    /// What breaks the cluster on purpose
    Faults,
    /// Random inputs for what listens to strangers
    Fuzz,
}

impl Part {
    const ALL: [Self; 8] = [
        Self::Rust,
        Self::Python,
        Self::Peers,
        Self::Node,
        Self::Cluster,
        Self::AgentSandbox,
        Self::Faults,
        Self::Fuzz,
    ];

    fn has_rust_tests(self) -> bool {
        !matches!(self, Self::Python | Self::Peers | Self::Node | Self::Fuzz)
    }

    fn needs_cluster(self) -> bool {
        matches!(self, Self::Python | Self::Peers | Self::Cluster | Self::AgentSandbox | Self::Faults)
    }
}

/// Runs all tests, or those of one part; answers whether all is well, and its last line counts.
pub(crate) fn run(only: Option<Part>) -> Result<bool> {
    let clock = Clock::start();
    let parts = only.map_or(Part::ALL.to_vec(), |part| vec![part]);
    let mut results = Results::default();
    let built = if parts.iter().any(|part| part.has_rust_tests()) { rust::build()? } else { Vec::new() };
    results.took("build of the Rust tests", &clock);
    let suites: Vec<_> = built.into_iter().filter(|suite| parts.contains(&suite.part)).collect();
    let needs_cluster = parts.iter().any(|part| part.needs_cluster());
    let access =
        if needs_cluster { prepare_cluster(&parts, &mut results)? } else { Access::None("no test needs it") };

    for suite in &suites {
        match access.kubeconfig() {
            None if suite.part.needs_cluster() => suite.skip(&mut results)?,
            kubeconfig => suite.run(kubeconfig, &mut results)?,
        }
    }
    if parts.contains(&Part::Rust) {
        rust::run_doc_tests(&mut results)?;
    }
    if parts.contains(&Part::Python) || parts.contains(&Part::Peers) {
        let clock = Clock::start();
        let environment = Environment::prepare()?;
        environment.install_package()?;
        results.took("build of the Python package", &clock);
        let kubeconfig = access.kubeconfig();
        let mut jobs: Vec<Job<'_>> = Vec::new();
        if parts.contains(&Part::Python) {
            jobs.push(Box::new(|| python::run(&environment, kubeconfig)));
        }
        if parts.contains(&Part::Peers) {
            jobs.push(Box::new(|| peers::run(&environment, kubeconfig)));
        }
        results.append(side_by_side(jobs)?);
    }
    if parts.contains(&Part::Fuzz) {
        fuzz::run(&mut results)?;
    }
    if results.tests.is_empty() {
        step("this part has no tests yet");
    }
    results.save(&Results::file())?;
    // A part of the tests, or all but those on a cluster, can't show every row.
    let whole = only.is_none() && access.kubeconfig().is_some();
    let accepted = !whole || accepted();
    report(&results, &access, clock.seconds());
    Ok(accepted && results.count(Outcome::Failed) == 0)
}

/// Starts the testbed, or takes the user's cluster, and loads the images that these parts need.
fn prepare_cluster(parts: &[Part], results: &mut Results) -> Result<Access> {
    let clock = Clock::start();
    let access = cluster_access()?;
    let Access::Kubeconfig(kubeconfig) = &access else { return Ok(access) };
    results.took("start of the cluster", &clock);
    let clock = Clock::start();
    let built = guest::build(guest::Arch::own(), guest::Profile::Release)?;
    guest_image::load(&built, kubeconfig.as_ref())?;
    if parts.contains(&Part::Cluster) {
        command_image::load(&built, kubeconfig.as_ref())?;
    }
    // The suite of all behaviours is one of the cluster's, and goes through sandboxd, too.
    let of_sandboxd = [Part::Cluster, Part::AgentSandbox, Part::Python, Part::Peers];
    if of_sandboxd.iter().any(|part| parts.contains(part)) {
        sandboxd_image::load(kubeconfig.as_ref())?;
    }
    stock_images::load(kubeconfig.as_ref())?;
    results.took("build of the guest and the images", &clock);
    Ok(access)
}

/// Gives the cluster of the tests what single tests of stock runtimes need.
pub(crate) fn give_stock_images() -> Result<()> {
    match cluster_access()? {
        Access::Kubeconfig(kubeconfig) => {
            sandboxd_image::load(kubeconfig.as_ref())?;
            stock_images::load(kubeconfig.as_ref())
        }
        Access::None(reason) => bail!("the testbed can't run here: {reason}"),
    }
}

/// How the tests reach a cluster.
enum Access {
    Kubeconfig(OsString),
    /// Not at all, and why.
    None(&'static str),
}

impl Access {
    fn kubeconfig(&self) -> Option<&OsStr> {
        match self {
            Self::Kubeconfig(path) => Some(path),
            Self::None(_) => None,
        }
    }
}

/// The user's own cluster if one is named, else the testbed; on CI having neither is a failure.
fn cluster_access() -> Result<Access> {
    if let Some(path) = env::var_os("SANDPOD_TEST_KUBECONFIG") {
        step(format!("testing on the cluster of {}", path.display()));
        return Ok(Access::Kubeconfig(path));
    }
    match cluster::obstacle() {
        None => Ok(Access::Kubeconfig(cluster::up()?.into_os_string())),
        Some(reason) if env::var("CI").is_ok_and(|ci| ci == "true") => {
            bail!("the testbed can't run here: {reason}; on CI that is a failure")
        }
        Some(reason) => Ok(Access::None(reason)),
    }
}

/// Whether docs/acceptance.md is true of this run.
fn accepted() -> bool {
    let verdict = acceptance::run(&root(), &Results::file(), false);
    if let Err(error) = &verdict {
        println!("{error:#}");
    }
    verdict.is_ok()
}

fn report(results: &Results, access: &Access, seconds: f64) {
    for test in results.tests.iter().filter(|test| test.outcome == Outcome::Failed) {
        println!("failed: {}", test.name);
    }
    if results.count(Outcome::Failed) > 0 {
        println!("Run a part again with `cargo xtask test --only PART`, or one test with `cargo test NAME`.");
    }
    if let (Access::None(reason), true) = (access, results.count(Outcome::Skipped) > 0) {
        println!(
            "SKIPPED ALL CLUSTER TESTS: the testbed can't run here: {reason}. \
             Set SANDPOD_TEST_KUBECONFIG to use a cluster of yours."
        );
    }
    results.print_slowest();
    step(format!("tests took {seconds:.0}s; each one's outcome is in {}", Results::file().display()));
    println!("{}", results.summary());
}
