//! What a benchmark found: figures, and ratios to a floor or a peer that were measured beside them.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

/// What is around a table in a README.
const BEGIN: &str = "<!-- figures: written by cargo xtask bench -->\n";
const END: &str = "<!-- end of figures -->\n";

/// The rows of a benchmark.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: String,
    ours: f64,
    other: f64,
    unit: &'static str,
    ratio: f64,
    /// What the ratio should be.
    goal: String,
    met: bool,
}

impl Report {
    /// Our time may be at most `limit` times the floor's.
    pub fn near(&mut self, what: impl Into<String>, ours: f64, floor: f64, limit: f64) {
        let (what, ratio) = (what.into(), ours / floor);
        let (goal, met) = (format!("≤ {limit} × the floor"), ratio <= limit);
        self.rows.push(Row { what, ours, other: floor, unit: "ms", ratio, goal, met });
    }

    /// Our time must be at least `least` times shorter than the peer's.
    pub fn faster(&mut self, what: impl Into<String>, ours: f64, peer: f64, least: f64) {
        let (what, ratio) = (what.into(), peer / ours);
        let (goal, met) = (format!("≥ {least} × faster"), ratio >= least);
        self.rows.push(Row { what, ours, other: peer, unit: "ms", ratio, goal, met });
    }

    /// Our rate must be at least `least` times the other's.
    pub fn rate(&mut self, what: &str, ours: f64, other: f64, unit: &'static str, least: f64) {
        let (what, ratio) = (what.to_owned(), ours / other);
        let (goal, met) = (format!("≥ {least} × the other"), ratio >= least);
        self.rows.push(Row { what, ours, other, unit, ratio, goal, met });
    }

    /// Ours may be at most `limit`.
    pub fn within(&mut self, what: &str, ours: f64, limit: f64, unit: &'static str) {
        let (what, ratio) = (what.to_owned(), ours / limit);
        let (goal, met) = ("≤ the limit".to_owned(), ours <= limit);
        self.rows.push(Row { what, ours, other: limit, unit, ratio, goal, met });
    }

    /// Keeps it in `bench/results`.
    pub fn keep(&self, name: &str) -> anyhow::Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("results/{name}.json"));
        Ok(std::fs::write(file, serde_json::to_string_pretty(self)? + "\n")?)
    }

    /// Shows it in a README of the repository, in the place that is marked for it.
    pub fn show_in(&self, readme: &str) -> anyhow::Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(readme);
        let text = std::fs::read_to_string(&file)?;
        let place = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) =
            place.with_context(|| format!("{readme} has no place for the table: {BEGIN}"))?;
        let rows = self.rows.iter().map(|Row { what, ours, other, unit, ratio, goal, met }| {
            let verdict = if *met { "met" } else { "missed" };
            format!("| {what} | {ours:.2} {unit} | {other:.2} {unit} | {ratio:.2} | {goal}: {verdict} |\n")
        });
        let head = "| | ours | other | ratio | goal |\n| --- | --- | --- | --- | --- |\n".to_owned();
        let table: String = std::iter::once(head).chain(rows).collect();
        Ok(std::fs::write(file, [before, BEGIN, &table, END, after].concat())?)
    }

    /// A table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let head = format!("{:<44} {:>10} {:>10} {:<9} {:>8}  goal", "", "ours", "other", "", "ratio");
        let rows = self.rows.iter().map(|Row { what, ours, other, unit, ratio, goal, met }| {
            let verdict = if *met { "met" } else { "MISSED" };
            format!("{what:<44} {ours:>10.2} {other:>10.2} {unit:<9} {ratio:>8.2}  {goal}: {verdict}")
        });
        std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
    }
}
