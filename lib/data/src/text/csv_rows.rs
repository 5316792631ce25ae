//! CSV files (RFC 4180), and TSV files with the same grammar: quoted fields may contain separators, line breaks and
//! doubled quotes.
//!
//! The crate `csv` accepts misplaced quotes and rows of any size. [`Checked`] parses the same grammar ahead of it and
//! refuses both, naming the line.

use super::columns::{Wanted, cell};
use super::lines::BYTE_ORDER_MARK;
use super::rows::{HashedFile, MAX_ROW, Row, at_line, no_column};
use csv::ByteRecord;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use unix::{Error, Result};

/// Reads a CSV file with a header row.
pub struct CsvRows {
    path: PathBuf,
    reader: csv::Reader<Checked>,
    record: ByteRecord,
    /// Index of each wanted column.
    places: [Option<usize>; cell::ALL],
    /// Number of columns.
    width: usize,
}

impl CsvRows {
    /// Reads the header. Errors: 66; 65 for an empty file, or a column that is missing or duplicated.
    pub fn open(path: &Path, delimiter: u8, wanted: &Wanted) -> Result<Self> {
        let checked = Checked::new(HashedFile::open(path)?, delimiter);
        let mut builder = csv::ReaderBuilder::new();
        let builder = builder.has_headers(false).flexible(true).delimiter(delimiter);
        let reader = builder.from_reader(checked);
        let mut rows = Self {
            path: path.into(),
            reader,
            record: ByteRecord::new(),
            places: [None; cell::ALL],
            width: 0,
        };
        let Some(line) = rows.read()? else {
            return Err(Error::data(format!("{}: the file is empty", path.display())));
        };
        let names = (0..rows.record.len()).map(|place| rows.cell(place, line));
        let names = names.collect::<Result<Vec<String>>>()?;
        rows.width = names.len();
        for (number, (place, name)) in rows.places.iter_mut().zip(&wanted.names).enumerate() {
            let Some(name) = name else { continue };
            let mut found = (0..names.len()).filter(|i| names[*i] == *name);
            *place = found.next();
            if place.is_none() && !wanted.optional.contains(&number) {
                return Err(at_line(path, line, no_column(name, names.iter().map(String::as_str))));
            }
            if found.next().is_some() {
                return Err(at_line(path, line, format!("two columns are named `{name}`")));
            }
        }
        Ok(rows)
    }

    /// Reads the next record and returns its line.
    fn read(&mut self) -> Result<Option<u64>> {
        let read = self.reader.read_byte_record(&mut self.record);
        let read = read.map_err(|cause| match cause.into_kind() {
            csv::ErrorKind::Io(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                Error::data(format!("{}: {cause}", self.path.display()))
            }
            csv::ErrorKind::Io(cause) => Error::io(&self.path, cause),
            other => Error::data(format!("{}: {other:?}", self.path.display())),
        })?;
        if !read {
            return Ok(None);
        }
        let line = self.reader.get_mut().lines.pop_front();
        line.map(Some).ok_or_else(|| Error::bug("a CSV record without a line"))
    }

    /// Returns the text of a cell of the record that begins on `line`. Errors: 65 for invalid UTF-8.
    fn cell(&self, place: usize, line: u64) -> Result<String> {
        let bytes = &self.record[place];
        let text = std::str::from_utf8(bytes).map_err(|cause| {
            let before = (0..place).map(|other| &self.record[other]);
            let breaks = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            let line =
                line + before.map(breaks).sum::<u64>() + breaks(&bytes[..cause.valid_up_to()]);
            let column = place + 1;
            at_line(&self.path, line, format!("column {column}: not valid UTF-8; convert the file"))
        })?;
        Ok(text.into())
    }

