//! The wheels of a release, and its source archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::archive::{self, Entries, FILE};
use super::platform::Platform;
use super::sources;
use super::tools::{Tools, reproducible};
use super::{Files, LIBRARY, version};
use crate::progress::step;
use crate::python::{Environment, PACKAGE};
use crate::shell::{command, output, run};
use crate::workspace::root;

/// The contents of the source archive: the package and the crates that it is built from.
const SOURCES: [&str; 7] =
    ["Cargo.lock", "Cargo.toml", "LICENSE", "bindings/python/", "clippy.toml", "crates/", "testbed/harness/"];
/// Parts of these that a build does not need.
const LEFT_OUT: [&str; 4] = [
    "bindings/python/tests/",
    "bindings/python/peers/",
    "bindings/python/examples/",
    "crates/sandpod-conformance/",
];

/// Builds the wheel for this machine as `pip install` does, with the guest in the directory `guest`.
pub(super) fn build_quick_wheel(environment: &Environment, guest: &Path, files: &Files) -> Result<PathBuf> {
    files.remove("whl", |_| true)?;
    remove_guests()?;
    let mut pip = environment.tool("pip");
    // The environment has the tools of the build.
    pip.args(["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]).arg(files.dir());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = [environment.program("")].into_iter().chain(std::env::split_paths(&path));
    pip.env("PATH", std::env::join_paths(programs)?).env("SANDPOD_GUEST_DIR", guest);
    run(pip.arg(format!("./{PACKAGE}"))).with_context(|| format!("cannot build {PACKAGE}"))?;
    files.with_extension("whl")?.pop().context("pip wrote no wheel")
}

/// Builds the released wheel for a platform.
pub(super) fn build_wheel(
    tools: &Tools,
    platform: Platform,
    guests: &Path,
    files: &Files,
) -> Result<PathBuf> {
    step(format!("building the wheel for {}", platform.npm()));
    let mut maturin = tools.program("maturin")?;
    maturin.args(["build", "--zig", "--profile", LIBRARY.name(), "--target", &platform.triple()]);
    maturin.args(["--compatibility", platform.wheel_tag()]);
    reproducible(&mut maturin, "")?;
    wheel(maturin, guests, files)
}

/// Runs maturin with the guests in the package; returns the path of the wheel.
fn wheel(mut maturin: Command, guests: &Path, files: &Files) -> Result<PathBuf> {
    super::npm::copy_dir(guests, &remove_guests()?)?;
    let before = files.with_extension("whl")?;
    maturin.args(["--locked", "--quiet", "--manifest-path", &format!("{PACKAGE}/Cargo.toml"), "--out"]);
    run(maturin.arg(files.dir()).current_dir(root())).context("cannot build a wheel")?;
    files
        .with_extension("whl")?
        .into_iter()
        .find(|wheel| !before.contains(wheel))
        .context("maturin wrote no wheel")
}

/// Removes the guests of an earlier build from the package; returns their directory.
fn remove_guests() -> Result<PathBuf> {
    let guests = root().join(PACKAGE).join("python/sandpod/guest");
    if guests.exists() {
        fs::remove_dir_all(&guests).with_context(|| format!("cannot remove {}", guests.display()))?;
    }
    Ok(guests)
}

/// Checks that a wheel needs nothing that its platform may lack.
pub(super) fn audit(tools: &Tools, platform: Platform, wheel: &Path) -> Result<()> {
    let shown = output(tools.program("auditwheel")?.arg("show").arg(wheel))?;
    let tag = platform.audited_tag();
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure!(shown.contains(&format!("\"{tag}\"")), "auditwheel finds that the wheel is not {tag}: {shown}");
    Ok(())
}

/// Writes the source archive: a workspace of the crates that the wheel is built from.
pub(super) fn write_source(files: &Files) -> Result<()> {
    step("packing the source archive");
    let dir = tempfile::tempdir()?;
    let is_under = |name: &str, parts: &[&str]| parts.iter().any(|part| name.starts_with(part));
    let mut names = sources::copy(dir.path(), |name| is_under(name, &SOURCES) && !is_under(name, &LEFT_OUT))?;
    adapt(dir.path())?;
    names.extend(["PKG-INFO", "README.md", "pyproject.toml"].map(str::to_owned));
    let mut entries = Entries::new();
    for name in names {
        let content = fs::read(dir.path().join(&name))?;
        entries.insert(name, (FILE, content));
    }
    let name = format!("sandpod-{}", version());
    files.add(&format!("{name}.tar.gz"), &archive::pack(&name, &entries)?)
}

/// Turns the copied files into a package: pip builds in the root of the archive, which holds fewer crates than the checkout.
fn adapt(dir: &Path) -> Result<()> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).with_context(|| format!("cannot read {name}"));
    let members = read("Cargo.toml")?;
    let listed = members.lines().find(|line| line.starts_with("members = ")).context("no members")?;
    let fewer = "members = [\"bindings/python\", \"crates/*\", \"testbed/harness\"]";
    fs::write(dir.join("Cargo.toml"), members.replace(listed, fewer))?;
    // Removes the packages of the other members from the lock file.
    output(command("cargo", ["metadata", "--offline", "--format-version=1"]).current_dir(dir))?;

    let mut project = read(&format!("{PACKAGE}/pyproject.toml"))?;
    let moved = [
        ("backend-path = [\"build_backend\"]", format!("backend-path = [\"{PACKAGE}/build_backend\"]")),
        (
            "python-source = \"python\"",
            format!("python-source = \"{PACKAGE}/python\"\nmanifest-path = \"{PACKAGE}/Cargo.toml\""),
        ),
        ("path = \"python/sandpod/guest/**/*\"", format!("path = \"{PACKAGE}/python/sandpod/guest/**/*\"")),
    ];
    for (here, there) in moved {
        ensure!(project.contains(here), "{PACKAGE}/pyproject.toml has no line {here}");
        project = project.replace(here, &there);
    }
    fs::write(dir.join("pyproject.toml"), project)?;
    let readme = read(&format!("{PACKAGE}/README.md"))?;
    fs::write(dir.join("README.md"), &readme)?;
    fs::write(dir.join("PKG-INFO"), metadata(&readme))?;
    Ok(())
}

