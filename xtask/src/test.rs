//! `cargo xtask test`: prepares what tests need, runs the tests of every language, and keeps their outcomes.
//!
//! A run is a [`Plan`] of jobs. Most tests wait for a cluster or for time to pass, so the jobs run side by side; those
//! that restart components of the cluster run after all others that use it.

mod budget;
mod fuzz;
mod libtest;
mod node;
mod peers;
mod plan;
mod pytest;
mod python;
mod runner;
mod rust;

use std::env;
use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use self::plan::Plan;
use self::rust::Suite;
use crate::fuzz::Fuzzer;
use crate::node::Package;
use crate::progress::{Clock, step};
use crate::python::Environment;
use crate::results::{Outcome, Results};
use crate::workspace::root;
use crate::{
    acceptance, cluster, dist, guest, guest_image, lint, program_images, sandboxd_image, stock_images,
};

/// A part of the tests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Part {
    /// Tests that need only Rust
    Rust,
    /// The Python package
    Python,
    /// The test suites of packages that the Python package replaces
    Peers,
    /// The Node package
    Node,
    /// Tests that need a cluster
    Cluster,
    /// Tests that need agent-sandbox in the cluster
    AgentSandbox,
    /// Tests that restart components of the cluster
    Faults,
    /// Random inputs for code that reads untrusted input
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
        matches!(self, Self::Rust | Self::Cluster | Self::AgentSandbox | Self::Faults)
    }

    fn needs_cluster(self) -> bool {
        !matches!(self, Self::Rust | Self::Fuzz)
    }
}

/// What to run.
pub(crate) struct Options {
    /// Only this part.
    pub(crate) only: Option<Part>,
    /// The lint checks too, beside the tests.
    pub(crate) lint: bool,
    /// Random tests for minutes instead of seconds.
    pub(crate) long: bool,
}

/// Runs all tests, or those of one part; returns whether all passed. The last line that it prints counts them.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let clock = Clock::start();
    let parts = options.only.map_or(Part::ALL.to_vec(), |part| vec![part]);
    let access = if parts.iter().any(|part| part.needs_cluster()) {
        find_cluster()?
    } else {
        Access::None("no test of this part needs it")
    };
    let (run, mut results) = (Run::new(options, &parts, &access), Results::default());
    let outcome = run.plan().run(&mut results);
    results.save(&Results::file())?;
    // The rows of the acceptance list can be checked only when every test ran.
    let whole = options.only.is_none() && !matches!(access, Access::None(_)) && outcome.is_ok();
    let accepted = !whole || accepted();
    report(&results, &access, clock.seconds());
    outcome?;
    Ok(accepted && results.count(Outcome::Failed) == 0)
}

