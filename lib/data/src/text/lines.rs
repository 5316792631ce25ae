//! Reads lines of text files. All code that reads texts by line uses this module.
//!
//! Only the line ending (LF or CR LF) and a byte order mark at the beginning of the file are removed. Spaces, other
//! control characters and the Unicode normalisation form are kept.

use super::rows::{HashedFile, MAX_ROW, at_line};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use unix::{Error, Result};

pub const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Reads a file by line or by byte.
pub struct LineReader {
    path: PathBuf,
    reader: BufReader<HashedFile>,
    /// Line number of the last line or byte that was read, from 1.
    pub line: u64,
    buffer: Vec<u8>,
}

impl LineReader {
    pub fn new(path: &Path, file: HashedFile) -> Self {
        Self { path: path.into(), reader: BufReader::new(file), line: 0, buffer: Vec::new() }
    }

    /// Reads the next line. Errors: 65 with the line; 74.
    pub fn next(&mut self) -> Result<Option<&str>> {
        self.buffer.clear();
        // The byte order mark does not count towards the size of the row.
        let mut limited = (&mut self.reader).take(MAX_ROW + 1 + BYTE_ORDER_MARK.len() as u64);
        let read = limited.read_until(b'\n', &mut self.buffer);
        if read.map_err(|cause| Error::io(&self.path, cause))? == 0 {
            return Ok(None);
        }
        self.line += 1;
        let mut text = &self.buffer[..];
        if self.line == 1 {
            text = text.strip_prefix(&BYTE_ORDER_MARK).unwrap_or(text);
        }
        if let Some(rest) = text.strip_suffix(b"\n") {
            text = rest.strip_suffix(b"\r").unwrap_or(rest);
        }
        if text.len() as u64 > MAX_ROW {
            return Err(self.too_long());
        }
        let text = std::str::from_utf8(text).map_err(|_| self.invalid_utf8(self.line))?;
        Ok(Some(text))
    }

    /// Returns the first byte that is neither white space nor part of a byte order mark, without consuming it;
    /// [`next_byte`](Self::next_byte) reads it. Must be called before anything is read. Counts the lines before it.
    pub fn first_byte(&mut self) -> Result<Option<u8>> {
        let mut mark = &BYTE_ORDER_MARK[..];
        while let Some(byte) = self.peek()? {
            match (byte, mark) {
                (byte, [first, rest @ ..]) if byte == *first => mark = rest,
                (b' ' | b'\t' | b'\r' | b'\n', _) => {
                    self.line += u64::from(byte == b'\n');
                    mark = &[];
                }
                _ => return Ok(Some(byte)),
            }
            self.reader.consume(1);
        }
        Ok(None)
    }

    fn peek(&mut self) -> Result<Option<u8>> {
        let buffer = self.reader.fill_buf().map_err(|cause| Error::io(&self.path, cause))?;
        Ok(buffer.first().copied())
    }

    /// Reads the next byte and counts line ends. Errors: 74.
    pub fn next_byte(&mut self) -> Result<Option<u8>> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            self.reader.consume(1);
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    /// Returns an error about a row that begins on `line`.
    pub fn wrong(&self, line: u64, what: impl std::fmt::Display) -> Error {
        at_line(&self.path, line, what)
    }

    pub fn too_long(&self) -> Error {
        self.wrong(self.line, format!("more than {} MiB, the limit", MAX_ROW >> 20))
    }

    pub fn invalid_utf8(&self, line: u64) -> Error {
        self.wrong(line, "not valid UTF-8; convert the file")
    }

    /// Returns the hash of the bytes read so far.
    pub fn hash(&self) -> String {
        self.reader.get_ref().hash()
    }
}
