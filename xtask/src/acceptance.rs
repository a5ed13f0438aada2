//! Checks docs/acceptance.md: the tests and documents that it names for each feature exist, and the tests passed.
//!
//! A [`Row`] has an [`Id`] and one or more [`Owner`]s, which are checked against the [`Evidence`]. All mistakes are reported
//! at once.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::links;
use crate::results::{Outcome, Results};

const LIST: &str = "docs/acceptance.md";
const COLUMNS: [&str; 4] = ["Row", "Feature", "Seeds", "Owner"];

/// Checks the list against the test results, prints a summary and, if `strict`, fails while a row is open.
pub(crate) fn run(root: &Path, results: &Path, strict: bool) -> anyhow::Result<()> {
    let list = fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let results = results.exists().then(|| Results::load(results)).transpose()?;
    let read_page = |file: &str| fs::read_to_string(root.join(file)).ok();
    let evidence = Evidence { results: results.as_ref(), read_page: &read_page };

    let (rows, problems) = examine(&list, &evidence);
    if !problems.is_empty() {
        let lines: Vec<String> = problems.iter().map(|problem| format!("{LIST}:{problem}")).collect();
        bail!("the acceptance list has mistakes:\n{}", lines.join("\n"));
    }
    println!("{}", summary(&rows));

    let open: Vec<String> = rows.iter().filter(|row| row.is_open()).map(|row| row.id.to_string()).collect();
    if strict && !open.is_empty() {
        bail!("these rows of {LIST} are open, show each by a test or a document: {}", open.join(", "));
    }
    Ok(())
}

/// The facts that the owners of the list are checked against.
struct Evidence<'a> {
    /// `None` before the first test run.
    results: Option<&'a Results>,
    /// The text of a file, named by its path from the root, if it exists.
    read_page: &'a dyn Fn(&str) -> Option<String>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    line: usize,
    sentence: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.sentence)
    }
}

/// A section's letter and a number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id {
    section: char,
    number: u32,
}

impl Id {
    fn parse(text: &str) -> Option<Self> {
        let section = text.chars().next().filter(char::is_ascii_uppercase)?;
        let digits = &text[1..];
        let is_number = !digits.starts_with('0') && digits.chars().all(|c| c.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| is_number)?;
        Some(Self { section, number })
    }

    /// Whether it is the next of its section, or the first of the next section.
    fn follows(self, previous: Option<Self>) -> bool {
        let (section, number) = previous.map_or(('@', 0), |previous| (previous.section, previous.number));
        let is_next = self.section == section && self.number == number + 1;
        let is_first = u32::from(self.section) == u32::from(section) + 1 && self.number == 1;
        is_next || is_first
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.section, self.number)
    }
}

struct Row {
    line: usize,
    id: Id,
    owners: Vec<Owner>,
}

impl Row {
    fn is_open(&self) -> bool {
        self.has(|owner| matches!(owner, Owner::Open))
    }

    fn has(&self, kind: impl Fn(&Owner) -> bool) -> bool {
        self.owners.iter().any(kind)
    }
}

/// The proof of a row.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    Open,
    Test(String),
    Docs { file: String, anchor: String },
    Deviation,
}