    /// Reads the next row. Errors: 65 with the line; 74.
    pub fn next(&mut self) -> Result<Option<Row>> {
        let Some(line) = self.read()? else { return Ok(None) };
        let (width, found) = (self.width, self.record.len());
        if found != width {
            let what = format!("{found} fields, but the header has {width}");
            return Err(at_line(&self.path, line, what));
        }
        let mut cells: [String; cell::ALL] = Default::default();
        for (cell, place) in cells.iter_mut().zip(self.places) {
            if let Some(place) = place {
                *cell = self.cell(place, line)?;
            }
        }
        Ok(Some(Row { line, cells }))
    }

    /// Returns the hash of the bytes read so far.
    pub fn hash(&self) -> String {
        self.reader.get_ref().file.hash()
    }
}

/// Parser state before the next byte.
#[derive(Clone, Copy)]
enum State {
    /// Before a record; empty lines are skipped.
    Start,
    /// At the beginning of a field.
    Field,
    /// In a field without quotes.
    Plain,
    /// In quotes.
    Quoted,
    /// After a quote in a quoted field: either the end of the field or the first of a doubled quote.
    Quote,
}

/// Checks quotes and the size of records, and counts lines.
struct Checked {
    file: HashedFile,
    delimiter: u8,
    state: State,
    /// The line of the next byte, from 1.
    line: u64,
    /// Bytes read.
    position: u64,
    /// Byte offset at which the record begins.
    begin: u64,
    /// The line of the opening quote.
    quote: u64,
    /// The first line of each record that was not yet returned.
    lines: VecDeque<u64>,
}

impl Checked {
    fn new(file: HashedFile, delimiter: u8) -> Self {
        let lines = VecDeque::new();
        Self {
            file,
            delimiter,
            state: State::Start,
            line: 1,
            position: 0,
            begin: 0,
            quote: 0,
            lines,
        }
    }

    /// Advances the state by one byte. Errors: the problem, with the line.
    fn step(&mut self, byte: u8) -> std::result::Result<(), String> {
        let at = self.position;
        self.position += 1;
        if at < 3 && self.lines.is_empty() && byte == BYTE_ORDER_MARK[at as usize] {
            return Ok(());
        }
        if let (State::Start, false) = (self.state, matches!(byte, b'\r' | b'\n')) {
            self.lines.push_back(self.line);
            (self.begin, self.state) = (at, State::Field);
        }
        self.state = match (self.state, byte) {
            (State::Field, b'"') => {
                self.quote = self.line;
                State::Quoted
            }
            (State::Plain, b'"') => {
                let line = self.line;
                return Err(format!(
                    "line {line}: a quote in a field that does not begin with one; put the field in quotes and double \
                     those inside"
                ));
            }
            (State::Quoted, b'"') => State::Quote,
            (State::Quote, b'"') | (State::Quoted, _) => State::Quoted,
            (_, b'\r' | b'\n') => State::Start,
            (_, byte) if byte == self.delimiter => State::Field,
            (State::Quote, _) => {
                return Err(format!(
                    "line {}: text after the quote that ends a field, which begins on line {}; double quotes inside fields",
                    self.line, self.quote
                ));
            }
            (State::Start | State::Field | State::Plain, _) => State::Plain,
        };
        self.line += u64::from(byte == b'\n');
        if at - self.begin >= MAX_ROW {
            let (first, quote) = (self.lines.back().copied().unwrap_or(1), self.quote);
            let remedy = match self.state {
                State::Quoted => {
                    format!("; is the quote missing that ends the field of line {quote}?")
                }
                _ => String::new(),
            };
            return Err(format!(
                "line {first}: the row has more than {} MiB, the limit{remedy}",
                MAX_ROW >> 20
            ));
        }
        Ok(())
    }
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        for byte in &buffer[..read] {
            self.step(*byte).map_err(wrong)?;
        }
        if read == 0 && matches!(self.state, State::Quoted) {
            let quote = self.quote;
            return Err(wrong(format!(
                "line {quote}: the quote that begins a field is never closed"
            )));
        }
        Ok(read)
    }
}
