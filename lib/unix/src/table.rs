//! Formats records as an aligned table: one column per field, numbers right-aligned.

use serde_json::{Map, Value};

use crate::{secrets, text};

/// Rows in insertion order; columns in the order in which the fields first occur.
#[derive(Debug, Default)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Map<String, Value>>,
}

impl Table {
    /// Adds a record.
    pub fn push(&mut self, record: Map<String, Value>) {
        for name in record.keys() {
            if !self.columns.contains(name) {
                self.columns.push(name.clone());
            }
        }
        self.rows.push(record);
    }

    /// Returns the table as text with a header line, two spaces between columns and no trailing blanks; empty without
    /// rows.
    pub fn render(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let columns: Vec<Vec<String>> = self.columns.iter().map(|name| self.column(name)).collect();
        let mut text = String::new();
        for line in 0..=self.rows.len() {
            let cells: Vec<&str> = columns.iter().map(|cells| cells[line].as_str()).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// Returns the header and the cells of a column, padded to the same width.
    fn column(&self, name: &str) -> Vec<String> {
        let values: Vec<&Value> =
            self.rows.iter().map(|row| row.get(name).unwrap_or(&Value::Null)).collect();
        let numeric = values.iter().all(|value| value.is_number() || value.is_null())
            && values.iter().any(|value| value.is_number());
        let is_own = secrets::is_own_key(name);
        let mut cells = vec![if is_own { name.into() } else { text::line(name) }];
        cells.extend(values.into_iter().map(|value| cell(name, value)));
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let pad = |cell: String| {
            if numeric { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        };
        cells.into_iter().map(pad).collect()
    }
}

fn cell(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) if secrets::is_own_word(name, value) => text.clone(),
        Value::String(text) => text::line(text),
        Value::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or(f64::NAN)),
        other => text::summary(other),
    }
}

/// Formats a number with six significant digits, like `%g` of printf.
fn float(x: f64) -> String {
    if x == 0.0 {
        return "0".into();
    }
    let exponent = x.abs().log10().floor() as i32;
    if !(-5..6).contains(&exponent) {
        return format!("{x:.5e}");
    }
    let digits = format!("{x:.*}", (5 - exponent).max(0) as usize);
    if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.').into()
    } else {
        digits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(rows: &[Value]) -> String {
        let mut table = Table::default();
        for row in rows {
            table.push(row.as_object().unwrap().clone());
        }
        table.render()
    }

    #[test]
    fn numbers_to_the_right_words_to_the_left() {
        let text = table(&[
            json!({"name": "step-9", "update": 9, "loss": 0.25}),
            json!({"name": "step-1200", "update": 1200, "note": "best"}),
        ]);
        let expected = "\
name       update  loss  note
step-9          9  0.25  -
step-1200    1200     -  best
";
        assert_eq!(text, expected);
    }

    #[test]
    fn no_rows_no_head() {
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn floats_have_six_significant_digits() {
        let cases = [
            (0.1 + 0.2, "0.3"),
            (1234.5678, "1234.57"),
            (-0.000123456789, "-0.000123457"),
            (1e-9, "1.00000e-9"),
            (123456789.0, "1.23457e8"),
            (100.0, "100"),
            (0.0, "0"),
        ];
        for (x, text) in cases {
            assert_eq!(float(x), text);
        }
    }
}
