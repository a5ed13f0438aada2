//! README.md and `docs`: their commands and configurations, and the tables that are generated from other files.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::document::{Block, blocks, blocks_to_run, pages, root};
use crate::transcript::Stage;

/// Languages of blocks, with the tests that run them.
const LANGUAGES: [(&str, &str); 8] = [
    ("console", "here and in the tests on a cluster"),
    ("sh", "here"),
    ("toml", "here"),
    ("yaml", "crates/sandpod-cli/tests/cluster/documents.rs"),
    ("python", "bindings/python/tests/test_documents.py"),
    ("ts", "bindings/node/test/documents.test.ts"),
    ("diff", "none: the modules are tested by bindings/python/tests/test_document_*.py"),
    ("text", "none: it is output"),
];

#[test]
fn every_code_block_has_a_language_and_a_known_comment() {
    let all: Vec<Block> = pages().into_iter().flat_map(|page| blocks(&page)).collect();
    assert!(all.len() > 40, "{}", all.len());
    for block in all {
        let known = LANGUAGES.iter().any(|(language, _)| *language == block.language);
        assert!(known, "{}: no test runs blocks in `{}`", block.place, block.language);
        let is_known =
            block.note.is_empty() || block.is_for_a_cluster() || block.reason_not_to_run().is_some();
        assert!(is_known, "{}: the comment above is neither `cluster` nor `not run: …`", block.place);
    }
}

#[test]
fn console_blocks_show_what_the_command_prints() {
    for page in pages() {
        // The session of docs/cli.md is one on a cluster, where its own test plays it.
        let is_local = page != Path::new("docs/cli.md");
        if is_local && blocks(&page).iter().any(|block| block.language == "console") {
            let stage = Stage::new();
            stage.play(&root().join(&page));
            let left = stage.run("sandpod list --quiet");
            stage.run("sandpod gc --all");
            assert_eq!(left, "", "{} leaves sandboxes", page.display());
        }
    }
}

#[test]
fn sh_blocks_succeed() {
    for block in blocks_to_run("sh", false) {
        let printed = Stage::new().run(&format!("set -eu\n{}", block.code));
        assert!(!printed.contains("[exit"), "{}: {printed}", block.place);
    }
}

#[test]
fn toml_blocks_are_valid_configurations() {
    for block in blocks_to_run("toml", false) {
        let stage = Stage::new();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &block.code).unwrap();
        let printed = stage
            .run(&format!("sandpod config show --mode raw --config {} --output json", file.path().display()));
        let shown: Value =
            serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{}: {printed}", block.place));
        assert!(shown.to_string().contains("\"file"), "{}: no value is from the file: {shown}", block.place);
    }
}

/// Replaces the text between `<!-- NAME -->` and `<!-- end of NAME -->` on a page, or compares it.
fn check_generated(page: &str, name: &str, expected: &str) {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{page} has no {begin}"));
    let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{page} has no {end}"));
    if found == expected {
        return;
    }
    assert!(
        std::env::var_os("SANDPOD_UPDATE").is_some(),
        "{page}: {name} differs; SANDPOD_UPDATE=1 writes it:\n{expected}"
    );
    fs::write(&path, format!("{before}{begin}{expected}{end}{after}")).unwrap();
}

/// The rows of a rule in a manifest: its resources, verbs and the comment above it.
fn rights(manifest: &str) -> String {
    let text = fs::read_to_string(root().join("deploy/rbac").join(manifest)).unwrap();
    let mut table = "| resource | verbs | reason |\n| --- | --- | --- |\n".to_owned();
    let (mut reason, mut resources, mut names) = (String::new(), String::new(), String::new());
    for line in text.lines().map(str::trim) {
        let list =
            |key: &str| line.strip_prefix(key)?.strip_prefix(": [")?.strip_suffix(']').map(str::to_owned);
        if let Some(comment) = line.strip_prefix("# ") {
            if !resources.is_empty() || reason.is_empty() {
                reason.clear();
                resources.clear();
            }
            let space = if reason.is_empty() { "" } else { " " };
            write!(reason, "{space}{comment}").unwrap();
        } else if let Some(found) = list("resources") {
            resources = found;
            names.clear();
        } else if let Some(found) = list("resourceNames") {
            names = format!(" named `{found}`");
        } else if let Some(verbs) = list("verbs") {
            let resources: Vec<String> = resources.split(", ").map(|name| format!("`{name}`")).collect();
            let shown = if reason.is_empty() { "As in raw mode." } else { &reason };
            writeln!(table, "| {}{names} | {verbs} | {shown} |", resources.join(", ")).unwrap();
            reason.clear();
        } else if line.starts_with("rules:") || line.starts_with("---") {
            reason.clear();
        }
    }
    table
}

#[test]
fn tables_of_rights_are_those_of_the_manifests() {
    for manifest in ["raw.yaml", "raw-namespaces.yaml", "agent-sandbox.yaml", "agent-sandbox-router.yaml"] {
        check_generated("docs/rbac.md", &format!("rights of {manifest}"), &rights(manifest));
    }
}

