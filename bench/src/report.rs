//! The report of a benchmark: figures, and their ratios to a floor or a peer that was measured beside them.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

/// The markers around a table in a README.
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
    /// The figure of the floor or peer; none if it failed.
    other: Option<f64>,
    /// The reason of that failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    unit: &'static str,
    ratio: Option<f64>,
    /// The goal for the ratio.
    goal: String,
    met: bool,
}

impl Row {
    fn new(what: impl Into<String>, [ours, other, ratio]: [f64; 3], unit: &'static str) -> Self {
        let (what, other, ratio) = (what.into(), Some(other), Some(ratio));
        Self { what, ours, other, failure: None, unit, ratio, goal: String::new(), met: false }
    }

    /// Formats the other figure and the ratio.
    fn compared(&self) -> (String, String) {
        let text = |figure: Option<f64>, without: &str| {
            figure.map_or_else(|| without.to_owned(), |figure| format!("{figure:.2}"))
        };
        (text(self.other, "failed"), text(self.ratio, "-"))
    }
}

impl Report {
    /// Adds a row whose goal is a time of at most `limit` times the floor's.
    pub fn near(&mut self, what: impl Into<String>, ours: f64, floor: f64, limit: f64) {
        let ratio = ours / floor;
        let (goal, met) = (format!("≤ {limit} × the floor"), ratio <= limit);
        self.rows.push(Row { goal, met, ..Row::new(what, [ours, floor, ratio], "ms") });
    }

    /// Adds a row whose goal is a time at least `least` times shorter than the peer's.
    pub fn faster(&mut self, what: impl Into<String>, ours: f64, peer: f64, least: f64) {
        let ratio = peer / ours;
        let (goal, met) = (format!("≥ {least} × faster"), ratio >= least);
        self.rows.push(Row { goal, met, ..Row::new(what, [ours, peer, ratio], "ms") });
    }

    /// As [`faster`](Self::faster), for a peer that may fail. A failure is shown, and the row then has no goal.
    pub fn beside(&mut self, what: impl Into<String>, ours: f64, peer: Result<f64, String>, least: f64) {
        match peer {
            Ok(peer) => self.faster(what, ours, peer, least),
            Err(why) => {
                let goal = format!("≥ {least} × faster");
                let row = Row::new(what, [ours, 0.0, 0.0], "ms");
                self.rows.push(Row { other: None, ratio: None, failure: Some(why), goal, met: true, ..row });
            }
        }
    }

    /// Adds a row whose goal is a rate of at least `least` times the other's.
    pub fn rate(&mut self, what: &str, ours: f64, other: f64, unit: &'static str, least: f64) {
        let ratio = ours / other;
        let (goal, met) = (format!("≥ {least} × the other"), ratio >= least);
        self.rows.push(Row { goal, met, ..Row::new(what, [ours, other, ratio], unit) });
    }

    /// Adds a row whose goal is a figure of at most `limit`.
    pub fn within(&mut self, what: &str, ours: f64, limit: f64, unit: &'static str) {
        let (goal, met) = ("≤ the limit".to_owned(), ours <= limit);
        self.rows.push(Row { goal, met, ..Row::new(what, [ours, limit, ours / limit], unit) });
    }

    /// Writes the report to `bench/results`.
    pub fn keep(&self, name: &str) -> anyhow::Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("results/{name}.json"));
        Ok(std::fs::write(file, serde_json::to_string_pretty(self)? + "\n")?)
    }

    /// Writes the table between its markers in a README of the repository.
    pub fn show_in(&self, readme: &str) -> anyhow::Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(readme);
        let text = std::fs::read_to_string(&file)?;
        let place = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        let (before, after) =
            place.with_context(|| format!("{readme} has no place for the table: {BEGIN}"))?;
        let rows = self.rows.iter().map(|row @ Row { what, ours, unit, goal, met, .. }| {
            let verdict = if *met { "met" } else { "missed" };
            let (other, ratio) = row.compared();
            format!("| {what} | {ours:.2} {unit} | {other} {unit} | {ratio} | {goal}: {verdict} |\n")
        });
        let head = "| | ours | other | ratio | goal |\n| --- | --- | --- | --- | --- |\n".to_owned();
        let table: String = std::iter::once(head).chain(rows).collect();
        Ok(std::fs::write(file, [before, BEGIN, &table, END, after].concat())?)
    }

    /// Formats the report as a Markdown table.
    #[must_use]
    pub fn table(&self) -> String {
        let head = format!("{:<44} {:>10} {:>10} {:<9} {:>8}  goal", "", "ours", "other", "", "ratio");
        let rows = self.rows.iter().map(|row @ Row { what, ours, unit, goal, met, failure, .. }| {
            let verdict = if *met { "met" } else { "MISSED" };
            let (other, ratio) = row.compared();
            let why = failure.as_ref().map(|why| format!("; the other failed: {why}")).unwrap_or_default();
            format!("{what:<44} {ours:>10.2} {other:>10} {unit:<9} {ratio:>8}  {goal}: {verdict}{why}")
        });
        std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
    }
}
