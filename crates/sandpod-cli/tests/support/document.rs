//! The code blocks of README.md and `docs`.
//!
//! A test runs every block, by its language. A comment in the line above a block changes that: `<!-- cluster -->` runs it
//! on a cluster instead of this machine, and `<!-- not run: REASON -->` does not run it.

use std::fs;
use std::path::{Path, PathBuf};

/// A code block of a page.
pub(crate) struct Block {
    /// The page and the line of the block.
    pub(crate) place: String,
    pub(crate) language: String,
    pub(crate) code: String,
    /// The text of the comment above the block, or an empty text.
    pub(crate) note: String,
}

impl Block {
    /// Whether the block is for a cluster.
    pub(crate) fn is_for_a_cluster(&self) -> bool {
        self.note == "cluster"
    }

    /// Why the block is not run, if it is not.
    pub(crate) fn reason_not_to_run(&self) -> Option<&str> {
        self.note.strip_prefix("not run: ")
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages for users, from the root. Pages for developers have no blocks that a user runs.
pub(crate) fn pages() -> Vec<PathBuf> {
    let mut pages = vec![PathBuf::from("README.md"), PathBuf::from("examples/k8s/README.md")];
    for directory in ["docs", "docs/migration"] {
        let entries = fs::read_dir(root().join(directory)).unwrap().map(|entry| entry.unwrap().file_name());
        pages.extend(entries.map(|name| Path::new(directory).join(name)));
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// The blocks of a page, in order.
pub(crate) fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut blocks = Vec::new();
    let mut above = "";
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let code: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            blocks.push(Block {
                place: format!("{}:{}", page.display(), number + 1),
                language: language.to_owned(),
                code: code.join("\n") + "\n",
                note: note(above).to_owned(),
            });
            above = "";
        } else {
            above = line;
        }
    }
    blocks
}

/// The text of a line that is a comment, or an empty text.
pub(crate) fn note(line: &str) -> &str {
    line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")).unwrap_or_default()
}

/// The blocks of all pages in one language that are run here or, with `cluster`, on a cluster.
pub(crate) fn blocks_to_run(language: &str, cluster: bool) -> Vec<Block> {
    let all = pages().into_iter().flat_map(|page| blocks(&page));
    let mine = all.filter(|block| block.language == language && block.is_for_a_cluster() == cluster);
    mine.filter(|block| block.reason_not_to_run().is_none()).collect()
}
