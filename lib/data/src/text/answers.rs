//! Answers: parts of a context, given as text or as characters.

use super::columns::{Columns, cell};
use super::rows::Row;
use super::store::NO_ANSWER;
use serde::Deserialize;
use unix::text::quote;

/// A case of a row.
#[derive(Deserialize)]
struct Case {
    start_char: usize,
    end_char: usize,
    #[serde(default)]
    text: Option<String>,
}

/// The records of a row with a list of cases, each with its first character and the one after its last as the answer, and its
/// number after the id. Errors: what is wrong with the list, or with a case.
pub fn cases(row: &Row) -> Result<Vec<Result<Row, String>>, String> {
    let text = row.cells[cell::CASES].trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let all: Vec<Case> =
        serde_json::from_str(text).map_err(|cause| format!("not a JSON list of cases: {cause}"))?;
    let of = |(number, case): (usize, Case)| {
        let mut row = row.clone();
        let characters = case.start_char..case.end_char;
        let found: String = row.cells[cell::CONTEXT]
            .chars()
            .skip(characters.start)
            .take(characters.len())
            .collect();
        if let Some(text) = case.text.filter(|text| text.trim() != found.trim()) {
            return Err(format!(
                "case {number}: characters {} to {} are {}, not {}",
                characters.start,
                characters.end,
                quote(&found),
                quote(&text)
            ));
        }
        row.cells[cell::ANSWER_START] = characters.start.to_string();
        row.cells[cell::ANSWER_END] = characters.end.to_string();
        if !row.cells[cell::ID].is_empty() {
            row.cells[cell::ID] += &format!("_{number}");
        }
        Ok(row)
    };
    Ok(all.into_iter().enumerate().map(of).collect())
}

/// The first character of the answer of a row in its context, and the one after the last; -1 and -1 if the columns have
/// no answers or this one is empty. Errors: what is wrong with it.
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

/// The characters of the first occurrence of `answer`; if there is none, in upper or lower case.
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
