//! Suggestions for mistyped names.

/// Minimum similarity of a suggestion, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.75;
/// Minimum similarity of a word that differs by one edit, for short words.
const MIN_SIMILARITY_OF_ONE_EDIT: f64 = 0.6;

/// Returns the word that is most similar to `given`, if one is similar enough. A word that begins with `given` is preferred;
/// so is, among words of several parts, one with the part `given`, unless another word is more similar.
///
/// ```
/// use sandpod_text::nearest;
///
/// assert_eq!(nearest("delte", ["create", "delete"]), Some("delete"));
/// assert_eq!(nearest("network", ["image", "block_network"]), Some("block_network"));
/// assert_eq!(nearest("frobnicate", ["create", "delete"]), None);
/// ```
pub fn nearest<'a>(given: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    words
        .into_iter()
        .map(|word| (similarity(given, word), word))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, word)| word)
}

fn similarity(given: &str, word: &str) -> f64 {
    let typo = strsim::normalized_damerau_levenshtein(given, word);
    let is_one_edit = typo >= MIN_SIMILARITY_OF_ONE_EDIT && strsim::damerau_levenshtein(given, word) == 1;
    let is_prefix = given.len() > 1 && word.starts_with(given) && word != given;
    // `cpu` for `cpu_limit`, `network` for `block_network`: a part of the right name.
    let is_part = given.len() > 2 && word.split('_').any(|part| part == given);
    match (is_prefix, is_part) {
        // Below that of the word itself.
        (true, _) => typo.max(0.99),
        (false, is_part) if is_part || is_one_edit => typo.max(MIN_SIMILARITY),
        (false, _) => typo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 5] = ["run", "create", "image", "image_pull_secrets", "block_network"];

    #[test]
    fn swapped_missing_and_final_letters_are_typos() {
        for (given, meant) in [("rnu", "run"), ("rn", "run"), ("crete", "create"), ("blo", "block_network")] {
            assert_eq!(nearest(given, WORDS), Some(meant), "{given}");
        }
    }

    #[test]
    fn word_itself_is_preferred_to_a_longer_one() {
        assert_eq!(nearest("image", WORDS), Some("image"));
        assert_eq!(nearest("network", WORDS), Some("block_network"));
    }

    #[test]
    fn dissimilar_word_has_no_suggestion() {
        for given in ["", "x", "quantum_entanglement"] {
            assert_eq!(nearest(given, WORDS), None, "{given}");
        }
    }
}
