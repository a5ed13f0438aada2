//! What a benchmark found: figures, and ratios to a floor or a peer that were measured beside them.

use serde::Serialize;

/// The rows of a benchmark.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: String,
    ours: f64,
    other: f64,
    unit: &'static str,
    /// How many times better than the other, or how near to it: see `goal`.
    ratio: f64,
    goal: String,
    met: bool,
}

impl Report {
    /// Our time may be at most `limit` times the floor's.
    pub(crate) fn near(&mut self, what: impl Into<String>, ours: f64, floor: f64, limit: f64) {
        let ratio = ours / floor;
        self.push(what.into(), ours, floor, "ms", ratio, format!("≤ {limit} × the floor"), ratio <= limit);
    }

    /// Our rate must be at least `least` times the other's.
    pub(crate) fn rate(
        &mut self,
        what: impl Into<String>,
        ours: f64,
        other: f64,
        unit: &'static str,
        least: f64,
    ) {
        let ratio = ours / other;
        self.push(what.into(), ours, other, unit, ratio, format!("≥ {least} × the other"), ratio >= least);
    }

    /// Our time must be at least `least` times shorter than the peer's.
    pub(crate) fn faster(&mut self, what: impl Into<String>, ours: f64, peer: f64, least: f64) {
        let ratio = peer / ours;
        self.push(what.into(), ours, peer, "ms", ratio, format!("≥ {least} × faster"), ratio >= least);
    }

    #[expect(clippy::too_many_arguments, reason = "one for each column")]
    fn push(
        &mut self,
        what: String,
        ours: f64,
        other: f64,
        unit: &'static str,
        ratio: f64,
        goal: String,
        met: bool,
    ) {
        self.rows.push(Row { what, ours, other, unit, ratio, goal, met });
    }

    /// A table for people.
    pub(crate) fn table(&self) -> String {
        let head = format!("{:<44} {:>10} {:>10} {:<9} {:>8}  goal", "", "ours", "other", "", "ratio");
        let rows = self.rows.iter().map(|Row { what, ours, other, unit, ratio, goal, met }| {
            let verdict = if *met { "met" } else { "MISSED" };
            format!("{what:<44} {ours:>10.2} {other:>10.2} {unit:<9} {ratio:>8.2}  {goal}: {verdict}")
        });
        std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
    }
}
