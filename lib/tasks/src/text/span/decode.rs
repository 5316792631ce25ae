//! Decodes answers from start and end logits.

use data::text::Window;
use serde::{Deserialize, Serialize};

/// An answer to a record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its first and its last token, as indices into the tokens of the record.
    pub tokens: [usize; 2],
    /// The sum of the logits of both.
    pub score: f32,
}

/// What the model predicts for a record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decoded {
    /// The best answers, the best one first; none if the context has no tokens.
    pub candidates: Vec<Candidate>,
    /// The no-answer score: the smallest one over all windows, because windows that do not contain the answer have high
    /// ones.
    pub no_answer: f32,
}

impl Decoded {
    /// Score of the best answer minus the no-answer score; -∞ without an answer.
    pub fn margin(&self) -> f64 {
        let best = self.candidates.first();
        best.map_or(f64::NEG_INFINITY, |best| f64::from(best.score) - f64::from(self.no_answer))
    }

    /// The first and the last token of the best answer; None if its margin is below `threshold`. Without a threshold
    /// there always is an answer.
    pub fn answer(&self, threshold: Option<f64>) -> Option<[usize; 2]> {
        let enough = threshold.is_none_or(|threshold| self.margin() >= threshold);
        self.candidates.first().filter(|_| enough).map(|best| best.tokens)
    }
}

/// The `count` best answers to a record, given the logits [T, 2] of its windows: the spans of the context of at most
/// `longest` tokens with the largest sums of start and end logits.
pub fn decode(windows: &[(&Window, &[f32])], longest: usize, count: usize) -> Decoded {
    let mut best: Vec<Candidate> = Vec::with_capacity(count + 1);
    let mut no_answer = f32::INFINITY;
    for (window, logits) in windows {
        no_answer = no_answer.min(logits[0] + logits[1]);
        let places = window.before..window.before + window.tokens.len();
        for start in places.clone() {
            for end in start..places.end.min(start.saturating_add(longest)) {
                let score = logits[2 * start] + logits[2 * end + 1];
                if best.len() == count && score <= best[count - 1].score {
                    continue;
                }
                let [Some(first), Some(last)] = [start, end].map(|place| window.token(place))
                else {
                    continue;
                };
                // The same answer may be in two windows.
                let tokens = [first, last];
                match best.iter().position(|known| known.tokens == tokens) {
                    Some(known) if best[known].score >= score => continue,
                    Some(known) => drop(best.remove(known)),
                    None => {}
                }
                let at = best.partition_point(|known| known.score >= score);
                best.insert(at, Candidate { tokens, score });
                best.truncate(count);
            }
        }
    }
    Decoded { candidates: best, no_answer }
}

/// The no-answer threshold with the most correct predictions. `outcomes` has, for each record, the margin, whether the
/// answer is correct, and whether predicting no answer is. None if it is best to predict an answer for every record.
pub fn fit_threshold(outcomes: &[(f64, bool, bool)]) -> Option<f64> {
    let mut sorted = outcomes.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    // First an answer for every record, then none up to each margin in turn.
    let mut right = sorted.iter().filter(|(_, answer, _)| *answer).count() as i64;
    let mut best = (right, None);
    for (at, (margin, answer, none)) in sorted.iter().enumerate() {
        right += i64::from(*none) - i64::from(*answer);
        let next = sorted.get(at + 1).map_or(f64::INFINITY, |next| next.0);
        if right > best.0 && next > *margin {
            let between = if next.is_finite() { (margin + next) / 2.0 } else { margin + 1.0 };
            best = (right, Some(between));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(start: usize, end: usize) -> Window {
        Window { record: 0, tokens: start..end, before: 2 }
    }

    #[test]
    fn the_best_answers_of_all_windows_in_order() {
        // Two special tokens, two of the context, one special token.
        let first = [9.0, 9.0, 9.0, 9.0, 5.0, 0.0, 1.0, 7.0, 50.0, 50.0];
        // The second one again, and one more.
        let second = [1.0, 0.0, 0.0, 0.0, 0.0, 6.5, 3.0, 2.5, 50.0, 50.0];
        let [one, two] = [window(2, 4), window(3, 5)];
        let found = decode(&[(&one, &first), (&two, &second)], 2, 3);
        let of = |first, last, score| Candidate { tokens: [first, last], score };
        // 2..3 scores 5 + 7; 3..3 scores 1 + 7 in the first window, 0 + 6.5 in the second.
        assert_eq!(found.candidates, [of(2, 3, 12.0), of(3, 3, 8.0), of(4, 4, 5.5)]);
        assert_eq!(found.no_answer, 1.0);
        assert_eq!(found.answer(Some(11.0)), Some([2, 3]));
        assert_eq!(found.answer(Some(11.1)), None);
        // Against every pair.
        let limited = decode(&[(&one, &first)], 1, 9).candidates;
        assert_eq!(limited, [of(3, 3, 8.0), of(2, 2, 5.0)]);
        assert_eq!(decode(&[(&window(2, 2), &first)], 5, 2).answer(None), None);
    }

    #[test]
    fn the_threshold_with_the_most_right_predictions() {
        let outcomes =
            [(0.5, true, false), (-2.0, false, true), (-1.0, false, true), (3.0, true, false)];
        assert_eq!(fit_threshold(&outcomes), Some(-0.25));
        // Equal margins are on one side.
        assert_eq!(fit_threshold(&[(1.0, false, true), (1.0, true, false)]), None);
        assert_eq!(fit_threshold(&[(1.0, false, true)]), Some(2.0));
    }
}
