//! JSONL files: one object per line.

use super::columns::{Columns, cell};
use super::rows::{HashedFile, MAX_ROW, Row, at_line, no_column};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use unix::{Error, Result};

/// Reads a JSONL file.
pub struct JsonlRows {
    path: PathBuf,
    reader: BufReader<HashedFile>,
    names: [Option<String>; cell::ALL],
    separator: String,
    line: u64,
    buffer: Vec<u8>,
}

impl JsonlRows {
    /// Opens a file. Errors: 66.
    pub fn open(path: &Path, columns: &Columns) -> Result<Self> {
        Ok(Self {
            path: path.into(),
            reader: BufReader::new(HashedFile::open(path)?),
            names: columns.names().map(|name| name.map(String::from)),
            separator: columns.multi_label.clone().unwrap_or_default(),
            line: 0,
            buffer: Vec::new(),
        })
    }

    /// The next row; empty lines are skipped. Errors: 65 with the line; 74.
    pub fn next(&mut self) -> Result<Option<Row>> {
        loop {
            self.buffer.clear();
            let mut limited = (&mut self.reader).take(MAX_ROW + 1);
            let read = limited.read_until(b'\n', &mut self.buffer);
            if read.map_err(|cause| Error::io(&self.path, cause))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if self.buffer.len() as u64 > MAX_ROW {
                let what = format!("more than {} MiB, the limit", MAX_ROW >> 20);
                return Err(at_line(&self.path, self.line, what));
            }
            let row = self.parse().map_err(|what| at_line(&self.path, self.line, what))?;
            if row.is_some() {
                return Ok(row);
            }
        }
    }

    fn parse(&self) -> std::result::Result<Option<Row>, String> {
        let text = std::str::from_utf8(&self.buffer);
        let text = text.map_err(|_| "not valid UTF-8; convert the file".to_string())?;
        let text = text.trim_start_matches('\u{feff}').trim();
        if text.is_empty() {
            return Ok(None);
        }
        let object: Map<String, Value> =
            serde_json::from_str(text).map_err(|cause| format!("not a JSON object: {cause}"))?;
        let mut cells: [String; cell::ALL] = Default::default();
        for (number, (cell, name)) in cells.iter_mut().zip(&self.names).enumerate() {
            let Some(name) = name else { continue };
            let value = object.get(name);
            let value = value.ok_or_else(|| no_column(name, object.keys().map(String::as_str)))?;
            if number == cell::CASES && value.is_array() {
                *cell = value.to_string();
                continue;
            }
            *cell = self.cell(value).ok_or_else(|| {
                format!("column `{name}`: neither text nor a number, nor a list of labels")
            })?;
        }
        Ok(Some(Row { line: self.line, cells }))
    }

    fn cell(&self, value: &Value) -> Option<String> {
        match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
            Value::Null => Some(String::new()),
            Value::Array(items) if !self.separator.is_empty() => {
                let items = items.iter().map(|item| self.cell(item).filter(|_| !item.is_array()));
                Some(items.collect::<Option<Vec<String>>>()?.join(&self.separator))
            }
            Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// The hash of what was read.
    pub fn hash(&self) -> String {
        self.reader.get_ref().hash()
    }
}
