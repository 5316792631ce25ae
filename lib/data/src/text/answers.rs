//! Answers: spans of a context, given as text or as character offsets.

use super::columns::{Columns, cell};
use super::rows::Row;
use super::store::NO_ANSWER;
use serde::Deserialize;
use unix::text::quote;

/// Iterates over the cases of a row, each of which becomes a record. Records are made one at a time, because a row of a
/// few kilobytes may have thousands of cases, each with a copy of the whole context.
pub struct Cases {
    /// The row, without the list of cases.
    row: Row,
    left: std::iter::Enumerate<std::vec::IntoIter<Case>>,
}

#[derive(Deserialize)]
struct Case {
    start_char: usize,
    end_char: usize,
    #[serde(default)]
    text: Option<String>,
}

impl Cases {
    /// Parses the list of cases of a row. Errors: the problem in the list.
    pub fn of(mut row: Row) -> Result<Self, String> {
        let text = std::mem::take(&mut row.cells[cell::CASES]);
        let all: Vec<Case> = match text.trim() {
            "" => Vec::new(),
            text => serde_json::from_str(text)
                .map_err(|cause| format!("not a JSON list of cases: {cause}"))?,
        };
        Ok(Self { row, left: all.into_iter().enumerate() })
    }

    /// Whether no cases are left.
    pub fn is_empty(&self) -> bool {
        self.left.len() == 0
    }

    /// Returns the line on which the row begins.
    pub fn line(&self) -> u64 {
        self.row.line
    }
}

impl Iterator for Cases {
    /// A record whose answer is the character range of the case and whose id ends with the number of the case; or the
    /// problem in the case.
    type Item = Result<Row, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let (number, case) = self.left.next()?;
        let characters = case.start_char..case.end_char;
        let context = &self.row.cells[cell::CONTEXT];
        if let Some(text) = case.text {
            let found: String =
                context.chars().skip(characters.start).take(characters.len()).collect();
            if text.trim() != found.trim() {
                return Some(Err(format!(
                    "case {number}: characters {} to {} are {}, not {}",
                    characters.start,
                    characters.end,
                    quote(&found),
                    quote(&text)
                )));
            }
        }
        let mut row = self.row.clone();
        row.cells[cell::ANSWER_START] = characters.start.to_string();
        row.cells[cell::ANSWER_END] = characters.end.to_string();
        if !row.cells[cell::ID].is_empty() {
            row.cells[cell::ID] += &format!("_{number}");
        }
        Some(Ok(row))
    }
}

/// Returns the character range of a row's answer in its context, with an exclusive end; [-1, -1] if the columns have no
/// answers or this answer is empty. Errors: the problem in the answer.
pub fn answer_of(columns: &Columns, row: &Row) -> Result<[i32; 2], String> {
    if columns.context.is_none() {
        return Ok(NO_ANSWER);
    }
    let context = row.cells[cell::CONTEXT].as_str();
    let found = match &columns.answer {
        Some(column) => {
            let answer = row.cells[cell::ANSWER].trim();
            if answer.is_empty() {
                return Ok(NO_ANSWER);
            }
            let missing =
                || format!("column `{column}`: {} does not occur in the context", quote(answer));
            find(context, answer).ok_or_else(missing)?
        }
        None => {
            let cells = [row.cells[cell::ANSWER_START].trim(), row.cells[cell::ANSWER_END].trim()];
            if cells == ["", ""] {
                return Ok(NO_ANSWER);
            }
            let length = context.chars().count();
            match cells.map(str::parse::<usize>) {
                [Ok(start), Ok(end)] if start < end && end <= length => [start, end],
                _ => {
                    let shown = |cell: &str| match cell {
                        "" => "(empty)".to_string(),
                        cell => quote(cell),
                    };
                    let [start, end] = cells.map(shown);
                    return Err(format!(
                        "`answer_start` {start} and `answer_end` {end} are not characters in this order of the context, \
                         which has {length}"
                    ));
                }
            }
        }
    };
    let [start, end] = found.map(i32::try_from);
    match (start, end) {
        (Ok(start), Ok(end)) => Ok([start, end]),
        _ => Err("the context is too long".into()),
    }
}

/// Finds the character range of the first exact occurrence of `answer`, or else of the first one that differs only in
/// case.
fn find(context: &str, answer: &str) -> Option<[usize; 2]> {
    let exact = context.find(answer).map(|byte| context[..byte].chars().count());
    let length = answer.chars().count();
    let start = exact.or_else(|| {
        let lower = |text: &str| -> Vec<String> {
            text.chars().map(|c| c.to_lowercase().collect()).collect()
        };
        let (context, answer) = (lower(context), lower(answer));
        context.windows(length).position(|part| part == answer)
    })?;
    Some([start, start + length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_occurrence_in_characters() {
        assert_eq!(find("Übel, übel", "übel"), Some([6, 10]));
        assert_eq!(find("Ja: ÜBEL", "übel"), Some([4, 8]));
        assert_eq!(find("a b a b", "b a"), Some([2, 5]));
        assert_eq!(find("ab", "abc"), None);
        assert_eq!(find("", "a"), None);
    }
}
