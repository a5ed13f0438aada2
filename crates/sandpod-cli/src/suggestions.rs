//! Suggestions for unknown words.

/// The least similarity of a suggestion, between 0 and 1.
const MIN_SIMILARITY: f64 = 0.6;

/// Returns the most similar word, if one is similar enough. A word that starts with `given` comes before others.
pub(crate) fn nearest<'a>(given: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |word: &str| match word.strip_prefix(given) {
        Some(_) if given.len() > 1 => 1.0,
        _ => strsim::normalized_damerau_levenshtein(given, word),
    };
    let nearest = words.max_by(|one, other| similarity(one).total_cmp(&similarity(other)))?;
    (similarity(nearest) >= MIN_SIMILARITY).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_and_prefixes_find_the_intended_command() {
        let line = crate::command_line();
        let command = |given| nearest(given, line.get_subcommands().map(clap::Command::get_name));
        let typed = [
            ("rnu", "run"),
            ("rn", "run"),
            ("crete", "create"),
            ("delte", "delete"),
            ("comp", "completions"),
        ];
        for (given, meant) in typed {
            assert_eq!(command(given), Some(meant), "{given}");
        }
        for nothing in ["", "x", "frobnicate"] {
            assert_eq!(command(nothing), None, "{nothing}");
        }
    }
}
