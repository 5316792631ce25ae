//! Streams the rows of the user's files, so that files of any size can be read.

use super::answers::Cases;
use super::chat;
use super::chunks::Chunks;
use super::columns::{Columns, Wanted, cell};
use super::csv_rows::CsvRows;
use super::folder_rows::FolderRows;
use super::json_rows::JsonRows;
use super::remarks::is_no_group;
use serde_json::Value;
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use unix::config::nearest;
use unix::text::quote;
use unix::{Error, Result, small};

/// Maximum size of a row in bytes.
pub const MAX_ROW: u64 = 16 << 20;

/// The wanted columns of a row, see [`cell`]; cells of missing columns are empty.
#[derive(Clone, Debug)]
pub struct Row {
    /// The line of the file on which the row begins, from 1.
    pub line: u64,
    /// The cells.
    pub cells: [String; cell::ALL],
}

/// A file with rows, in the format given by its extension.
pub enum Table {
    /// .csv and .tsv.
    Csv(Box<CsvRows>),
    /// .json, .jsonl and .ndjson.
    Json(Box<JsonRows>),
    /// A folder of images with their texts.
    Folder(Box<FolderRows>),
}

impl Table {
    /// Opens a file; None for an unsupported extension. Errors: 66, 74; 65 for a missing column.
    pub fn open(path: &Path, wanted: Wanted) -> Result<Option<Self>> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
        if path.is_dir() {
            return Ok(Some(Self::Folder(Box::new(FolderRows::open(path)?))));
        }
        let csv = |delimiter: u8| Ok(Self::Csv(Box::new(CsvRows::open(path, delimiter, &wanted)?)));
        Ok(Some(match ending.to_ascii_lowercase().as_str() {
            "csv" => csv(b',')?,
            "tsv" => csv(b'\t')?,
            "json" | "jsonl" | "ndjson" => Self::Json(Box::new(JsonRows::open(path, wanted)?)),
            _ => return Ok(None),
        }))
    }

    /// Reads the next row. Errors: 65 with the line; 74.
    pub fn next(&mut self) -> Result<Option<Row>> {
        match self {
            Self::Csv(rows) => rows.next(),
            Self::Json(rows) => rows.next(),
            Self::Folder(rows) => rows.next(),
        }
    }

    fn hash(&self) -> String {
        match self {
            Self::Csv(rows) => rows.hash(),
            Self::Json(rows) => rows.hash(),
            Self::Folder(rows) => rows.hash(),
        }
    }
}

/// Reads records in order.
pub struct Rows {
    path: PathBuf,
    table: Table,
    /// Remaining records of the last row.
    pending: Option<Cases>,
    has_cases: bool,
    /// How texts are cut, and the remaining chunks of the last row.
    chunks: Option<Chunks>,
    rest: std::vec::IntoIter<Row>,
    /// Whether the first two cells of a row are a prompt and a completion.
    has_prompts: bool,
    /// Whether the prompt is about an image, and what it is where there is none.
    has_images: bool,
    instruction: String,
    unique: bool,
    strict: bool,
    /// Number of rows that were left out because their group already has a record with their criterion, or because they
    /// have no case, plus the number of unusable cases.
    pub left_out: usize,
}

/// The groups and criteria of all records so far.
pub type Seen = HashSet<[String; 2]>;

impl Rows {
    /// Opens a file. Errors: 2 for an unsupported extension; 66; 65 for a missing column.
    pub fn open(path: &Path, columns: &Columns, chunks: Option<Chunks>) -> Result<Self> {
        let table = Table::open(path, columns.into())?.ok_or_else(|| {
            Error::usage(format!(
                "{}: texts are read from .csv, .tsv, .jsonl, .ndjson and .json files, and from folders of images",
                path.display()
            ))
        })?;
        Ok(Self {
            path: path.into(),
            table,
            pending: None,
            has_cases: columns.cases.is_some(),
            chunks,
            rest: Vec::new().into_iter(),
            has_prompts: columns.completion.is_some(),
            has_images: columns.image.is_some(),
            instruction: columns.instruction.as_deref().unwrap_or(chat::INSTRUCTION).into(),
            unique: columns.unique,
            strict: columns.strict,
            left_out: 0,
        })
    }

