//! Rows of the user's files, one at a time, whatever the size of the file.

use super::answers::cases;
use super::columns::{Columns, cell};
use super::csv_rows::CsvRows;
use super::jsonl_rows::JsonlRows;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use unix::config::nearest;
use unix::text::quote;
use unix::{Error, Result, small};

/// Largest row, in bytes.
pub const MAX_ROW: u64 = 16 << 20;

/// The wanted columns of a row, see [`cell`]; empty where there is none.
#[derive(Clone, Debug)]
pub struct Row {
    /// The line of the file on which it begins, from 1.
    pub line: u64,
    /// Its cells.
    pub cells: [String; cell::ALL],
}

/// Reads rows in order.
pub struct Rows {
    path: PathBuf,
    format: Format,
    /// Records of a row that was read.
    pending: VecDeque<Row>,
    has_cases: bool,
    unique: bool,
    strict: bool,
    /// Rows that were left out because their group already has a record with their criterion, or that have no case; and
    /// cases that cannot be used.
    pub left_out: usize,
}

enum Format {
    Csv(Box<CsvRows>),
    Jsonl(Box<JsonlRows>),
}

/// The groups and criteria of all records so far.
pub type Seen = HashSet<[String; 2]>;

impl Rows {
    /// Opens a .csv or .jsonl file. Errors: 2 for other names; 66; 65 for a missing column.
    pub fn open(path: &Path, columns: &Columns) -> Result<Self> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
        let format = match ending.to_ascii_lowercase().as_str() {
            "csv" => Format::Csv(Box::new(CsvRows::open(path, columns)?)),
            "jsonl" | "ndjson" => Format::Jsonl(Box::new(JsonlRows::open(path, columns)?)),
            _ => {
                return Err(Error::usage(format!(
                    "{}: texts are read from .csv and .jsonl files",
                    path.display()
                )));
            }
        };
        Ok(Self {
            path: path.into(),
            format,
            pending: VecDeque::new(),
            has_cases: columns.cases.is_some(),
            unique: columns.unique,
            strict: columns.strict,
            left_out: 0,
        })
    }

    /// The next record: a row, or a case of one. Errors: 65 with the line; 74.
    pub fn next(&mut self, seen: &Seen) -> Result<Option<Row>> {
        loop {
            if let Some(case) = self.pending.pop_front() {
                return Ok(Some(case));
            }
            let row = match &mut self.format {
                Format::Csv(rows) => rows.next()?,
                Format::Jsonl(rows) => rows.next()?,
            };
            let Some(row) = row else { return Ok(None) };
            if self.unique && seen.contains(&key(&row)) {
                self.left_out += 1;
                continue;
            }
            if !self.has_cases {
                return Ok(Some(row));
            }
            let line = row.line;
            let found = cases(&row).unwrap_or_else(|what| vec![Err(what)]);
            self.left_out += usize::from(found.is_empty());
            for case in found {
                match case {
                    Ok(case) => self.pending.push_back(case),
                    Err(what) if self.strict => return Err(at_line(&self.path, line, what)),
                    Err(_) => self.left_out += 1,
                }
            }
        }
    }

    /// Notes that a record is kept, so that no other row of its group has its criterion.
    pub fn keep(&self, row: &Row, seen: &mut Seen) {
        if self.unique {
            seen.insert(key(row));
        }
    }

    /// The BLAKE3 hash of the file, after the last row.
    pub fn hash(&self) -> String {
        match &self.format {
            Format::Csv(rows) => rows.hash(),
            Format::Jsonl(rows) => rows.hash(),
        }
    }
}

/// The group of a row and its criterion.
fn key(row: &Row) -> [String; 2] {
    [row.cells[cell::GROUP].clone(), row.cells[cell::CRITERION].clone()]
}

/// A file that is hashed while it is read.
pub struct HashedFile {
    file: File,
    hasher: blake3::Hasher,
}

impl HashedFile {
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { file: small::open(path)?, hasher: blake3::Hasher::new() })
    }

    /// The hash of what was read.
    pub fn hash(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }
}

impl Read for HashedFile {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

/// An error in a line of a file.
pub fn at_line(path: &Path, line: u64, what: impl std::fmt::Display) -> Error {
    Error::data(format!("{}: line {line}: {what}", path.display()))
}

/// Says that a column is missing.
pub fn no_column<'a>(name: &str, found: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = nearest(name, found.clone()).map(|near| format!("; did you mean {}?", quote(near)));
    let all: Vec<String> = found.map(quote).collect();
    format!("no column {}{}; there are {}", quote(name), near.unwrap_or_default(), all.join(", "))
}