impl Owner {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(missing) = text.strip_prefix("open") {
            Self::parse_open(missing)
        } else if let Some(name) = text.strip_prefix("test:") {
            Self::parse_test(name.trim())
        } else if let Some(heading) = text.strip_prefix("docs:") {
            Self::parse_docs(heading.trim())
        } else if let Some(deviation) = text.strip_prefix("deviation") {
            Self::parse_deviation(deviation.trim())
        } else if text.is_empty() {
            Err("an owner is empty: write `open: WHAT` until something shows the row".to_owned())
        } else {
            Err(format!(
                "`{text}` is no owner: write `open: WHAT`, `test: PATH::NAME`, `docs: FILE#ANCHOR` or `deviation YYYY-MM-DD: reason`"
            ))
        }
    }

    fn parse_open(missing: &str) -> Result<Self, String> {
        match missing.strip_prefix(':') {
            Some(what) if !what.trim().is_empty() => Ok(Self::Open),
            _ => Err("it is open and doesn't say what is missing: write `open: WHAT`".to_owned()),
        }
    }

    fn parse_test(name: &str) -> Result<Self, String> {
        match name.split_once("::") {
            Some((path, test)) if !path.is_empty() && !test.is_empty() => Ok(Self::Test(name.to_owned())),
            _ => Err(format!("`{name}` names no test: write `test: PATH::NAME`")),
        }
    }

    fn parse_docs(heading: &str) -> Result<Self, String> {
        match heading.split_once('#') {
            Some((file, anchor)) if !file.is_empty() && !anchor.is_empty() => {
                Ok(Self::Docs { file: file.to_owned(), anchor: anchor.to_owned() })
            }
            _ => Err(format!("`{heading}` names no heading: write `docs: FILE#ANCHOR`")),
        }
    }

    fn parse_deviation(text: &str) -> Result<Self, String> {
        let (date, reason) = text.split_once(':').unwrap_or((text, ""));
        if !is_date(date) {
            return Err(format!(
                "the deviation's date `{date}` is none: write `deviation YYYY-MM-DD: reason`"
            ));
        }
        if reason.trim().is_empty() {
            return Err(format!(
                "the deviation of {date} has no reason: write why after the date and a colon"
            ));
        }
        Ok(Self::Deviation)
    }

    /// Fails if the evidence contradicts it. Without results, no test is checked.
    fn check(&self, evidence: &Evidence<'_>) -> Result<(), String> {
        match self {
            Self::Open | Self::Deviation => Ok(()),
            Self::Test(name) => evidence.results.map_or(Ok(()), |results| check_test(name, results)),
            Self::Docs { file, anchor } => check_docs(file, anchor, evidence.read_page),
        }
    }
}

fn check_test(name: &str, results: &Results) -> Result<(), String> {
    let mut outcomes =
        results.tests.iter().filter(|test| test.name == name).map(|test| &test.outcome).peekable();
    if outcomes.peek().is_none() {
        return Err(format!("no test `{name}` ran: correct the name, or run `cargo xtask test` again"));
    }
    outcomes.try_for_each(|outcome| match outcome {
        Outcome::Passed => Ok(()),
        Outcome::Failed => Err(format!("the test `{name}` failed: make it pass")),
        Outcome::Skipped => Err(format!("the test `{name}` was skipped: run it where it can run")),
    })
}

fn check_docs(file: &str, anchor: &str, read_page: &dyn Fn(&str) -> Option<String>) -> Result<(), String> {
    let page =
        read_page(file).ok_or_else(|| format!("there is no {file}: write it, or correct the owner"))?;
    if links::anchors(&page).contains(anchor) {
        Ok(())
    } else {
        Err(format!("{file} has no heading `#{anchor}`: write it, or correct the owner"))
    }
}

/// The rows of the list, and its mistakes in the order of the file.
fn examine(list: &str, evidence: &Evidence<'_>) -> (Vec<Row>, Vec<Problem>) {
    let mut rows = Vec::new();
    let mut problems = Vec::new();
    for (line, text) in (1..).zip(list.lines()) {
        if !text.starts_with('|') {
            continue;
        }
        let cells = cells(text);
        if is_heading(&cells) {
            continue;
        }
        match parse_cells(&cells) {
            Ok((id, owners)) => {
                let (owners, wrong) = examine_owners(owners, evidence);
                problems.extend(
                    wrong
                        .into_iter()
                        .map(|sentence| Problem { line, sentence: format!("row {id}: {sentence}") }),
                );
                rows.push(Row { line, id, owners });
            }
            Err(sentence) => problems.push(Problem { line, sentence }),
        }
    }
    problems.extend(numbering_problems(&rows));
    problems.extend(missing_results(&rows, evidence));
    problems.sort();
    (rows, problems)
}

fn examine_owners(cell: &str, evidence: &Evidence<'_>) -> (Vec<Owner>, Vec<String>) {
    let mut owners = Vec::new();
    let mut wrong = Vec::new();
    for text in cell.split("<br>") {
        match Owner::parse(text.trim()) {
            Ok(owner) => {
                wrong.extend(owner.check(evidence).err());
                owners.push(owner);
            }
            Err(sentence) => wrong.push(sentence),
        }
    }
    (owners, wrong)
}

