//! What was probably meant by a word that nobody knows.

/// How alike two words must be for one to be meant by the other.
const ALIKE: f64 = 0.6;

/// The word that is most like `given`, or the one that it begins, if there is one.
pub(crate) fn nearest<'a>(given: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |word: &str| strsim::normalized_damerau_levenshtein(given, word);
    let nearest = words.max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    (likeness(nearest) >= ALIKE || nearest.starts_with(given)).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_were_swapped_left_out_or_not_typed_yet_are_no_other_word() {
        let words = || ["run", "create", "delete", "resume"].into_iter();
        for (given, meant) in
            [("rnu", "run"), ("rn", "run"), ("crete", "create"), ("delte", "delete"), ("del", "delete")]
        {
            assert_eq!(nearest(given, words()), Some(meant), "{given}");
        }
        assert_eq!(nearest("frobnicate", words()), None);
    }
}