/// The cluster that the tests use.
enum Access {
    /// One that the user names.
    Kubeconfig(OsString),
    /// The testbed, which the run starts.
    Testbed,
    /// None, and why.
    None(&'static str),
}

/// Names of jobs that others need.
const BUILD: &str = "build of the Rust tests";
const GUEST: &str = "build of the guest";
const CLUSTER: &str = "start of the cluster";
const PACKAGE: &str = "build of the Python package";
const LINT: &str = "lint";
const RUST: &str = "Rust tests";
const FUZZ_BUILD: &str = "build of the fuzz targets";
const CONFORMANCE: &str = "conformance";
const CLUSTER_TESTS: &str = "cluster tests";
const AGENT_SANDBOX_TESTS: &str = "agent-sandbox tests";
const PYTHON: &str = "Python tests";
const PEERS: &str = "peers' tests";
const NODE_PACKAGE: &str = "build of the Node package";
const NODE: &str = "Node tests";
const ON_CLUSTER: [&str; 6] = [CONFORMANCE, CLUSTER_TESTS, AGENT_SANDBOX_TESTS, PYTHON, PEERS, NODE];

/// A run, and what its jobs share.
struct Run<'a> {
    options: &'a Options,
    parts: &'a [Part],
    access: &'a Access,
    suites: OnceLock<Vec<Suite>>,
    /// The guest and the command.
    built: OnceLock<guest::ForTests>,
    /// Where the cluster's kubeconfig is, if there is a cluster.
    kubeconfig: OnceLock<Option<OsString>>,
    environment: OnceLock<Environment>,
    package: OnceLock<Package>,
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, parts: &'a [Part], access: &'a Access) -> Self {
        let (suites, built, kubeconfig, environment, package) = Default::default();
        Self { options, parts, access, suites, built, kubeconfig, environment, package }
    }

    fn has(&self, parts: &[Part]) -> bool {
        parts.iter().any(|part| self.parts.contains(part))
    }

    /// All jobs of the run. The jobs that mostly compute run one by one, beside those that mostly wait for the cluster.
    fn plan(&self) -> Plan<'_> {
        let mut plan = Plan::default();
        self.add_preparations(&mut plan);
        if self.has(&[Part::Rust]) {
            plan.add_computing(RUST, &[BUILD], || {
                let mut results = self.run_suites(Part::Rust, |_| true)?;
                rust::run_doc_tests(&mut results)?;
                Ok(results)
            });
        }
        if self.options.lint {
            // After the other builds: they share locks and cores.
            plan.add_computing(LINT, &[BUILD, PACKAGE, NODE_PACKAGE], || Ok(run_lint()));
        }
        self.add_node_tests(&mut plan);
        self.add_tests_on_cluster(&mut plan);
        if self.has(&[Part::Faults]) {
            // They restart the API server.
            plan.add("fault tests", &[&[BUILD, CLUSTER][..], &ON_CLUSTER].concat(), || {
                self.run_suites(Part::Faults, |_| true)
            });
        }
        if self.has(&[Part::Fuzz]) {
            plan.add_computing(FUZZ_BUILD, &[], || Fuzzer::build().map(|_| Results::default()));
            // Beside the fault tests, which mostly wait.
            plan.add("fuzz", &[&[FUZZ_BUILD][..], &ON_CLUSTER].concat(), || fuzz::run(self.options.long));
        }
        plan
    }

    fn add_preparations<'b>(&'b self, plan: &mut Plan<'b>) {
        if self.parts.iter().any(|part| part.has_rust_tests()) {
            plan.add(BUILD, &[], || {
                let _ = self.suites.set(rust::build()?);
                Ok(Results::default())
            });
        }
        if self.parts.iter().any(|part| part.needs_cluster()) {
            plan.add(GUEST, &[], || {
                let built = guest::build_for_tests()?;
                dist::add_command(&dist::files_for_tests()?, &built)?;
                let _ = self.built.set(built);
                Ok(Results::default())
            });
            plan.add(CLUSTER, &[GUEST], || {
                let _ = self.kubeconfig.set(self.start_cluster()?);
                Ok(Results::default())
            });
        }
        if self.has(&[Part::Python, Part::Peers]) {
            plan.add(PACKAGE, &[GUEST], || {
                let environment = Environment::prepare()?;
                let wheel = dist::add_wheel(&dist::files_for_tests()?, &environment, self.built()?)?;
                environment.install_wheel(&wheel)?;
                let _ = self.environment.set(environment);
                Environment::prepare_others()?;
                Ok(Results::default())
            });
        }
        if self.has(&[Part::Node]) {
            // After the Rust tests' build, which has the addon's dependencies.
            plan.add(NODE_PACKAGE, &[BUILD, GUEST], || {
                let package = Package::prepare()?;
                package.build(&self.built()?.guest)?;
                dist::add_npm(&dist::files_for_tests()?, &package, self.built()?)?;
                let _ = self.package.set(package);
                Ok(Results::default())
            });
        }
    }

    fn add_node_tests<'b>(&'b self, plan: &mut Plan<'b>) {
        if self.has(&[Part::Node]) {
            plan.add_computing(NODE, &[NODE_PACKAGE, CLUSTER], || {
                node::run(self.package.get().context("the package was not built")?, self.kubeconfig())
            });
        }
    }

    fn add_tests_on_cluster<'b>(&'b self, plan: &mut Plan<'b>) {
        if self.has(&[Part::Cluster]) {
            let is_conformance = |suite: &Suite| suite.name.contains("sandpod-conformance");
            plan.add(CONFORMANCE, &[BUILD, CLUSTER], move || self.run_suites(Part::Cluster, is_conformance));
            plan.add(CLUSTER_TESTS, &[BUILD, CLUSTER, CONFORMANCE], move || {
                self.run_suites(Part::Cluster, |suite| !is_conformance(suite))
            });
        }
        if self.has(&[Part::AgentSandbox]) {
            // After the package, whose job creates the Python environment that some of them use.
            plan.add(AGENT_SANDBOX_TESTS, &[BUILD, CLUSTER, PACKAGE, CLUSTER_TESTS], || {
                self.run_suites(Part::AgentSandbox, |_| true)
            });
        }
        if self.has(&[Part::Python]) {
            plan.add_computing(PYTHON, &[PACKAGE, CLUSTER], || {
                python::run(self.environment()?, self.kubeconfig())
            });
        }
        if self.has(&[Part::Peers]) {
            plan.add_computing(PEERS, &[PACKAGE, CLUSTER], || {
                peers::run(self.environment()?, self.kubeconfig())
            });
        }
    }

    /// Runs the Rust suites of a part one after the other; without a cluster, those that need one are skipped.
    fn run_suites(&self, part: Part, wanted: impl Fn(&Suite) -> bool) -> Result<Results> {
        let mut results = Results::default();
        let suites = self.suites.get().into_iter().flatten();
        for suite in suites.filter(|suite| suite.part == part && wanted(suite)) {
            let kubeconfig = self.kubeconfig().filter(|_| part.needs_cluster());
            if part.needs_cluster() && kubeconfig.is_none() {
                suite.skip(&mut results)?;
            } else {
                suite.run(kubeconfig, self.options.long, &mut results)?;
            }
        }
        Ok(results)
    }

    fn kubeconfig(&self) -> Option<&OsStr> {
        self.kubeconfig.get()?.as_deref()
    }

    fn built(&self) -> Result<&guest::ForTests> {
        self.built.get().context("the guest was not built")
    }

    fn environment(&self) -> Result<&Environment> {
        self.environment.get().context("the Python environment was not created")
    }

    /// Starts the testbed, or takes the user's cluster, and loads the images that the parts need.
    fn start_cluster(&self) -> Result<Option<OsString>> {
        let Some(kubeconfig) = self.access.kubeconfig()? else { return Ok(None) };
        let built = self.built()?;
        guest_image::load(&built.guest, kubeconfig.as_ref())?;
        if self.has(&[Part::Cluster]) {
            program_images::load(built, kubeconfig.as_ref())?;
        }
        // The conformance suite, which is one of the cluster's, also runs on sandboxd.
        if self.has(&[Part::Cluster, Part::AgentSandbox, Part::Python, Part::Peers]) {
            sandboxd_image::load(kubeconfig.as_ref())?;
        }
        stock_images::load(kubeconfig.as_ref())?;
        Ok(Some(kubeconfig))
    }
}

