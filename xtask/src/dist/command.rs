//! The command of a release: one static file that contains the guests, with its documents.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::archive::{self, Entries, FILE, PROGRAM};
use super::tools::Tools;
use super::{Files, version};
use crate::guest::{self, Arch};
use crate::progress::step;
use crate::shell::{command, output, run};
use crate::workspace::root;

/// The completion scripts, with the shell of each and its name where the shell looks for it.
const COMPLETIONS: [(&str, &str); 3] =
    [("bash", "sandpod.bash"), ("zsh", "_sandpod"), ("fish", "sandpod.fish")];

/// The documents that the command prints about itself: completion scripts and manual pages, each by its file name.
pub(super) struct Documents {
    pub(super) completions: Vec<(&'static str, Vec<u8>)>,
    pub(super) pages: Vec<(String, Vec<u8>)>,
}

impl Documents {
    /// Runs the command to get them. It must be for this machine.
    pub(super) fn of(sandpod: &Path) -> Result<Self> {
        let mut completions = Vec::new();
        for (shell, name) in COMPLETIONS {
            completions.push((name, output(&mut command(sandpod, ["completions", shell]))?.into_bytes()));
        }
        let dir = tempfile::tempdir()?;
        run(command(sandpod, ["man-pages"]).arg(dir.path()))?;
        let mut pages = Vec::new();
        for entry in fs::read_dir(dir.path())? {
            let entry = entry?;
            pages.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
        }
        pages.sort();
        Ok(Self { completions, pages })
    }
}

/// Builds the released command with the guests below `guests`, and the router; returns their paths.
pub(super) fn build(tools: &Tools, arch: Arch, guests: &Path) -> Result<[PathBuf; 2]> {
    step(format!("building the released command and router for {}", arch.name()));
    guest::build_released_programs(arch, guests, || tools.program("cargo-zigbuild"))
}

/// Packs the command and its documents as an archive.
pub(super) fn pack(files: &Files, arch: Arch, sandpod: &Path, documents: &Documents) -> Result<()> {
    let program = fs::read(sandpod).with_context(|| format!("cannot read {}", sandpod.display()))?;
    let mut entries = Entries::new();
    entries.insert("sandpod".to_owned(), (PROGRAM, program));
    for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
        entries.insert(name.to_owned(), (FILE, fs::read(root().join(name))?));
    }
    for (name, script) in &documents.completions {
        entries.insert(format!("completions/{name}"), (FILE, script.clone()));
    }
    for (name, page) in &documents.pages {
        entries.insert(format!("man/man1/{name}"), (FILE, page.clone()));
    }
    let name = format!("sandpod-{}-linux-{}", version(), arch.node());
    files.add(&format!("{name}.tar.gz"), &archive::pack(&name, &entries)?)
}