/// The core metadata of the archive. pip takes that of the wheel which it builds; these fields must be there.
fn metadata(readme: &str) -> String {
    format!(
        "Metadata-Version: 2.4\n\
         Name: sandpod\n\
         Version: {}\n\
         Summary: Sandboxes on Kubernetes for LangChain Deep Agents\n\
         License-Expression: Apache-2.0\n\
         Requires-Python: >=3.11\n\
         Description-Content-Type: text/markdown\n\n{readme}",
        version()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_archive_is_a_package_whose_lock_file_cargo_accepts() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::empty(dir.path().join("dist")).unwrap();
        write_source(&files).unwrap();
        let name = format!("sandpod-{}", version());
        let archive = files.dir().join(format!("{name}.tar.gz"));
        run(command("tar", ["-xzf"]).arg(archive).current_dir(dir.path())).unwrap();

        let source = dir.path().join(name);
        let metadata = ["metadata", "--offline", "--locked", "--format-version=1"];
        let metadata = output(command("cargo", metadata).current_dir(&source)).unwrap();
        assert!(metadata.contains("\"name\":\"sandpod-guest\"") && !metadata.contains("\"name\":\"xtask\""));
        let project = fs::read_to_string(source.join("pyproject.toml")).unwrap();
        assert!(project.contains("backend-path = [\"bindings/python/build_backend\"]"), "{project}");
        for needed in ["PKG-INFO", "README.md", "bindings/python/build_backend/sandpod_build.py", "LICENSE"] {
            assert!(source.join(needed).is_file(), "{needed}");
        }
    }
}
