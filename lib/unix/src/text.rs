//! Sanitises text for terminals, logs and records: replaces secrets, escapes control characters and limits the length.
//!
//! All messages ([`crate::Error`], [`crate::diagnostics`]), tables and JSON ([`crate::out`], [`crate::log`],
//! [`crate::status`]) pass through here, so names from files and clusters can be quoted without further care.

use std::borrow::Cow;
use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;

use crate::space::human_bytes;
use crate::{Error, Result, limits, secrets};

/// Number of characters kept from the beginning and the end of an overlong line.
const LINE: (usize, usize) = (1200, 600);
/// Number of characters kept of an overlong quoted text.
const QUOTE: usize = 200;
/// Maximum number of list elements that [`summary`] prints in full.
const LISTED: usize = 8;

/// Formats any text as one line: line breaks are shown as `\n`.
pub fn line(text: &str) -> String {
    let text = limits::explain(secrets::redact(text));
    escape(&shorten(&text, LINE)).into_owned()
}

/// Formats a text whose line breaks are intended: each line as by [`line`].
pub fn lines(text: &str) -> String {
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Formats a value or name from outside for use within a message: at most 200 characters of it.
pub fn quote(text: &str) -> String {
    escape(&shorten(&secrets::redact(text), (QUOTE, 0))).into_owned()
}

/// Formats a JSON value for people: strings without quotes, long lists as their first elements, length and range.
pub fn summary(value: &Value) -> String {
    match value {
        Value::String(text) => line(text),
        Value::Array(items) if items.len() > LISTED => {
            let first: Vec<String> = items[..3].iter().map(summary).collect();
            let (first, count) = (first.join(", "), items.len());
            let numbers = || items.iter().filter_map(Value::as_f64);
            let (low, high) = (numbers().reduce(f64::min), numbers().reduce(f64::max));
            match (low, high) {
                (Some(low), Some(high)) if numbers().count() == count => {
                    format!("[{first}, …] ({count} numbers from {low} to {high})")
                }
                _ => format!("[{first}, …] ({count} elements)"),
            }
        }
        other => quote(&other.to_string()),
    }
}

/// Formats a record as one line of JSON. Also escapes control characters that JSON allows unescaped.
pub fn json(record: &impl Serialize) -> Result<String> {
    to_json(record, serde_json::Value::to_string, serde_json::to_string)
}

/// Formats a record as indented JSON with a trailing line break.
pub fn json_pretty(record: &impl Serialize) -> Result<String> {
    to_json(record, |value| format!("{value:#}"), serde_json::to_string_pretty)
        .map(|text| text + "\n")
}

/// Formats a record, with secrets replaced. `serialized` preserves the digits of f32, which a [`Value`] would print as
/// f64; the redacted value is therefore parsed from its output.
fn to_json<T: Serialize>(
    record: &T,
    shown: impl Fn(&Value) -> String,
    serialized: impl Fn(&T) -> serde_json::Result<String>,
) -> Result<String> {
    let text = serialized(record).map_err(Error::bug)?;
    let redacted = secrets::redact_value(|| serde_json::from_str(&text).ok());
    let text = redacted.as_ref().map(shown).unwrap_or(text);
    Ok(escape_by(
        &text,
        |c| c != '\n' && is_unsafe(c),
        |c, out| {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}"); // writing to a String cannot fail
            }
        },
    )
    .into_owned())
}

/// Escapes control characters in Rust notation: `\n`, `\u{1b}`.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    escape_by(text, is_unsafe, |c, out| out.extend(c.escape_default()))
}

/// Whether to escape a character: control characters, and characters that change the direction of text or break a line.
/// All other Unicode characters stay unchanged.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

