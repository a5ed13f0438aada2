//! The commands for developers of this repository: set-up, tests, lint, builds and a real Kubernetes to test on. They do not
//! depend on the code of sandpod.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a command prints to the terminal")]

mod acceptance;
mod bench;
mod cluster;
mod corpus;
mod dist;
mod fuzz;
mod guest;
mod guest_image;
mod links;
mod lint;
mod node;
mod oci;
mod packages;
mod program_images;
mod progress;
mod prose;
mod python;
mod results;
mod runtimes;
mod sandboxd_image;
mod shell;
mod stock_images;
mod test;
mod workspace;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Set-up, tests, lint and the testbed cluster of sandpod.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Prepare the machine and run the tests of every language
    Test {
        /// Run only this part of the tests
        #[arg(long, value_enum, value_name = "PART")]
        only: Option<test::Part>,
        /// Run the lint checks too, beside the tests
        #[arg(long)]
        lint: bool,
        /// Run random tests for minutes instead of seconds
        #[arg(long)]
        long: bool,
    },
    /// Run the checks that need no test: formatting, lints, types, licenses, links
    Lint,
    /// Count the phrases that STYLE.md rules out, against the counts of xtask/prose.yaml
    Prose {
        /// Name the place of each instead
        #[arg(long)]
        list: bool,
        /// Lower the counts of the file to the present ones
        #[arg(long, conflicts_with = "list")]
        update: bool,
    },
    /// Check docs/acceptance.md against the last test run, and count its open rows
    Acceptance {
        /// Fail while a row is open
        #[arg(long)]
        strict: bool,
    },
    /// Measure sandpod beside the programs that it is compared with
    Bench {
        #[arg(value_enum)]
        name: bench::Name,
    },
    /// Look for bugs with random inputs
    Fuzz {
        /// Run only this target
        target: Option<String>,
        /// Seconds for which each target runs
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Run only this input
        #[arg(long, requires = "target")]
        input: Option<PathBuf>,
        /// Do not run, but keep the new inputs of earlier runs, reduced to the smallest set
        #[arg(long, conflicts_with = "input")]
        keep: bool,
    },
    /// Build the static binaries that go into a sandbox
    Guest {
        /// Architecture of the sandboxes. Default: this machine's
        #[arg(long, value_enum)]
        arch: Option<guest::Arch>,
    },
    /// Write an image with the guest, for the option `guest_image`, as an archive for `docker load`
    GuestImage {
        /// Path of the archive
        to: PathBuf,
        /// Name of the image
        #[arg(long, default_value = guest_image::NAME)]
        name: String,
        /// Architecture of the sandboxes. Default: this machine's
        #[arg(long, value_enum)]
        arch: Option<guest::Arch>,
    },
    /// Load the images of agent-sandbox's stock runtime and Python router into the testbed, for single tests
    StockImages,
    /// Build everything that a release holds into `dist`
    Dist {
        /// Build for this machine only, without optimisation
        #[arg(long, conflicts_with_all = ["only", "tag"])]
        quick: bool,
        /// Build only this part, and keep the files of the others
        #[arg(long, value_enum, value_name = "PART")]
        only: Option<dist::Part>,
        /// Fail unless this is the tag of the version, such as v0.1.0
        #[arg(long)]
        tag: Option<String>,
    },
    /// Manage the testbed, a real one-node Kubernetes on this machine
    #[command(subcommand)]
    Cluster(Cluster),
}

#[derive(Subcommand)]
enum Cluster {
    /// Start the cluster, unless it runs
    Up,
    /// Stop the cluster and remove everything that it created
    Down,
    /// Print the state of each component
    Status,
    /// Print the shell lines that point kubectl, helm and the tests at the cluster
    Env {
        /// Act as a ServiceAccount with the RBAC of this role, instead of as admin
        #[arg(long, value_enum)]
        role: Option<cluster::Role>,
        /// Namespace of the ServiceAccount, created if needed
        #[arg(long, default_value = "sandpod", requires = "role")]
        namespace: String,
    },
    /// Create the test images and print the path of their OCI archive, for a cluster of yours
    Images,
    /// Kill a component as a crash would, and start it again
    Restart {
        /// Name of the component, as in `status`
        #[arg(value_parser = cluster::COMPONENTS)]
        component: String,
    },
    /// Drop all packets of a Pod, as the enforcer of a NetworkPolicy would
    Isolate {
        /// IP address of the Pod
        pod: Ipv4Addr,
        /// Stop dropping its packets
        #[arg(long)]
        off: bool,
    },
}

fn main() -> ExitCode {
    match run(Task::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a task; returns whether it succeeded. The reasons of a failure are printed by then.
fn run(task: Task) -> anyhow::Result<bool> {
    match task {
        Task::Test { only, lint, long } => return test::run(&test::Options { only, lint, long }),
        Task::Lint => lint::run_all()?,
        Task::Prose { list: true, .. } => prose::list(&workspace::root())?,
        Task::Prose { update: true, .. } => prose::update(&workspace::root())?,
        Task::Prose { .. } => prose::check(&workspace::root())?,
        Task::Acceptance { strict } => {
            acceptance::run(&workspace::root(), &results::Results::file(), strict)?;
        }
        Task::Bench { name } => bench::run_one(name)?,
        Task::Fuzz { target, seconds, input, keep } => {
            let options = fuzz::Options { seconds, input: input.as_deref(), keep };
            return fuzz::run_targets(target.as_deref(), &options);
        }
        Task::Guest { arch } => {
            drop(guest::build(arch.unwrap_or_else(guest::Arch::own), guest::Profile::Quick)?);
        }
        Task::GuestImage { to, name, arch } => {
            let arch = arch.unwrap_or_else(guest::Arch::own);
            guest_image::write(&guest::build(arch, guest::Profile::Release)?, arch, &name, &to)?;
        }
        Task::StockImages => test::give_stock_images()?,
        Task::Dist { quick, only, tag } => dist::run(&dist::Options { quick, only, tag })?,
        Task::Cluster(Cluster::Up) => drop(cluster::up()?),
        Task::Cluster(Cluster::Down) => cluster::down()?,
        Task::Cluster(Cluster::Status) => cluster::status()?,
        Task::Cluster(Cluster::Env { role, namespace }) => cluster::env(role, &namespace)?,
        Task::Cluster(Cluster::Images) => cluster::images()?,
        Task::Cluster(Cluster::Restart { component }) => cluster::restart(&component)?,
        Task::Cluster(Cluster::Isolate { pod, off }) => cluster::isolate(pod, !off)?,
    }
    Ok(true)
}
