//! What people type in this repository. It knows how to set a machine up, run every test, lint,
//! and start a real Kubernetes to test on; it knows nothing of how sandpod itself works.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a command for people speaks to the terminal")]

mod acceptance;
mod bench;
mod cluster;
mod command_image;
mod corpus;
mod fuzz;
mod guest;
mod guest_image;
mod links;
mod lint;
mod packages;
mod progress;
mod prose;
mod python;
mod results;
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
    /// Set everything up, then run every test of every language
    Test {
        /// Run a part of the tests
        #[arg(long, value_enum, value_name = "PART")]
        only: Option<test::Part>,
    },
    /// Run every check that needs no test to run
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
    /// Measure both sides of each claim of speed, in one run
    Bench {
        #[arg(value_enum)]
        name: bench::Name,
    },
    /// Look for bugs with random inputs
    Fuzz {
        /// In this target only
        target: Option<String>,
        /// How long each target looks
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Try this input, and no other
        #[arg(long, requires = "target")]
        input: Option<PathBuf>,
        /// Instead, keep the least of what earlier runs found to be new
        #[arg(long, conflicts_with = "input")]
        keep: bool,
    },
    /// Build the static binaries that go into a sandbox
    Guest {
        /// For this architecture, instead of this machine's
        #[arg(long, value_enum)]
        arch: Option<guest::Arch>,
    },
    /// Write an image that brings the guest into sandboxes, for the option `guest_image`, as an archive for `docker load`
    GuestImage {
        /// Where to
        to: PathBuf,
        /// Its name
        #[arg(long, default_value = guest_image::NAME)]
        name: String,
        /// For this architecture, instead of this machine's
        #[arg(long, value_enum)]
        arch: Option<guest::Arch>,
    },
    /// Give the testbed the images of agent-sandbox's stock runtime and Python router, for single tests
    StockImages,
    /// Build the binaries that are shipped into `dist`, with their checksums, and check their sizes
    Dist,
    /// The testbed: a real one-node Kubernetes on this machine
    #[command(subcommand)]
    Cluster(Cluster),
}

#[derive(Subcommand)]
enum Cluster {
    /// Start it, or find it running
    Up,
    /// Stop it and remove all it left
    Down,
    /// Say what runs
    Status,
    /// Print the shell lines that point kubectl, helm and the tests at it
    Env {
        /// Speak as a ServiceAccount with the RBAC that we ship, instead of as admin
        #[arg(long, value_enum)]
        role: Option<cluster::Role>,
        /// The namespace of that ServiceAccount, made if need be
        #[arg(long, default_value = "sandpod", requires = "role")]
        namespace: String,
    },
    /// Make the test images and print where their OCI archive is, for a cluster of yours
    Images,
    /// Kill a component as a crash would, and start it again
    Restart {
        /// Its name, as in `status`
        #[arg(value_parser = cluster::COMPONENTS)]
        component: String,
    },
    /// Drop all packets of a Pod, as a NetworkPolicy's enforcer would
    Isolate {
        /// The Pod's address
        pod: Ipv4Addr,
        /// Let its packets through again
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

/// Whether all is well; what is not has been said already.
fn run(task: Task) -> anyhow::Result<bool> {
    match task {
        Task::Test { only } => return test::run(only),
        Task::Lint => lint::run_all()?,
        Task::Prose { list: true, .. } => prose::list(&workspace::root())?,
        Task::Prose { update: true, .. } => prose::update(&workspace::root())?,
        Task::Prose { .. } => prose::check(&workspace::root())?,
        Task::Acceptance { strict } => {
            acceptance::run(&workspace::root(), &results::Results::file(), strict)?;
        }
        Task::Bench { name } => bench::run_one(name)?,
        Task::Fuzz { target, seconds, input, keep } => {
            let wishes = fuzz::Wishes { seconds, input: input.as_deref(), keep };
            return fuzz::run_targets(target.as_deref(), &wishes);
        }
        Task::Guest { arch } => {
            drop(guest::build(arch.unwrap_or_else(guest::Arch::own), guest::Profile::Release)?);
        }
        Task::GuestImage { to, name, arch } => {
            let arch = arch.unwrap_or_else(guest::Arch::own);
            guest_image::write(&guest::build(arch, guest::Profile::Release)?, arch, &name, &to)?;
        }
        Task::StockImages => test::give_stock_images()?,
        Task::Dist => guest::dist()?,
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
