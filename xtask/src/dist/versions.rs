//! The version of a release has one source, `Cargo.toml`. Files that must repeat it agree with it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::version;
use crate::workspace::root;

const CHART: &str = "deploy/chart/Chart.yaml";

/// Fails if a file has another version than the workspace.
pub(crate) fn check() -> Result<()> {
    let mut others = Vec::new();
    let mut compare = |place: String, found: &str| {
        if found != version() {
            others.push(format!("{place}: {found}"));
        }
    };
    for (name, found) in dependencies(&read("Cargo.toml")?) {
        compare(format!("{name} in Cargo.toml"), &found);
    }
    for name in ["package.json", "package-lock.json"] {
        let path = format!("bindings/node/{name}");
        let json: Value = serde_json::from_str(&read(&path)?)?;
        compare(path.clone(), json["version"].as_str().unwrap_or("none"));
        if let Some(own) = json["packages"][""]["version"].as_str() {
            compare(format!("{path}, its own package"), own);
        }
    }
    for line in read(CHART)?.lines() {
        if let Some(("version" | "appVersion", found)) = line.split_once(": ") {
            compare(format!("{CHART}, {line}"), found.trim_matches('"'));
        }
    }
    ensure!(others.is_empty(), "the version of Cargo.toml is {}, but:\n  {}", version(), others.join("\n  "));
    Ok(())
}

/// The dependencies of the workspace that are its own crates, with their versions.
fn dependencies(manifest: &str) -> Vec<(String, String)> {
    let own = manifest.lines().filter(|line| line.starts_with("sandpod") && line.contains("path = "));
    let with_version = own.filter_map(|line| {
        let (name, rest) = line.split_once(" = ")?;
        let (version, _) = rest.split_once("version = \"")?.1.split_once('"')?;
        Some((name.to_owned(), version.to_owned()))
    });
    with_version.collect()
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_checkout_has_the_version_of_the_workspace() {
        check().unwrap();
    }

    #[test]
    fn the_workspaces_own_crates_are_found_with_their_versions() {
        let manifest = "[workspace.dependencies]\nsandpod = { path = \"crates/sandpod\", version = \"0.3.0\" }\n\
                        sandpod-testbed = { path = \"testbed/harness\" }\nserde = { version = \"1\" }\n";
        assert_eq!(dependencies(manifest), [("sandpod".to_owned(), "0.3.0".to_owned())]);
    }
}