    /// Reads the next record: a row, or a case or a chunk of one. Errors: 65 with the line; 74.
    pub fn next(&mut self, seen: &Seen) -> Result<Option<Row>> {
        loop {
            if let Some(cases) = &mut self.pending {
                let line = cases.line();
                match cases.next() {
                    Some(Ok(case)) => return Ok(Some(case)),
                    Some(Err(what)) => self.wrong_case(line, what)?,
                    None => self.pending = None,
                }
                continue;
            }
            if let Some(chunk) = self.rest.next() {
                return Ok(Some(chunk));
            }
            let Some(mut row) = self.table.next()? else { return Ok(None) };
            if self.has_prompts {
                let [prompt, completion] = [0, 1].map(|at| std::mem::take(&mut row.cells[at]));
                let image = std::mem::take(&mut row.cells[cell::IMAGE]);
                let messages = if self.has_images {
                    let is_folder = matches!(self.table, Table::Folder(_));
                    // A folder lists the pages of a file line by line.
                    let images = if is_folder { image.lines().collect() } else { vec![&image[..]] };
                    let question = match prompt.trim() {
                        "" => &self.instruction,
                        _ => &prompt,
                    };
                    vec![chat::about_images(&images, question), chat::answer(&completion)]
                } else {
                    chat::pair(&prompt, &completion)
                };
                row.cells[0] = Value::Array(messages).to_string();
            }
            if self.unique && key(&row).is_some_and(|key| seen.contains(&key)) {
                self.left_out += 1;
                continue;
            }
            if let Some(chunks) = self.chunks {
                self.rest = chunks.rows(row, &self.path).into_iter();
                continue;
            }
            if !self.has_cases {
                return Ok(Some(row));
            }
            let line = row.line;
            match Cases::of(row) {
                Ok(cases) => {
                    self.left_out += usize::from(cases.is_empty());
                    self.pending = Some(cases);
                }
                Err(what) => self.wrong_case(line, what)?,
            }
        }
    }

    /// Images without an answer, answers without an image, and other files, of a folder of images.
    pub fn unpaired(&self) -> [usize; 3] {
        match &self.table {
            Table::Folder(rows) => rows.unpaired,
            Table::Csv(_) | Table::Json(_) => [0; 3],
        }
    }

    fn wrong_case(&mut self, line: u64, what: String) -> Result<()> {
        if self.strict {
            return Err(at_line(&self.path, line, what));
        }
        self.left_out += 1;
        Ok(())
    }

    /// Registers a record that is kept, so that later rows of its group with the same criterion are left out.
    pub fn keep(&self, row: &Row, seen: &mut Seen) {
        if self.unique {
            seen.extend(key(row));
        }
    }

    /// Returns the BLAKE3 hash of the file, after the last row.
    pub fn hash(&self) -> String {
        self.table.hash()
    }
}

/// Returns the group of a row and its criterion; None without a group.
fn key(row: &Row) -> Option<[String; 2]> {
    let [group, criterion] = [cell::GROUP, cell::CRITERION].map(|cell| &row.cells[cell]);
    (!is_no_group(group)).then(|| [group.clone(), criterion.clone()])
}

/// A file that is hashed while it is read.
pub struct HashedFile {
    file: Box<dyn Read>,
    hasher: blake3::Hasher,
}

impl HashedFile {
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self::new(small::open(path)?))
    }

    pub fn new(file: impl Read + 'static) -> Self {
        Self { file: Box::new(file), hasher: blake3::Hasher::new() }
    }

    /// Returns the hash of the bytes read so far.
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

/// Returns an error about a line of a file.
pub fn at_line(path: &Path, line: u64, what: impl std::fmt::Display) -> Error {
    Error::data(format!("{}: line {line}: {what}", path.display()))
}

/// Formats the message for a missing column.
pub fn no_column<'a>(name: &str, found: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = nearest(name, found.clone()).map(|near| format!("; did you mean {}?", quote(near)));
    let all: Vec<String> = found.map(quote).collect();
    format!(
        "no column {}{}; the columns are: {}",
        quote(name),
        near.unwrap_or_default(),
        all.join(", ")
    )
}
