//! The Helm chart of a release, with the layout of `helm package`.

use std::fs;

use anyhow::Result;

use super::archive::{self, Entries, FILE};
use super::{Files, version};
use crate::workspace::{files as tracked, root};

const CHART: &str = "deploy/chart/";
/// Values for the chart's own tests.
const TEST_VALUES: &str = "deploy/chart/ci/";

/// Packs the chart. The file is not named as Helm does, because the npm package has that name.
pub(super) fn pack(files: &Files) -> Result<()> {
    let mut entries = Entries::new();
    for path in tracked(&root())? {
        let name = path.to_string_lossy();
        if let Some(inside) = name.strip_prefix(CHART).filter(|_| !name.starts_with(TEST_VALUES)) {
            entries.insert(inside.to_owned(), (FILE, fs::read(root().join(&path))?));
        }
    }
    files.add(&format!("sandpod-chart-{}.tgz", version()), &archive::pack("sandpod", &entries)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::{command, output};

    #[test]
    fn the_chart_is_in_a_directory_of_its_name_without_the_values_of_its_tests() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::empty(dir.path().join("dist")).unwrap();
        pack(&files).unwrap();
        let name = &files.names().unwrap()[0];
        let listed = output(command("tar", ["-tzf"]).arg(files.dir().join(name))).unwrap();
        assert!(listed.lines().any(|file| file == "sandpod/Chart.yaml"), "{listed}");
        assert!(!listed.contains("sandpod/ci/"), "{listed}");
    }
}
