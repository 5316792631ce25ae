//! Synthetic dialogues: a question and its one right answer, to try out fine-tuning of decoders and their scores.
//!
//! There are three kinds, equally often: `lookup`, an entry of a table in the question; `sum`, of numbers with two digits;
//! and `format`, numbers in another notation.

use super::chat;
use super::criteria::Difficulty;
use crate::draw::Draw;
use serde_json::json;
use tensor::random::{Philox, Purpose};
use unix::{Error, Result};

const NAMES: [&str; 16] = [
    "Ada", "Bob", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ida", "Jon", "Kim", "Leo", "Mia",
    "Ned", "Olga", "Pia",
];
const COLOURS: [&str; 16] = [
    "red", "blue", "green", "black", "white", "pink", "grey", "brown", "gold", "teal", "navy",
    "lime", "plum", "rust", "jade", "sand",
];

/// The columns of the file.
pub const COLUMNS_YAML: &str = "\
# For ds-prep import
messages: messages
id: id
criterion: kind
";

/// How answers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Answers {
    /// The answer alone.
    #[default]
    Plain,
    /// The answer between `<answer>` and `</answer>`.
    Tagged,
}

/// What is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialogues {
    /// Number of dialogues.
    pub samples: usize,
    /// Equal seeds give equal files; more samples begin with the same ones.
    pub seed: u64,
    /// How long questions are.
    pub difficulty: Difficulty,
    /// How answers are written.
    pub answers: Answers,
}

impl Dialogues {
    /// Generates a line of JSON for each dialogue, with `id`, `kind` and `messages`. Errors: a bug.
    pub fn jsonl(self) -> Result<Vec<u8>> {
        let random = Philox::new(self.seed, Purpose::Texts);
        let mut lines = Vec::new();
        for sample in 0..self.samples {
            let (kind, question, answer) = self.dialogue(&mut Draw::new(random, sample as u64));
            let answer = match self.answers {
                Answers::Plain => answer,
                Answers::Tagged => format!("<answer>{answer}</answer>"),
            };
            let id = format!("dialogue-{sample:06}");
            let row = json!({"id": id, "kind": kind, "messages": chat::pair(&question, &answer)});
            serde_json::to_writer(&mut lines, &row).map_err(Error::bug)?;
            lines.push(b'\n');
        }
        Ok(lines)
    }

    /// Returns a kind, a question and its answer.
    fn dialogue(self, draw: &mut Draw) -> (&'static str, String, String) {
        let by_difficulty = |of: [usize; 3]| of[self.difficulty as usize];
        match draw.below(3) {
            0 => {
                let count = by_difficulty([2, 4, 8]);
                let [names, colours] =
                    [NAMES, COLOURS].map(|words| distinct(&words, count, &mut *draw));
                let entries = names.iter().zip(&colours);
                let table: Vec<String> = entries.map(|(n, c)| format!("{n} has {c}")).collect();
                let asked = draw.below(count);
                let question = format!("{}. What has {}?", table.join(", "), names[asked]);
                ("lookup", question, colours[asked].into())
            }
            1 => {
                let range = by_difficulty([10, 90, 90]);
                let count = by_difficulty([2, 2, 3]);
                let numbers: Vec<usize> = (0..count).map(|_| 10 + draw.below(range)).collect();
                let sum: usize = numbers.iter().sum();
                ("sum", format!("What is {}?", joined(&numbers, " + ")), sum.to_string())
            }
            _ => {
                let count = by_difficulty([2, 3, 5]);
                let numbers: Vec<usize> = (0..count).map(|_| draw.below(100)).collect();
                let reversed: Vec<usize> = numbers.iter().rev().copied().collect();
                let (notation, answer) = match draw.below(3) {
                    0 => ("as JSON", format!("[{}]", joined(&numbers, ", "))),
                    1 => ("with semicolons", joined(&numbers, "; ")),
                    _ => ("in reverse order", joined(&reversed, ", ")),
                };
                let question = format!("Write {} {notation}.", joined(&numbers, ", "));
                ("format", question, answer)
            }
        }
    }
}

/// Draws different words.
fn distinct(words: &[&'static str], count: usize, draw: &mut Draw) -> Vec<&'static str> {
    let mut words = words.to_vec();
    for at in 0..count {
        let other = at + draw.below(words.len() - at);
        words.swap(at, other);
    }
    words.truncate(count);
    words
}

fn joined(numbers: &[usize], separator: &str) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    numbers.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeMap;

    fn rows(dialogues: Dialogues) -> Vec<Value> {
        let lines = String::from_utf8(dialogues.jsonl().unwrap()).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Answers a question from its text alone.
    fn answer(question: &str) -> String {
        let numbers: Vec<usize> = question
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|part| part.parse().ok())
            .collect();
        if question.contains('+') {
            return numbers.iter().sum::<usize>().to_string();
        }
        if let Some((table, asked)) = question.split_once(". What has ") {
            let own = format!("{} has ", asked.trim_end_matches('?'));
            return table.split(", ").find_map(|entry| entry.strip_prefix(&own)).unwrap().into();
        }
        let mut words: Vec<String> = numbers.iter().map(usize::to_string).collect();
        if question.ends_with("as JSON.") {
            return format!("[{}]", words.join(", "));
        }
        if question.ends_with("with semicolons.") {
            return words.join("; ");
        }
        words.reverse();
        words.join(", ")
    }

    #[test]
    fn answers_are_right_and_files_depend_on_the_seed_alone() {
        for difficulty in [Difficulty::Easy, Difficulty::Medium, Difficulty::Hard] {
            let plain = Dialogues { samples: 500, seed: 3, difficulty, answers: Answers::Plain };
            let (all, mut kinds) = (rows(plain), BTreeMap::new());
            for row in &all {
                chat::check(row["messages"].as_array().unwrap()).unwrap();
                let text = |at: usize| row["messages"][at]["content"].as_str().unwrap();
                assert_eq!(text(1), answer(text(0)), "{row}");
                *kinds.entry(row["kind"].as_str().unwrap()).or_insert(0) += 1;
            }
            assert!(kinds.len() == 3 && kinds.values().all(|count| *count > 100), "{kinds:?}");
            assert_eq!(rows(plain), all);
            assert_eq!(rows(Dialogues { samples: 40, ..plain }), all[..40]);
            assert_ne!(rows(Dialogues { seed: 4, ..plain }), all);
            let tagged = rows(Dialogues { answers: Answers::Tagged, ..plain });
            for (plain, tagged) in all.iter().zip(&tagged) {
                let [plain, tagged] = [plain, tagged].map(|row| &row["messages"][1]["content"]);
                let expected = format!("<answer>{}</answer>", plain.as_str().unwrap());
                assert_eq!(tagged.as_str(), Some(&*expected));
            }
        }
    }
}
