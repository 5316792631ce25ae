//! Finds the known word nearest to a misspelt one.

/// Returns the candidate that `word` most likely stands for; `None` if all are too different.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = plain(word);
    let scored = candidates.into_iter().filter_map(|candidate| {
        let known = plain(candidate);
        let distance = strsim::damerau_levenshtein(&word, &known);
        let close = distance <= word.chars().count().max(known.chars().count()).div_ceil(3);
        // One is a prefix of the other: `hidden` and `hidden_size`.
        let part = word.len() >= 3
            && known.len() >= 3
            && (word.starts_with(&known) || known.starts_with(&word));
        (close || part).then_some((distance, candidate))
    });
    scored.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

fn plain(word: &str) -> String {
    word.to_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["learning_rate", "weight_decay", "hidden", "seed", "epochs"];
        let cases = [
            ("learning-rate", Some("learning_rate")),
            ("lerning_rate", Some("learning_rate")),
            ("WeightDecay", Some("weight_decay")),
            ("hidden_size", Some("hidden")),
            ("sede", Some("seed")),
            ("epoch", Some("epochs")),
            ("banana", None),
            ("", None),
        ];
        for (word, expected) in cases {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
    }
}
