//! How long each part of a run may take on two cores with a warm cache. CONTRIBUTING.md has the same table.

use crate::progress::step;
use crate::results::PartTime;

/// The minutes of each part, builds included. Parts run side by side, so the sum is more than [`WHOLE_RUN`].
const PARTS: [(&str, f64); 16] = [
    ("build of the Rust tests", 4.0),
    ("build of the guest", 4.0),
    ("start of the cluster", 2.0),
    ("build of the Python package", 4.0),
    ("build of the Node package", 3.0),
    ("lint", 6.0),
    ("Rust tests", 6.0),
    ("conformance", 6.0),
    ("cluster tests", 6.0),
    ("agent-sandbox tests", 4.0),
    ("Python tests", 7.0),
    ("peers' tests", 8.0),
    ("Node tests", 3.0),
    ("fault tests", 4.0),
    ("build of the fuzz targets", 3.0),
    ("fuzz", 4.0),
];
const WHOLE_RUN: (&str, f64) = ("whole run", 25.0);

/// Prints the time of each part, and a warning for each that exceeded its budget. A slow machine is no failure.
pub(super) fn report(parts: &[PartTime], seconds: f64) {
    step("time of each part, CPU time of its test programs, and budget");
    for part in parts {
        println!("{}", row(&part.name, part.seconds, Some(part.cpu_seconds), budget(&part.name)));
    }
    println!("{}", row(WHOLE_RUN.0, seconds, None, Some(WHOLE_RUN.1)));
    let times = parts.iter().map(|part| (part.name.as_str(), part.seconds));
    for warning in times.chain([(WHOLE_RUN.0, seconds)]).filter_map(|(name, seconds)| warning(name, seconds))
    {
        println!("{warning}");
    }
}

fn budget(part: &str) -> Option<f64> {
    let found = PARTS.iter().chain([&WHOLE_RUN]).find(|(name, _)| *name == part);
    found.map(|(_, minutes)| *minutes)
}

fn row(name: &str, seconds: f64, cpu_seconds: Option<f64>, budget: Option<f64>) -> String {
    let cpu = cpu_seconds.map_or(String::new(), |seconds| format!("{seconds:.0}s"));
    let budget = budget.map_or(String::new(), |minutes| format!("of {minutes:.0} min"));
    format!("{seconds:7.0}s  {cpu:>6}  {budget:>9}  {name}")
}

fn warning(name: &str, seconds: f64) -> Option<String> {
    let budget = budget(name)?;
    let minutes = seconds / 60.0;
    (minutes > budget)
        .then(|| format!("warning: {name} took {minutes:.1} minutes, and its budget is {budget:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_exceeds_its_budget_gets_a_warning() {
        assert_eq!(warning("lint", 6.0 * 60.0), None);
        assert_eq!(
            warning("lint", 6.6 * 60.0).unwrap(),
            "warning: lint took 6.6 minutes, and its budget is 6"
        );
        assert_eq!(warning("a part without a budget", 1e6), None);
    }
}
