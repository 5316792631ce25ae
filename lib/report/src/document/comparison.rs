//! Two texts, one below the other, with the characters that only one of them has.

use std::iter::once;

/// Maximum number of characters of each text that are compared and shown. Comparing takes time and bytes of memory for
/// each pair of characters: 4 MB.
pub const COMPARED_CHARS: usize = 2000;

/// Two texts to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What they are about.
    pub caption: String,
    /// A PNG image that is shown next to the texts.
    pub png: Option<Vec<u8>>,
    /// The name of the first text, the reference, and the text.
    pub reference: (String, String),
    /// The name of the second text, and the text.
    pub answer: (String, String),
}

/// A part of a text, and whether the other text lacks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub text: String,
    pub is_marked: bool,
}

/// A step of an alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A character of both texts.
    Both,
    /// Different characters in the same place.
    Replaced,
    /// A character of the first text only.
    First,
    /// A character of the second text only.
    Second,
}

impl Comparison {
    /// The parts of both texts, of at most [`COMPARED_CHARS`] characters each: an alignment with the fewest insertions,
    /// deletions and replacements.
    pub(super) fn parts(&self) -> [Vec<Part>; 2] {
        let texts = [&self.reference.1, &self.answer.1];
        let [first, second] =
            texts.map(|text| text.chars().take(COMPARED_CHARS).collect::<Vec<char>>());
        let (mut i, mut j) = (0, 0);
        let [mut parts, mut others] = [Vec::new(), Vec::new()];
        for step in align(&first, &second) {
            if step != Step::Second {
                push(&mut parts, first[i], step != Step::Both);
                i += 1;
            }
            if step != Step::First {
                push(&mut others, second[j], step != Step::Both);
                j += 1;
            }
        }
        [parts, others]
    }

    /// How many characters of each text are not shown.
    pub(super) fn hidden(&self) -> [usize; 2] {
        [&self.reference.1, &self.answer.1]
            .map(|text| text.chars().count().saturating_sub(COMPARED_CHARS))
    }
}

/// Appends a character to the last part if that is marked alike, else to a new one.
fn push(parts: &mut Vec<Part>, c: char, is_marked: bool) {
    match parts.last_mut().filter(|part| part.is_marked == is_marked) {
        Some(part) => part.text.push(c),
        None => parts.push(Part { text: c.into(), is_marked }),
    }
}

/// Alignment with the fewest insertions, deletions and replacements (Wagner and Fischer 1974). Computed from the ends, so
/// that the walk from the beginning finds the steps in order.
fn align(first: &[char], second: &[char]) -> Vec<Step> {
    let width = second.len() + 1;
    let mut steps = vec![Step::Second; (first.len() + 1) * width];
    // Distances of the rest of the second text from each place on, to the rest of the first one.
    let mut row: Vec<u16> = (0..width as u16).rev().collect();
    for (i, a) in first.iter().enumerate().rev() {
        let mut diagonal = row[second.len()];
        row[second.len()] += 1;
        steps[i * width + second.len()] = Step::First;
        for (j, b) in second.iter().enumerate().rev() {
            let together = diagonal + u16::from(a != b);
            diagonal = row[j];
            let (down, right) = (row[j] + 1, row[j + 1] + 1);
            row[j] = together.min(down).min(right);
            steps[i * width + j] = match row[j] {
                best if best == together && a == b => Step::Both,
                best if best == together => Step::Replaced,
                best if best == down => Step::First,
                _ => Step::Second,
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut found = Vec::new();
    while i < first.len() || j < second.len() {
        let step = steps[i * width + j];
        i += usize::from(step != Step::Second);
        j += usize::from(step != Step::First);
        found.push(step);
    }
    found
}

/// The text of a marked part as shown: line ends are visible.
pub(super) fn visible(text: &str) -> String {
    text.chars().flat_map(|c| (c == '\n').then_some('↵').into_iter().chain(once(c))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(first: &str, second: &str) -> [String; 2] {
        let [reference, answer] = [first, second].map(|text| (String::new(), text.to_string()));
        let found = Comparison { reference, answer, ..Comparison::default() }.parts();
        found.map(|parts| {
            let show = |part: Part| match part.is_marked {
                true => format!("[{}]", part.text),
                false => part.text,
            };
            parts.into_iter().map(show).collect()
        })
    }

    #[test]
    fn marked_characters_are_those_that_one_text_lacks() {
        for (texts, expected) in [
            (["hello", "hallo"], ["h[e]llo", "h[a]llo"]),
            (["abc", "abc"], ["abc", "abc"]),
            (["abc", ""], ["[abc]", ""]),
            (["", "é"], ["", "[é]"]),
            (["", ""], ["", ""]),
            (["hello world", "hello big world"], ["hello world", "hello [big ]world"]),
            (["|A|12|\n|B|3|", "|A|1|\n|B|34|"], ["|A|1[2]|\n|B|3|", "|A|1|\n|B|3[4]|"]),
        ] {
            assert_eq!(marked(texts[0], texts[1]), expected);
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let [first, second] = [COMPARED_CHARS + 5, COMPARED_CHARS].map(|n| "ß".repeat(n));
        let [reference, answer] = [&first, &second].map(|text| (String::new(), text.clone()));
        let comparison = Comparison { reference, answer, ..Comparison::default() };
        let plain = vec![Part { text: second, is_marked: false }];
        assert_eq!(comparison.parts(), [plain.clone(), plain]);
        assert_eq!(comparison.hidden(), [5, 0]);
        // The longest texts without a common character.
        let [first, second] = marked(&"a".repeat(COMPARED_CHARS), &"b".repeat(COMPARED_CHARS));
        assert_eq!((first.len(), second.len()), (COMPARED_CHARS + 2, COMPARED_CHARS + 2));
    }
}
