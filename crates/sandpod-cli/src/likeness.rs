//! What was probably meant by a word that nobody knows.

/// How alike two words must be for one to be meant by the other.
const ALIKE: f64 = 0.6;

/// The word that is most like `given`, if one is; one that it begins is meant before others.
pub(crate) fn nearest<'a>(given: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |word: &str| match word.strip_prefix(given) {
        Some(_) if given.len() > 1 => 1.0,
        _ => strsim::normalized_damerau_levenshtein(given, word),
    };
    let nearest = words.max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    (likeness(nearest) >= ALIKE).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_were_swapped_left_out_or_not_typed_yet_are_no_other_word() {
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
