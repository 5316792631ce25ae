//! Converts scalars to the type that the schema expects: YAML 1.1 spellings, and strings substituted for `${VAR}`.

use serde_json::{Number, Value};

/// 2^53: f64 represents every integer below it exactly.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Reads an integer: `12`, `600e3`, `1_000`, "12"; not 1.5.
pub(super) fn integer(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) if !number.is_f64() => Some(number.clone()),
        Value::Number(number) => whole(number.as_f64()?),
        Value::String(text) => {
            let text = spelling(text)?;
            if let Ok(small) = text.parse::<i64>() {
                return Some(small.into());
            }
            if let Ok(large) = text.parse::<u64>() {
                return Some(large.into());
            }
            // The number is out of range for both types, or has a spelling such as 6e5.
            whole(text.parse().ok().filter(|_| text.contains(['e', 'E', '.']))?)
        }
        _ => None,
    }
}

/// Reads a finite number in any of the spellings of [`integer`], or with a fraction.
pub(super) fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => Number::from_f64(spelling(text)?.parse().ok()?),
        _ => None,
    }
}

/// Reads a boolean, including the other spellings of YAML 1.1.
pub(super) fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn whole(value: f64) -> Option<Number> {
    (value.fract() == 0.0 && value.abs() < MAX_EXACT_INTEGER).then(|| (value as i64).into())
}

/// Removes the underscores between the digits of a number. Rejects leading zeros, which YAML 1.1 reads as octal but
/// everyone else reads as decimal.
fn spelling(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let digit = |at: Option<usize>| at.and_then(|i| bytes.get(i)).is_some_and(u8::is_ascii_digit);
    let mut plain = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        match c {
            '_' if digit(at.checked_sub(1)) && digit(Some(at + 1)) => {}
            '0'..='9' | '+' | '-' | '.' | 'e' | 'E' => plain.push(c),
            _ => return None,
        }
    }
    let digits = plain.trim_start_matches(['+', '-']).as_bytes();
    let octal = digits.first() == Some(&b'0') && digits.get(1).is_some_and(u8::is_ascii_digit);
    (!octal).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn integers() {
        let good = [
            (json!(12), 12),
            (json!(600e3), 600_000),
            (json!("600e3"), 600_000),
            (json!("1_000_000"), 1_000_000),
            (json!("+7"), 7),
            (json!("-0"), 0),
            (json!("1.5e1"), 15),
        ];
        for (value, expected) in good {
            assert_eq!(integer(&value).and_then(|n| n.as_i64()), Some(expected), "{value}");
        }
        assert_eq!(integer(&json!(u64::MAX.to_string())), Some(u64::MAX.into()));
        let bad = [
            json!(1.5),
            json!("0123"),
            json!(""),
            json!("_1"),
            json!("1__0"),
            json!("1e300"),
            json!("36893488147419103232"),
            json!(true),
            json!(null),
            json!("é"),
            json!("nan"),
            json!("-"),
            json!("1 "),
        ];
        for value in bad {
            assert_eq!(integer(&value), None, "{value}");
        }
    }

    #[test]
    fn numbers_and_truth() {
        assert_eq!(number(&json!("1e-4")).and_then(|n| n.as_f64()), Some(1e-4));
        for value in [json!("inf"), json!("1e999"), json!("1e"), json!([1])] {
            assert_eq!(number(&value), None, "{value}");
        }
        for (value, expected) in
            [(json!("Yes"), Some(true)), (json!("off"), Some(false)), (json!(1), None)]
        {
            assert_eq!(flag(&value), expected, "{value}");
        }
    }
}
