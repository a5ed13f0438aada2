//! The Helm chart of a release, with the layout of `helm package`.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::archive::{self, Entries, FILE};
use super::{Files, version};
use crate::workspace::root;

/// Values for the chart's own tests.
const TEST_VALUES: &str = "ci/";

/// Packs the chart. The file is not named as Helm does, because the npm package has that name.
pub(super) fn pack(files: &Files) -> Result<()> {
    let mut entries = Entries::new();
    add_directory(&mut entries, &root().join("deploy/chart"), "")?;
    entries.retain(|name, _| !name.starts_with(TEST_VALUES));
    files.add(&format!("sandpod-chart-{}.tgz", version()), &archive::pack("sandpod", &entries)?)
}

/// Adds the files below a directory. Symbolic links are followed: the package has copies.
fn add_directory(entries: &mut Entries, directory: &Path, prefix: &str) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, name) = (entry.path(), format!("{prefix}{}", entry.file_name().to_string_lossy()));
        if path.is_dir() {
            add_directory(entries, &path, &format!("{name}/"))?;
        } else {
            entries.insert(name, (FILE, fs::read(&path)?));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::{command, output};

    #[test]
    fn the_chart_has_copies_of_the_linked_manifests_and_not_the_values_of_its_tests() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::empty(dir.path().join("dist")).unwrap();
        pack(&files).unwrap();
        let name = &files.names().unwrap()[0];
        let listed = output(command("tar", ["-tzf"]).arg(files.dir().join(name))).unwrap();
        for file in ["sandpod/Chart.yaml", "sandpod/files/reaper.yaml", "sandpod/files/rbac/raw.yaml"] {
            assert!(listed.lines().any(|listed| listed == file), "{listed}");
        }
        assert!(!listed.contains("sandpod/ci/"), "{listed}");
    }
}
