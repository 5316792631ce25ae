//! Files with JSON objects: one on each line, or in an array, which is read object by object.

use super::columns::{Wanted, cell};
use super::lines::LineReader;
use super::rows::{HashedFile, MAX_ROW, Row, no_column};
use serde_json::{Map, Value};
use std::path::Path;
use unix::Result;
use unix::text::quote;

/// Reads a file of JSON objects.
pub struct JsonRows {
    lines: LineReader,
    wanted: Wanted,
    layout: Layout,
    has_begun: bool,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum Layout {
    /// One object on each line.
    Lines,
    /// An array; true once an object was read.
    Array(bool),
    /// The array has ended.
    Ended,
}

impl JsonRows {
    /// Opens a file: an array if it begins with `[`. Errors: 66, 74.
    pub fn open(path: &Path, wanted: Wanted) -> Result<Self> {
        let mut lines = LineReader::new(path, HashedFile::open(path)?);
        let layout = match lines.first_byte()? {
            Some(b'[') => {
                lines.line += 1;
                lines.next_byte()?;
                Layout::Array(false)
            }
            _ => Layout::Lines,
        };
        Ok(Self { lines, wanted, layout, has_begun: false, buffer: Vec::new() })
    }

    /// Reads the next row. Empty lines are skipped, or refused where every line must be a row. Errors: 65 with the
    /// line; 74.
    pub fn next(&mut self) -> Result<Option<Row>> {
        if self.layout != Layout::Lines {
            return self.next_of_array();
        }
        // Blank lines before the first object were skipped when the file was opened.
        let mut blank = (self.lines.line > 0 && !self.has_begun).then_some(1);
        self.has_begun = true;
        loop {
            let Some(text) = self.lines.next()? else { return Ok(None) };
            let cells = (!text.trim().is_empty()).then(|| parse(text.as_bytes(), &self.wanted));
            let line = self.lines.line;
            let Some(cells) = cells else {
                blank = blank.or(Some(line));
                continue;
            };
            if let Some(blank) = blank.filter(|_| self.wanted.every_line) {
                return Err(self.lines.wrong(blank, "empty, not a JSON object; remove the line"));
            }
            let cells = cells.map_err(|what| self.lines.wrong(line, what))?;
            return Ok(Some(Row { line, cells }));
        }
    }

    fn next_of_array(&mut self) -> Result<Option<Row>> {
        let cut = "the array has no end; the file is incomplete";
        let mut byte = self.next_non_whitespace()?;
        if self.layout == Layout::Ended {
            return match byte {
                None => Ok(None),
                Some(_) => Err(self.lines.wrong(self.lines.line, "there is text after the array")),
            };
        }
        if byte == Some(b',') && self.layout == Layout::Array(true) {
            byte = self.next_non_whitespace()?;
        } else if byte == Some(b']') {
            self.layout = Layout::Ended;
            return self.next_of_array();
        } else if byte.is_some() && self.layout == Layout::Array(true) {
            let what = "the objects of the array must be separated by commas";
            return Err(self.lines.wrong(self.lines.line, what));
        }
        self.layout = Layout::Array(true);
        let line = self.lines.line;
        // Reads up to the end of the object, which is then parsed.
        self.buffer.clear();
        let (mut depth, mut quoted, mut escaped) = (0_u64, false, false);
        loop {
            let Some(own) = byte else { return Err(self.lines.wrong(line, cut)) };
            self.buffer.push(own);
            match own {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                b'{' | b'[' if !quoted => depth += 1,
                b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if self.buffer.len() as u64 > MAX_ROW {
                return Err(self.lines.too_long());
            }
            byte = self.lines.next_byte()?;
        }
        let cells = parse(&self.buffer, &self.wanted);
        let cells = cells.map_err(|what| self.lines.wrong(line, what))?;
        Ok(Some(Row { line, cells }))
    }

    /// Reads the next byte that is not white space.
    fn next_non_whitespace(&mut self) -> Result<Option<u8>> {
        loop {
            let byte = self.lines.next_byte()?;
            if !matches!(byte, Some(b' ' | b'\t' | b'\r' | b'\n')) {
                return Ok(byte);
            }
        }
    }

    /// Returns the hash of the bytes read so far.
    pub fn hash(&self) -> String {
        self.lines.hash()
    }
}

/// Parses an object into cells. Errors: the problem in the object.
fn parse(text: &[u8], wanted: &Wanted) -> std::result::Result<[String; cell::ALL], String> {
    let text =
        std::str::from_utf8(text).map_err(|_| "not valid UTF-8; convert the file".to_string())?;
    let object: Map<String, Value> =
        serde_json::from_str(text).map_err(|cause| format!("not a JSON object: {cause}"))?;
    cells_of(&object, wanted)
}

/// Returns the cells of an object. Supported values are strings, numbers and booleans, and lists only for labels and
/// cases. Errors: a column that is missing or has an unsupported type.
pub fn cells_of(
    object: &Map<String, Value>,
    wanted: &Wanted,
) -> std::result::Result<[String; cell::ALL], String> {
    let mut cells: [String; cell::ALL] = Default::default();
    for (number, (own, name)) in cells.iter_mut().zip(&wanted.names).enumerate() {
        let Some(name) = name else { continue };
        let Some(value) = object.get(name) else {
            if wanted.optional.contains(&number) {
                continue;
            }
            return Err(no_column(name, object.keys().map(String::as_str)));
        };
        *own = match value {
            Value::Array(_) if number == cell::CASES => value.to_string(),
            Value::Array(_) if number == 0 && wanted.messages => value.to_string(),
            Value::Array(items) if number == cell::LABEL => labels(items, name, wanted)?,
            value => scalar(value)
                .ok_or_else(|| format!("column `{name}`: neither text nor a number"))?,
        };
    }
    Ok(cells)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null => Some(String::new()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// Joins a list of labels into a cell with separators.
fn labels(items: &[Value], name: &str, wanted: &Wanted) -> std::result::Result<String, String> {
    let Some(separator) = &wanted.separator else {
        return Err(format!(
            "column `{name}`: a list of labels; set `multi_label` in columns.yaml, e.g. to \";\", if a record may have any \
             number of labels"
        ));
    };
    let label = |item: &Value| {
        let label = scalar(item)
            .ok_or_else(|| format!("column `{name}`: a label that is neither text nor a number"))?;
        match label.contains(separator.as_str()) {
            false => Ok(label),
            true => Err(format!(
                "column `{name}`: the label {} contains the separator of `multi_label`; choose another one",
                quote(&label)
            )),
        }
    };
    Ok(items.iter().map(label).collect::<std::result::Result<Vec<_>, _>>()?.join(separator))
}
