//! Lists of the dependencies of a release: a bill of materials for each program, and the licences with their texts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::sources;
use super::tools::{Tools, cyclonedx};
use super::{Files, version};
use crate::guest::Arch;
use crate::progress::step;
use crate::shell::{command, output};
use crate::workspace::root;

/// The packages that a release is built from, with their places.
const SHIPPED: [(&str, &str); 4] = [
    ("sandpod-cli", "crates/sandpod-cli"),
    ("sandpod-guest", "crates/sandpod-guest"),
    ("sandpod-node", "bindings/node"),
    ("sandpod-python", "bindings/python"),
];
/// How the names of files with licences begin, in lower case.
const LICENSE_FILES: [&str; 4] = ["license", "licence", "copying", "notice"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A package in cargo's metadata.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
    /// The registry. A package of the workspace has none.
    source: Option<String>,
}

/// Writes the bills of materials and the licences.
pub(super) fn write(tools: &Tools, files: &Files) -> Result<()> {
    step("listing the dependencies");
    write_bills(files)?;
    let mut licenses = licenses(&contained_packages()?)?;
    write!(licenses, "{RULE}musl, in the static programs:\n\n{}", tools.musl_license()?)?;
    files.add(&format!("sandpod-{}-third-party-licenses.txt", version()), licenses.as_bytes())
}

/// Writes a bill of materials in the format of `CycloneDX` for each shipped package.
fn write_bills(files: &Files) -> Result<()> {
    let dir = tempfile::tempdir()?;
    // In a copy, because the tool writes a file beside every manifest.
    sources::copy(dir.path(), |_| true)?;
    let target = target();
    let mut bills = command(cyclonedx()?, ["cyclonedx", "--format=json", "--spec-version=1.5", "--quiet"]);
    bills.args(["--target", &target, "--override-filename=bill"]).current_dir(dir.path());
    super::archive::set_source_date(&mut bills)?;
    output(&mut bills)?;
    for (package, place) in SHIPPED {
        let bill = fs::read_to_string(dir.path().join(place).join("bill.json"))
            .with_context(|| format!("cargo-cyclonedx wrote no list for {package}"))?;
        let bill = bill.replace(&dir.path().display().to_string(), "/sandpod");
        files.add(&format!("{package}-{}.cdx.json", version()), bill.as_bytes())?;
    }
    Ok(())
}

/// The target whose dependencies are listed. Those of the other targets of Linux are the same.
fn target() -> String {
    format!("{}-unknown-linux-musl", Arch::own().rust())
}

/// The packages of other projects that the shipped ones contain.
fn contained_packages() -> Result<Vec<Package>> {
    let (mut contained, target) = (BTreeSet::new(), target());
    for (package, _) in SHIPPED {
        let mut tree =
            command("cargo", ["tree", "--locked", "--edges=normal,no-proc-macro", "--prefix=none"]);
        tree.args(["--format={p}", "--package", package]).args(["--target", &target]).current_dir(root());
        for line in output(&mut tree)?.lines() {
            // For example `tokio v1.54.1`, or with a path or `(*)` behind it.
            let mut words = line.split(' ');
            if let (Some(name), Some(version)) = (words.next(), words.next()) {
                contained.insert((name.to_owned(), version.trim_start_matches('v').to_owned()));
            }
        }
    }
    let metadata =
        output(command("cargo", ["metadata", "--locked", "--format-version=1"]).current_dir(root()))?;
    let mut packages = serde_json::from_str::<Metadata>(&metadata)?.packages;
    packages.retain(|package| {
        package.source.is_some() && contained.contains(&(package.name.clone(), package.version.clone()))
    });
    packages.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
    Ok(packages)
}

const RULE: &str = "\n================================================================================\n";

/// The list of all packages, then each text once with the names of the packages that contain it.
fn licenses(packages: &[Package]) -> Result<String> {
    let mut text = "sandpod contains these libraries.\n\n".to_owned();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        let name = format!("{} {}", package.name, package.version);
        let license = package.license.as_deref().unwrap_or("see its text");
        let repository = package.repository.as_deref().unwrap_or_default();
        writeln!(text, "{name}: {license} {repository}")?;
        for license in license_texts(package)? {
            texts.entry(license).or_default().push(name.clone());
        }
    }
    for (license, packages) in texts {
        write!(text, "{RULE}{}:\n\n{license}\n", packages.join(", "))?;
    }
    Ok(text)
}

/// The texts in the files of a package.
fn license_texts(package: &Package) -> Result<Vec<String>> {
    let dir = package.manifest_path.parent().context("a manifest is in a directory")?;
    let mut texts = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if entry.file_type()?.is_file() && LICENSE_FILES.iter().any(|start| name.starts_with(start)) {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).trim_end().to_owned());
        }
    }
    texts.sort_unstable();
    texts.dedup();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_several_packages_contain_is_printed_once() {
        let dir = tempfile::tempdir().unwrap();
        let package = |name: &str| {
            let place = dir.path().join(name);
            fs::create_dir(&place).unwrap();
            fs::write(place.join("LICENSE-MIT"), "the same text\n").unwrap();
            Package {
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                license: Some("MIT".to_owned()),
                repository: None,
                manifest_path: place.join("Cargo.toml"),
                source: None,
            }
        };
        let text = licenses(&[package("a"), package("b")]).unwrap();
        assert!(text.contains("a 1.0.0: MIT") && text.contains("a 1.0.0, b 1.0.0:"), "{text}");
        assert_eq!(text.matches("the same text").count(), 1);
    }
}