/// The cells of a table's line. `\|` is a character of its cell.
fn cells(line: &str) -> Vec<String> {
    const ESCAPED: &str = "\u{0}";
    let line = line.replace(r"\|", ESCAPED);
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let line = line.strip_suffix('|').unwrap_or(line);
    line.split('|').map(|cell| cell.trim().replace(ESCAPED, "|")).collect()
}

/// Whether it is the names of the columns, or the dashes beneath them.
fn is_heading(cells: &[String]) -> bool {
    let is_rule = |cell: &String| cell.contains('-') && cell.chars().all(|c| matches!(c, '-' | ':'));
    cells == COLUMNS || cells.iter().all(is_rule)
}

fn parse_cells(cells: &[String]) -> Result<(Id, &str), String> {
    let [id, feature, seeds, owners] = cells else {
        return Err(format!(
            "this line has {} cells: write `| {} |`, and `\\|` for a bar inside a cell",
            cells.len(),
            COLUMNS.join(" | ")
        ));
    };
    let id = Id::parse(id)
        .ok_or_else(|| format!("`{id}` is no row: write a section's letter and a number, such as A1"))?;
    if feature.is_empty() {
        return Err(format!("row {id} has no feature: say what must hold"));
    }
    if !names_seeds(seeds) {
        return Err(format!("row {id} has the seeds `{seeds}`: name some of S0 to S4, or write `all`"));
    }
    Ok((id, owners))
}

fn names_seeds(cell: &str) -> bool {
    let mut chars = cell.chars();
    cell == "all"
        || (chars.next() == Some('S') && chars.next().is_some_and(|digit| ('0'..='4').contains(&digit)))
}

fn numbering_problems(rows: &[Row]) -> Vec<Problem> {
    let mut problems = Vec::new();
    if rows.is_empty() {
        problems.push(Problem { line: 1, sentence: "there is no row in the list: restore them".to_owned() });
    }
    let mut seen = HashSet::new();
    let mut previous = None;
    for &Row { line, id, .. } in rows {
        if !seen.insert(id) {
            let sentence = format!("row {id} is here twice: give the second its own number, or delete it");
            problems.push(Problem { line, sentence });
            continue;
        }
        if !id.follows(previous) {
            let place =
                previous.map_or("is the first".to_owned(), |previous: Id| format!("comes after {previous}"));
            let sentence = format!("row {id} {place}: add what is missing before it, or put it in its place");
            problems.push(Problem { line, sentence });
        }
        previous = Some(id);
    }
    problems
}

/// One sentence, however many rows a test shows.
fn missing_results(rows: &[Row], evidence: &Evidence<'_>) -> Option<Problem> {
    let first = rows.iter().find(|row| row.has(is_test)).filter(|_| evidence.results.is_none())?;
    Some(Problem {
        line: first.line,
        sentence: format!(
            "row {} is shown by a test, and there are no test results: run `cargo xtask test` first",
            first.id
        ),
    })
}

fn is_test(owner: &Owner) -> bool {
    matches!(owner, Owner::Test(_))
}

/// A row that is open is not shown yet, whatever else it has. A deviation counts in open rows too.
fn summary(rows: &[Row]) -> String {
    let count = |kind: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| kind(row)).count();
    let by_tests = |row: &Row| !row.is_open() && row.has(is_test);
    let by_docs = |row: &Row| {
        !row.is_open() && !row.has(is_test) && row.has(|owner| matches!(owner, Owner::Docs { .. }))
    };
    format!(
        "acceptance: {} rows: {} shown by tests, {} by docs, {} with a deviation, {} open",
        rows.len(),
        count(&by_tests),
        count(&by_docs),
        count(&|row| row.has(|owner| *owner == Owner::Deviation)),
        count(&Row::is_open),
    )
}

