//! The conformance table in the guest's README.

use std::fs;
use std::path::PathBuf;

use crate::{Kernel, Target, behaviours};

const BEGIN: &str = "<!-- conformance: written by SANDPOD_UPDATE=1 cargo xtask test -->\n";
const END: &str = "<!-- end of conformance -->\n";

/// Numbers of tests of one target.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    pub(crate) begun: usize,
    pub(crate) passed: usize,
}

/// A row of the table: its first columns and its result.
pub(crate) struct Row {
    about: String,
    passed: String,
}

/// Returns the row of a target if all of its behaviours ran.
pub(crate) fn row(target: &Target, score: Score) -> Option<Row> {
    let all = behaviours::of(target).count();
    let refused = behaviours::of(target).filter(|behaviour| target.refuses(behaviour)).count();
    let kernel = match target.kernel {
        _ if !target.missing.is_empty() => "no guest",
        Kernel::Full => "used",
        Kernel::Old => "forced off",
    };
    let by_name = if refused > 0 { format!(", {refused} of them refused by name") } else { String::new() };
    let about = format!("| {} | {} | {} | {kernel} |", target.transport, target.place, target.user);
    (score.begun == all).then(|| Row { about, passed: format!("{} of {all}{by_name}", score.passed) })
}

/// Prints the rows and returns whether the README has them. With `SANDPOD_UPDATE=1` the README is updated.
#[expect(clippy::print_stdout, reason = "the table is the output of a run")]
pub(crate) fn keep(rows: &[Row]) -> bool {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../sandpod-guest/README.md");
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let Some((before, table, after)) = parts(&kept) else {
        println!("{} has no mark for the table: {BEGIN}", file.display());
        return false;
    };
    let new = updated(table, rows);
    for row in rows {
        println!("{} {} |", row.about, row.passed);
    }
    if new == table {
        return true;
    }
    if std::env::var_os("SANDPOD_UPDATE").is_some() {
        return fs::write(&file, [before, BEGIN, &new, END, after].concat()).is_ok();
    }
    println!("the table in crates/sandpod-guest/README.md differs: run this again with SANDPOD_UPDATE=1");
    false
}

fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    Some((before, table, after))
}

/// Returns the table with these rows in place of older rows of the same targets.
fn updated(table: &str, rows: &[Row]) -> String {
    let mut lines: Vec<String> = table.lines().map(str::to_owned).collect();
    for row in rows {
        let line = format!("{} {} |", row.about, row.passed);
        match lines.iter_mut().find(|line| line.starts_with(&row.about)) {
            Some(old) => *old = line,
            None => lines.push(line),
        }
    }
    lines.iter().flat_map(|line| [line.as_ref(), "\n"]).collect()
}