/// The rows of a benchmark's last run.
fn measured(bench: &str) -> Vec<Value> {
    let text = fs::read_to_string(root().join(format!("bench/results/{bench}.json"))).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    results["rows"].as_array().unwrap().clone()
}

/// A figure with three digits and its unit.
fn figure(row: &Value, field: &str) -> String {
    let (value, unit) = (row[field].as_f64().unwrap(), row["unit"].as_str().unwrap());
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[test]
fn tables_of_figures_are_those_of_the_benchmarks() {
    for bench in ["agent-sandbox", "spine", "raw", "guest", "local", "node"] {
        let mut table =
            "| measured | sandpod | compared with | goal | met |\n| --- | --- | --- | --- | --- |\n"
                .to_owned();
        for row in measured(bench) {
            let (what, goal) = (row["what"].as_str().unwrap(), row["goal"].as_str().unwrap());
            let met = if row["met"] == true { "yes" } else { "no" };
            let (ours, other) = (figure(&row, "ours"), figure(&row, "other"));
            writeln!(table, "| {what} | {ours} | {other} | {goal} | {met} |").unwrap();
        }
        check_generated("docs/performance.md", &format!("figures of {bench}"), &table);
    }
}

/// Rows of the README's comparison: the benchmark, its row, and the README's words for the row and for the other program.
const COMPARED: [(&str, &str, &str, &str); 6] = [
    (
        "agent-sandbox",
        "warm claim to first command",
        "claim a warm sandbox and run a command",
        "k8s-agent-sandbox 1.0.8",
    ),
    ("agent-sandbox", "execute true", "a command in a claimed sandbox", "k8s-agent-sandbox 1.0.8"),
    ("agent-sandbox", "read 1 KiB", "read a file of 1 KiB", "k8s-agent-sandbox 1.0.8"),
    (
        "spine",
        "execute true, to one exec each",
        "a command in a Pod",
        "the Kubernetes client for Python, one exec each",
    ),
    (
        "raw",
        "create, to a bare Pod Ready",
        "create a Pod sandbox and run a command",
        "a bare Pod until it is ready",
    ),
    (
        "local",
        "create, run true and delete, to bubblewrap",
        "create, run and delete on this machine",
        "bubblewrap",
    ),
];

#[test]
fn the_comparison_of_the_readme_has_figures_of_the_benchmarks() {
    let mut table = "| measured | sandpod | compared with |\n| --- | --- | --- |\n".to_owned();
    for (bench, what, words, other) in COMPARED {
        let row = measured(bench).into_iter().find(|row| row["what"] == what).unwrap();
        let (ours, theirs) = (figure(&row, "ours"), figure(&row, "other"));
        writeln!(table, "| {words} | {ours} | {theirs}: {other} |").unwrap();
    }
    check_generated("README.md", "comparison", &table);
}

#[test]
fn the_readme_has_at_most_120_lines_and_names_only_shown_features() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 120, "{}", readme.lines().count());
    let acceptance = fs::read_to_string(root().join("docs/acceptance.md")).unwrap();
    let table =
        readme.split("<!-- features -->").nth(1).unwrap().split("<!-- end of features -->").next().unwrap();
    let mut shown = 0;
    for row in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")).skip(1) {
        let numbers = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        for number in numbers.split(", ") {
            let owner = acceptance.lines().find(|line| line.starts_with(&format!("| {number} | ")));
            let owner = owner.unwrap_or_else(|| panic!("{row}: docs/acceptance.md has no row {number}"));
            assert!(owner.contains("test: "), "{row}: no test shows {number}");
            shown += 1;
        }
    }
    assert!(shown > 8, "{shown}");
}

/// The commands that a picture shows: the white texts.
fn commands(picture: &str) -> Vec<&str> {
    let lines =
        picture.lines().filter(|line| line.starts_with("<text ") && line.contains(r##"fill="#ffffff""##));
    lines.filter_map(|line| line.split_once('>')?.1.strip_suffix("</text>")).collect()
}

#[test]
fn the_picture_of_the_readme_shows_the_session_of_its_script() {
    let picture = root().join("docs/images/terminal.svg");
    let drawn = tempfile::NamedTempFile::new().unwrap();
    let to = if std::env::var_os("SANDPOD_UPDATE").is_some() { &picture } else { drawn.path() };
    let printed = Stage::new().run(&format!(
        "python3 {} {} --to {}",
        root().join("scripts/terminal-picture.py").display(),
        env!("CARGO_BIN_EXE_sandpod"),
        to.display()
    ));
    assert_eq!(printed, "");
    let (shown, expected) = (fs::read_to_string(&picture).unwrap(), fs::read_to_string(to).unwrap());
    assert!(commands(&expected).len() > 5, "{expected}");
    assert_eq!(commands(&shown), commands(&expected), "SANDPOD_UPDATE=1 draws {}", picture.display());
}

#[test]
fn the_index_lists_every_page() {
    let index = fs::read_to_string(root().join("docs/README.md")).unwrap();
    for page in pages().into_iter().filter(|page| page.parent() == Some(Path::new("docs"))) {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(
            name == "README.md" || index.contains(&format!("]({name})")),
            "docs/README.md has no link to {name}"
        );
    }
}
