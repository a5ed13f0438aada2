//! Counts the words and phrases that STYLE.md rules out. No count may exceed the one in `xtask/prose.yaml`.
//!
//! Each line of that file is a phrase and its count. [`measure`] counts the phrases in the files of the [`SCOPE`];
//! [`check`] compares the counts, and [`update`] lowers the kept ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::progress::step;
use crate::workspace::files;

const KEPT: &str = "xtask/prose.yaml";
const HEADER: &str = "\
# Phrases that STYLE.md rules out, and how often they may still occur in crates, bindings, docs, deploy, testbed, xtask and
# the Markdown files of the root. A phrase that begins with a capital letter counts only with that letter.
# `cargo xtask prose --list` names the places, `cargo xtask prose --update` lowers the counts.
";
/// The directories whose files are checked, beside the Markdown files of the root.
const SCOPE: [&str; 6] = ["crates", "bindings", "docs", "deploy", "testbed", "xtask"];
/// The files that quote bad sentences as such, and copies of texts that are counted where they stand.
const EXEMPT: [&str; 4] =
    ["STYLE.md", KEPT, "bindings/node/OPTIONS.md", "bindings/node/ts/src/generated-options.ts"];

/// The occurrences of each phrase, with their places.
type Measured = BTreeMap<String, Vec<Place>>;

/// A line of a file.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    file: PathBuf,
    line: usize,
}

/// Fails if a phrase occurs more often than `xtask/prose.yaml` permits. Counts that fell are a note.
pub(crate) fn check(root: &Path) -> Result<()> {
    let kept = kept(root)?;
    let measured = measure(root, &kept)?;
    let fallen: usize =
        measured.iter().map(|(phrase, places)| kept[phrase].saturating_sub(places.len())).sum();
    if fallen > 0 {
        step(format!(
            "{fallen} phrases fewer than {KEPT} permits: lower it with `cargo xtask prose --update`"
        ));
    }
    let risen = risen(&kept, &measured);
    if !risen.is_empty() {
        bail!(
            "more phrases that STYLE.md rules out; rewrite these sentences (`cargo xtask prose --list` has the places):\n{}",
            risen.join("\n")
        );
    }
    Ok(())
}

/// Lowers the counts of `xtask/prose.yaml` to those of the files, after the check.
pub(crate) fn update(root: &Path) -> Result<()> {
    let kept = kept(root)?;
    let measured = measure(root, &kept)?;
    let lowered = kept.iter().map(|(phrase, &count)| (phrase.as_str(), count.min(measured[phrase].len())));
    fs::write(root.join(KEPT), rendered(lowered)).with_context(|| format!("cannot write {KEPT}"))?;
    check(root)
}

/// Prints the place of each occurrence, as `file:line: phrase`.
pub(crate) fn list(root: &Path) -> Result<()> {
    let mut lines: Vec<_> = measure(root, &kept(root)?)?
        .into_iter()
        .flat_map(|(phrase, places)| {
            places.into_iter().map(move |place| (place.file, place.line, phrase.clone()))
        })
        .collect();
    lines.sort();
    for (file, line, phrase) in lines {
        println!("{}:{line}: {phrase}", file.display());
    }
    Ok(())
}

fn kept(root: &Path) -> Result<BTreeMap<String, usize>> {
    let text = fs::read_to_string(root.join(KEPT)).with_context(|| format!("cannot read {KEPT}"))?;
    serde_saphyr::from_str(&text).with_context(|| format!("cannot parse {KEPT}"))
}

fn rendered<'a>(counts: impl Iterator<Item = (&'a str, usize)>) -> String {
    counts.fold(HEADER.to_owned(), |mut text, (phrase, count)| {
        let _ = writeln!(text, "{phrase}: {count}");
        text
    })
}

fn measure(root: &Path, kept: &BTreeMap<String, usize>) -> Result<Measured> {
    let mut measured: Measured = kept.keys().map(|phrase| (phrase.clone(), Vec::new())).collect();
    for file in files(root)?.into_iter().filter(|file| is_checked(file)) {
        // Files that aren't text, and links that lead nowhere, hold no prose.
        let Ok(text) = fs::read_to_string(root.join(&file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            for (phrase, places) in &mut measured {
                let place = || Place { file: file.clone(), line: number + 1 };
                places.extend(std::iter::repeat_with(place).take(occurrences(line, phrase)));
            }
        }
    }
    Ok(measured)
}

fn is_checked(file: &Path) -> bool {
    let is_root_page =
        file.components().count() == 1 && file.extension().is_some_and(|extension| extension == "md");
    let is_exempt = EXEMPT.iter().any(|exempt| file == Path::new(exempt));
    (is_root_page || SCOPE.iter().any(|dir| file.starts_with(dir))) && !is_exempt
}

/// Counts the occurrences of `phrase` as whole words in `line`. Only a phrase with a capital letter is case-sensitive.
fn occurrences(line: &str, phrase: &str) -> usize {
    let folded;
    let line = if phrase.starts_with(char::is_uppercase) {
        line
    } else {
        folded = line.to_lowercase();
        &folded
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(phrase)
        .filter(|(at, found)| {
            !line[..*at].ends_with(is_word) && !line[at + found.len()..].starts_with(is_word)
        })
        .count()
}

fn risen(kept: &BTreeMap<String, usize>, measured: &Measured) -> Vec<String> {
    measured
        .iter()
        .filter(|(phrase, places)| places.len() > kept[*phrase])
        .map(|(phrase, places)| format!("  `{phrase}`: {} instead of {}", places.len(), kept[phrase]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_as_whole_words_in_any_case() {
        assert_eq!(occurrences("Foo, foo-bar and FOO; food, a_foo_b", "foo"), 3);
    }

    #[test]
    fn a_capital_letter_restricts_a_phrase_to_starts_of_sentences() {
        assert_eq!(occurrences("/// Foo bar. It has foo.", "Foo"), 1);
    }

    #[test]
    fn a_phrase_that_rises_is_named_and_one_that_falls_is_not() {
        let kept = BTreeMap::from([("foo".to_owned(), 0), ("bar".to_owned(), 2)]);
        let place = || Place { file: "a.md".into(), line: 1 };
        let measured = BTreeMap::from([("foo".to_owned(), vec![place()]), ("bar".to_owned(), vec![place()])]);
        assert_eq!(risen(&kept, &measured), ["  `foo`: 1 instead of 0"]);
    }

    #[test]
    fn pages_of_the_root_and_the_scope_are_checked_but_not_the_style_guide() {
        for (file, is) in
            [("README.md", true), ("crates/x/a.rs", true), ("STYLE.md", false), ("fuzz/a.rs", false)]
        {
            assert_eq!(is_checked(Path::new(file)), is, "{file}");
        }
    }
}
