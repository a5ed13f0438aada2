//! `cargo xtask dist`: everything that a release holds, in `dist`.
//!
//! A full run builds for every [`Platform`]; `--quick` builds unoptimised files for this machine, in minutes. The tests install
//! the same quick files, which [`Files`] keeps for them below the build output. docs/releasing.md lists the files.

mod archive;
mod chart;
mod command;
mod deb;
mod dependencies;
mod files;
mod guests;
mod images;
mod npm;
mod platform;
mod python;
mod sources;
mod tools;
mod versions;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;

pub(crate) use self::files::Files;
use self::platform::Platform;
use self::tools::Tools;
pub(crate) use self::tools::reproducible as make_reproducible;
pub(crate) use self::versions::check as check_versions;
use crate::guest::{self, Arch, ForTests, Profile};
use crate::node::Package;
use crate::packages;
use crate::progress::{Clock, step};
use crate::python::Environment;
use crate::shell::on_path;
use crate::workspace::{root, target};

/// The options of a run.
pub(crate) struct Options {
    /// Unoptimised files for this machine only.
    pub(crate) quick: bool,
    /// Only this part, beside the files of an earlier run.
    pub(crate) only: Option<Part>,
    /// The expected tag of the version.
    pub(crate) tag: Option<String>,
}

/// A part of a release.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Part {
    /// The command as archive, Debian package and image, the guest and the chart
    Command,
    /// The wheels and the source archive
    Python,
    /// The npm packages
    Node,
    /// The bills of materials and the licences of the dependencies
    Dependencies,
}

/// Builds the files of a release into `dist`.
pub(crate) fn run(options: &Options) -> Result<()> {
    check_versions()?;
    check_tag(options.tag.as_deref())?;
    let (clock, dir) = (Clock::start(), root().join("dist"));
    let files = if options.only.is_some() { Files::existing(dir)? } else { Files::empty(dir)? };
    if options.quick {
        build_quickly(&files)?;
    } else {
        build_released(&files, options.only)?;
    }
    files.write_checksums()?;
    files.print()?;
    step(format!("built in {:.0}s", clock.seconds()));
    Ok(())
}

fn check_tag(tag: Option<&str>) -> Result<()> {
    match tag {
        Some(tag) if tag.strip_prefix('v') != Some(version()) => {
            bail!("the tag is {tag}, but Cargo.toml has version {}", version())
        }
        _ => Ok(()),
    }
}

fn build_quickly(files: &Files) -> Result<()> {
    let built = guest::build_for_tests()?;
    add_command(files, &built)?;
    if on_path("dpkg-deb") {
        let documents = command::Documents::of(&built.command)?;
        deb::pack(files, Arch::own(), &built.command, &documents)?;
    }
    chart::pack(files)?;
    drop(add_wheel(files, &Environment::prepare()?, &built)?);
    let package = Package::prepare()?;
    package.build(&built.guest)?;
    add_npm(files, &package, &built)
}

fn build_released(files: &Files, only: Option<Part>) -> Result<()> {
    let tools = Tools::prepare()?;
    let has = |part| only.is_none_or(|only| only == part);
    if has(Part::Dependencies) {
        dependencies::write(&tools, files)?;
    }
    if only == Some(Part::Dependencies) {
        return Ok(());
    }
    // Every other part contains it.
    let guests = guests::build(files)?;
    if has(Part::Command) {
        build_commands(&tools, &guests, files)?;
    }
    if has(Part::Python) {
        build_wheels(&tools, &guests, files)?;
    }
    if has(Part::Node) {
        build_npm(&tools, &guests, files)?;
    }
    Ok(())
}

fn build_commands(tools: &Tools, guests: &Path, files: &Files) -> Result<()> {
    packages::install(packages::DIST)?;
    let (mut documents, mut programs) = (None, Vec::new());
    // This machine's comes first, because it prints the documents of both.
    for arch in [Arch::own(), Arch::own().other()] {
        let [built, router] = command::build(tools, arch, guests)?;
        let documents = match &documents {
            Some(documents) => documents,
            None => documents.insert(command::Documents::of(&built)?),
        };
        command::pack(files, arch, &built, documents)?;
        deb::pack(files, arch, &built, documents)?;
        programs.push((arch, [built, router]));
    }
    images::add(files, guests, &programs)?;
    chart::pack(files)
}

fn build_wheels(tools: &Tools, guests: &Path, files: &Files) -> Result<()> {
    files.remove("whl", |_| true)?;
    for platform in Platform::ALL {
        let wheel = python::build_wheel(tools, platform, guests, files)?;
        python::audit(tools, platform, &wheel)?;
    }
    python::write_source(files)
}

fn build_npm(tools: &Tools, guests: &Path, files: &Files) -> Result<()> {
    let package = Package::prepare()?;
    package.run_script("build")?;
    let mut addons = Vec::new();
    for platform in Platform::ALL {
        addons.push((platform, npm::build_addon(tools, platform)?));
    }
    npm::pack(&package, guests, &addons, files)
}

/// Makes the archive of the command for this machine.
pub(crate) fn add_command(files: &Files, built: &ForTests) -> Result<()> {
    command::pack(files, Arch::own(), &built.command, &command::Documents::of(&built.command)?)
}

/// Makes the wheel for this machine, with the guest that was built; returns its path.
pub(crate) fn add_wheel(files: &Files, environment: &Environment, built: &ForTests) -> Result<PathBuf> {
    step("building the wheel for this machine");
    python::build_quick_wheel(environment, &built.guest, files)
}

/// Makes the npm packages for this machine. `package` was built.
pub(crate) fn add_npm(files: &Files, package: &Package, built: &ForTests) -> Result<()> {
    let own = Platform::own();
    npm::pack(package, &built.embedded, &[(own, package.addon())], files)
}

/// The quick files that the tests install.
pub(crate) fn files_for_tests() -> Result<Files> {
    Files::existing(target().join("dist"))
}

/// The variable that holds the directory of these files in tests.
pub(crate) const TEST_VARIABLE: &str = "SANDPOD_TEST_DIST";

/// The version of the workspace.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The Cargo profile of what Python and Node load. Both need unwinding, which the profile `dist` does not have.
const LIBRARY: Profile = Profile::Release;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_of_another_version_is_refused() {
        check_tag(None).unwrap();
        check_tag(Some(&format!("v{}", version()))).unwrap();
        for tag in ["v0.0.0", version()] {
            assert!(check_tag(Some(tag)).unwrap_err().to_string().starts_with("the tag is"), "{tag}");
        }
    }
}