fn is_date(text: &str) -> bool {
    text.len() == "YYYY-MM-DD".len() && text.parse::<jiff::civil::Date>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# List\n\n| Row | Feature | Seeds | Owner |\n| --- | :-: | --- | --- |\n";

    fn results() -> Results {
        let mut results = Results::default();
        for (name, outcome) in [
            ("crates/a/tests/it::passes", Outcome::Passed),
            ("crates/a/tests/it::fails", Outcome::Failed),
            ("crates/a/tests/it::is_skipped", Outcome::Skipped),
            ("crates/a/tests/it::fails_once", Outcome::Passed),
            ("crates/a/tests/it::fails_once", Outcome::Failed),
        ] {
            results.push(name.to_owned(), outcome);
        }
        results
    }

    fn examine_rows(rows: &str, results: Option<&Results>) -> (String, Vec<String>) {
        let read_page =
            |file: &str| (file == "docs/guide.md").then(|| "# Guide\n\n## First steps\n".to_owned());
        let evidence = Evidence { results, read_page: &read_page };
        let (rows, problems) = examine(&format!("{HEAD}{rows}"), &evidence);
        (summary(&rows), problems.iter().map(Problem::to_string).collect())
    }

    fn problems_of(rows: &str) -> Vec<String> {
        examine_rows(rows, Some(&results())).1
    }

    fn problem_of_owner(owner: &str) -> String {
        let problems = problems_of(&format!("| A1 | works | S0 | {owner} |\n"));
        assert_eq!(problems.len(), 1, "{owner}: {problems:?}");
        problems.concat()
    }

    #[test]
    fn a_sound_list_is_summed_up() {
        let rows = concat!(
            "| A1 | a | S0 | test: crates/a/tests/it::passes |\n",
            "| A2 | b | all | test: crates/a/tests/it::passes<br>docs: docs/guide.md#guide |\n",
            "| A3 | c | S3 (S0 code) | docs: docs/guide.md#first-steps |\n",
            "\n## B\n\n",
            "| B1 | d \\| e | S1 S4 | open: it<br>deviation 2026-11-15: for a reason: this one |\n",
            "| B2 | f | S1 | open: it<br>test: crates/a/tests/it::passes |\n",
            "| B3 | g | S1 | deviation 2024-02-29: not wanted |\n",
        );
        let (summary, problems) = examine_rows(rows, Some(&results()));
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(summary, "acceptance: 6 rows: 2 shown by tests, 1 by docs, 2 with a deviation, 2 open");
    }

    #[test]
    fn a_line_that_is_no_row_is_a_mistake() {
        for (row, expected) in [
            ("| A1 | works | S0 |", "has 3 cells"),
            ("| A1 | works | or not | S0 | open: it |", "has 5 cells"),
            ("| 1A | works | S0 | open: it |", "`1A` is no row"),
            ("| A01 | works | S0 | open: it |", "`A01` is no row"),
            ("| A | works | S0 | open: it |", "`A` is no row"),
            ("| | works | S0 | open: it |", "`` is no row"),
            ("| A1 | | S0 | open: it |", "row A1 has no feature"),
            ("| A1 | works | | open: it |", "row A1 has the seeds ``"),
            ("| A1 | works | S5 | open: it |", "row A1 has the seeds `S5`"),
        ] {
            let problems = problems_of(&format!("{row}\n"));
            assert!(
                problems.iter().any(|problem| problem.starts_with("5: ") && problem.contains(expected)),
                "{row}: {problems:?}"
            );
        }
    }

    #[test]
    fn a_list_without_rows_is_a_mistake() {
        assert_eq!(problems_of(""), ["1: there is no row in the list: restore them"]);
    }

    #[test]
    fn an_id_is_used_once() {
        let problems = problems_of(
            "| A1 | a | S0 | open: it |\n| A1 | b | S0 | open: it |\n| A2 | c | S0 | open: it |\n",
        );
        assert_eq!(problems, ["6: row A1 is here twice: give the second its own number, or delete it"]);
    }

    #[test]
    fn numbers_and_sections_have_no_gap() {
        for (ids, expected) in [
            (["A2", "A3", "B1"], "5: row A2 is the first: "),
            (["A1", "A3", "A4"], "6: row A3 comes after A1: "),
            (["A1", "B1", "B3"], "7: row B3 comes after B1: "),
            (["A1", "A2", "C1"], "7: row C1 comes after A2: "),
            (["A1", "B2", "B3"], "6: row B2 comes after A1: "),
        ] {
            let rows: Vec<String> =
                ids.iter().map(|id| format!("| {id} | works | S0 | open: it |\n")).collect();
            let problems = problems_of(&rows.concat());
            assert!(problems.len() == 1 && problems[0].starts_with(expected), "{ids:?}: {problems:?}");
        }
    }

    #[test]
    fn what_is_open_says_what_is_missing() {
        for owner in ["open", "open:", "open: "] {
            let problem = problem_of_owner(owner);
            assert!(problem.contains("doesn't say what is missing"), "{owner}: {problem}");
        }
        assert!(problems_of("| A1 | works | S0 | open: TypeScript |\n").is_empty());
    }

    #[test]
    fn an_owner_has_one_of_four_forms() {
        assert!(problem_of_owner("").contains("an owner is empty"));
        assert!(problem_of_owner("open: it<br>").contains("an owner is empty"));
        assert!(problem_of_owner("someone").contains("`someone` is no owner"));
        assert!(problem_of_owner("test: passes").contains("`passes` names no test"));
        assert!(problem_of_owner("docs: docs/guide.md").contains("`docs/guide.md` names no heading"));
    }

    #[test]
    fn a_test_must_have_passed_each_time_it_ran() {
        assert!(
            problem_of_owner("test: crates/a/tests/it::passed")
                .contains("no test `crates/a/tests/it::passed` ran")
        );
        assert!(problem_of_owner("test: crates/a/tests/it::fails").contains("failed: make it pass"));
        assert!(problem_of_owner("test: crates/a/tests/it::fails_once").contains("failed: make it pass"));
        assert!(problem_of_owner("test: crates/a/tests/it::is_skipped").contains("was skipped"));
    }

    #[test]
    fn without_results_the_first_tested_row_asks_for_them() {
        let rows = "| A1 | a | S0 | open: it |\n| A2 | b | S0 | test: a::b |\n| A3 | c | S0 | test: a::c |\n";
        let (_, problems) = examine_rows(rows, None);
        assert_eq!(
            problems,
            ["6: row A2 is shown by a test, and there are no test results: run `cargo xtask test` first"]
        );
        assert!(examine_rows("| A1 | a | S0 | open: it |\n", None).1.is_empty());
    }

    #[test]
    fn a_document_must_have_the_heading() {
        assert!(problem_of_owner("docs: docs/none.md#guide").contains("there is no docs/none.md"));
        assert!(
            problem_of_owner("docs: docs/guide.md#last-steps")
                .contains("docs/guide.md has no heading `#last-steps`")
        );
    }

    #[test]
    fn a_deviation_has_a_date_of_the_calendar_and_a_reason() {
        for date in [
            "",
            "soon",
            "2026-11",
            "2026-13-01",
            "2026-02-29",
            "2100-02-29",
            "2026-04-31",
            "2026-1-15",
            "+026-11-15",
            "2026-11-00",
        ] {
            let problem = problem_of_owner(&format!("deviation {date}: because"));
            assert!(problem.contains(&format!("date `{date}` is none")), "{problem}");
        }
        assert!(problem_of_owner("deviation 2026-11-15").contains("of 2026-11-15 has no reason"));
        assert!(problem_of_owner("deviation 2026-11-15: ").contains("of 2026-11-15 has no reason"));
    }

    #[test]
    fn all_mistakes_are_reported_in_the_order_of_the_file() {
        let rows = concat!(
            "| A2 | a | S0 | open: it |\n",
            "| nonsense |\n",
            "| A3 | c | S0 | nobody<br>deviation now |\n",
            "| A5 | d | S0 | test: a::b |\n",
        );
        let problems = problems_of(rows);
        let lines: Vec<&str> = problems.iter().map(|problem| &problem[..2]).collect();
        assert_eq!(lines, ["5:", "6:", "7:", "7:", "8:", "8:"], "{problems:?}");
    }
}