fn escape_by(
    text: &str,
    wanted: impl Fn(char) -> bool,
    append: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.chars().any(&wanted) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if wanted(c) { append(c, &mut escaped) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

/// Returns the text or, if it is too long, its first and last characters with its size between them.
fn shorten(text: &str, (first, last): (usize, usize)) -> Cow<'_, str> {
    let end = text.char_indices().nth(first).map(|(at, _)| at);
    let begin = last
        .checked_sub(1)
        .map_or(Some(text.len()), |last| text.char_indices().rev().nth(last).map(|(at, _)| at));
    match (end, begin) {
        (Some(end), Some(begin)) if end < begin => {
            let size = human_bytes(text.len() as u64);
            let rest = if last == 0 { String::new() } else { format!(" … {}", &text[begin..]) };
            Cow::Owned(format!("{}… ({size}){rest}", &text[..end]))
        }
        _ => Cow::Borrowed(text),
    }
}

/// Whether `name` matches `pattern`, as in a shell: `*` matches any characters, including dots, and `?` exactly one.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The positions from which to continue when the last `*` has to match one more character.
    let mut again: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                again = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match again {
                Some((star, taken)) => {
                    again = Some((star, taken + 1));
                    p = star;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn control_characters_are_visible_and_words_stay() {
        let text = "a\u{1b}[31m\nb\t\u{7f}\u{9b}\u{202e}c\u{2066} größe 速度 👩‍🔬 \\";
        let shown = "a\\u{1b}[31m\\nb\\t\\u{7f}\\u{9b}\\u{202e}c\\u{2066} größe 速度 👩‍🔬 \\";
        assert_eq!(line(text), shown);
        assert_eq!(quote(text), shown);
        assert_eq!(lines("a\n\u{1b}b"), "a\n\\u{1b}b");
    }

    #[test]
    fn long_text_is_cut() {
        let long = "é".repeat(3 << 20);
        let quoted = quote(&long);
        assert_eq!(quoted, format!("{}… (6.0 MiB)", "é".repeat(200)));
        assert_eq!(quote(&"é".repeat(200)), "é".repeat(200));
        let cut = line(&format!("{long}: no such file"));
        assert!(cut.ends_with("é: no such file") && cut.contains("… (6.0 MiB) … "), "{cut}");
        assert_eq!(cut.chars().count(), 1200 + 600 + "… (6.0 MiB) … ".chars().count());
        assert_eq!(line(&"a".repeat(1800)).len(), 1800);
    }

    #[test]
    fn json_has_no_raw_control_characters() {
        let record = json!({"a\u{9b}": "\u{7f}\u{202e}\n\u{e0001}é"});
        let text = json(&record).unwrap();
        assert_eq!(text, r#"{"a\u009b":"\u007f\u202e\n\udb40\udc01é"}"#);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), record);
        assert_eq!(json_pretty(&json!({"a": [1]})).unwrap(), "{\n  \"a\": [\n    1\n  ]\n}\n");
        assert_eq!(json(&[0.1_f32]).unwrap(), "[0.1]");
    }

    #[test]
    fn summaries() {
        assert_eq!(summary(&json!("a\nb")), "a\\nb");
        assert_eq!(summary(&json!([1, 2.5])), "[1,2.5]");
        let many: Vec<f64> = (0..400).map(|x| f64::from(x) / 4.0).collect();
        let expected = "[0.0, 0.25, 0.5, …] (400 numbers from 0 to 99.75)";
        assert_eq!(summary(&json!(many)), expected);
        assert_eq!(summary(&json!(vec!["a"; 9])), "[a, a, a, …] (9 elements)");
        assert!(summary(&json!({"a": "x".repeat(3000)})).contains("KiB"));
    }

    #[test]
    fn patterns_have_stars_and_question_marks() {
        let cases = [
            ("*", "", true),
            ("*.weight", "core.0.weight", true),
            ("*.weight", "core.0.weights", false),
            ("core.?.w*t", "core.1.weight", true),
            ("core.?.w*t", "core.10.weight", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("", "a", false),
            ("ν?", "νx", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