/// Runs the lint checks as one test, so that a failure stops no other job.
fn run_lint() -> Results {
    let mut results = Results::default();
    let outcome = match lint::run_all() {
        Ok(()) => Outcome::Passed,
        Err(error) => {
            println!("{error:#}");
            Outcome::Failed
        }
    };
    results.push(LINT.to_owned(), outcome);
    results
}

/// Loads the images that single tests of stock runtimes need into the cluster of the tests.
pub(crate) fn give_stock_images() -> Result<()> {
    let access = find_cluster()?;
    match (access.kubeconfig()?, access) {
        (Some(kubeconfig), _) => {
            sandboxd_image::load(kubeconfig.as_ref())?;
            stock_images::load(kubeconfig.as_ref())
        }
        (None, Access::None(reason)) => bail!("the testbed cannot run here: {reason}"),
        (None, _) => bail!("there is no cluster"),
    }
}

impl Access {
    /// The path of the kubeconfig of the user's cluster or of the testbed, which is started if need be.
    fn kubeconfig(&self) -> Result<Option<OsString>> {
        Ok(match self {
            Self::Kubeconfig(path) => Some(path.clone()),
            Self::Testbed => Some(cluster::up()?.into_os_string()),
            Self::None(_) => None,
        })
    }
}

/// The user's own cluster if `SANDPOD_TEST_KUBECONFIG` names one, else the testbed. In CI there must be one of them.
fn find_cluster() -> Result<Access> {
    if let Some(path) = env::var_os("SANDPOD_TEST_KUBECONFIG") {
        step(format!("testing on the cluster of {}", path.display()));
        return Ok(Access::Kubeconfig(path));
    }
    match cluster::obstacle() {
        None => Ok(Access::Testbed),
        Some(reason) if env::var("CI").is_ok_and(|ci| ci == "true") => {
            bail!("the testbed cannot run here: {reason}; in CI that is a failure")
        }
        Some(reason) => Ok(Access::None(reason)),
    }
}

/// Whether docs/acceptance.md matches this run.
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
            "SKIPPED ALL CLUSTER TESTS: the testbed cannot run here: {reason}. \
             Set SANDPOD_TEST_KUBECONFIG to use a cluster of yours."
        );
    }
    results.print_slowest();
    budget::report(&results.parts, seconds);
    step(format!("the outcome of each test is in {}", Results::file().display()));
    println!("{}", results.summary());
}
