//! Results on stdout: JSON lines with `--json`, otherwise an aligned table.
//!
//! All output to stdout goes through this module, so that closing the pipe (`ckpt list | head -1`) ends the program
//! silently: the write returns an error without a message, which [`cli::main`](crate::cli::main) turns into status 0.
//! Non-finite numbers become `null` in JSON and `-` in a table.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::cli::Output;
use crate::table::Table;
use crate::{Error, Exit, Result, text};

/// Writes results as JSON lines or as a table.
pub struct Out<W: Write = io::Stdout> {
    json: bool,
    sink: W,
    table: Table,
}

impl Out {
    /// Creates a writer to stdout in the format chosen on the command line.
    pub fn stdout(output: Output) -> Self {
        Self::new(output, io::stdout())
    }
}

impl<W: Write> Out<W> {
    /// Creates a writer to any sink.
    pub fn new(output: Output, sink: W) -> Self {
        Self { json: output.json, sink, table: Table::default() }
    }

    /// Whether the output is JSON lines.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Writes one of several records: at once as a JSON line, or as a row of the table that [`finish`](Self::finish)
    /// writes. The columns are the record's fields.
    pub fn row(&mut self, record: &impl Serialize) -> Result<()> {
        let fields = fields(record)?;
        if self.json {
            return self.json_line(&Value::Object(fields));
        }
        self.table.push(fields);
        Ok(())
    }

    /// Writes a single result: the record as a JSON line, or `shown` as text, with its line breaks.
    pub fn item(&mut self, record: &impl Serialize, shown: impl Display) -> Result<()> {
        if self.json {
            let value = Value::Object(fields(record)?);
            return self.json_line(&value);
        }
        self.raw((text::lines(&shown.to_string()) + "\n").as_bytes())
    }

    /// Writes bytes without any conversion (an exported file, a configuration).
    pub fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.sink.write_all(bytes).and_then(|()| self.sink.flush());
        written.map_err(stdout_error)
    }

    /// Writes one row per record, then finishes.
    pub fn rows<R: Serialize>(mut self, records: impl IntoIterator<Item = R>) -> Result<Exit> {
        records.into_iter().try_for_each(|record| self.row(&record))?;
        self.finish()
    }

    /// Writes the table collected by [`row`](Self::row), or nothing with `--json`. Returns the status of success.
    pub fn finish(mut self) -> Result<Exit> {
        let text = std::mem::take(&mut self.table).render();
        self.raw(text.as_bytes()).map(|()| Exit::Done)
    }

    fn json_line(&mut self, value: &Value) -> Result<()> {
        self.raw((text::json(value)? + "\n").as_bytes())
    }
}

fn fields(record: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(record) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(other) => Err(Error::bug(format!("a result is not a JSON object: {other}"))),
        Err(cause) => Err(Error::bug(format!("a result cannot be written as JSON: {cause}"))),
    }
}

pub(crate) fn stdout_error(cause: io::Error) -> Error {
    if cause.kind() == ErrorKind::BrokenPipe {
        Error::new(Exit::Done, "")
    } else {
        Error::new(Exit::Io, format!("cannot write to standard output: {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_lines_keep_the_order_of_fields() {
        let mut bytes = Vec::new();
        let mut out = Out::new(Output { json: true }, &mut bytes);
        out.row(&json!({"step": 1, "loss": 0.5})).unwrap();
        out.item(&json!({"b": f64::NAN, "a": "x"}), "unused").unwrap();
        out.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text, "{\"step\":1,\"loss\":0.5}\n{\"b\":null,\"a\":\"x\"}\n");
    }

    #[test]
    fn a_reader_that_went_away_is_a_silent_end() {
        let mut out = Out::new(Output { json: true }, Gone);
        let error = out.row(&json!({"a": 1})).unwrap_err();
        assert_eq!((error.exit, error.to_string().as_str()), (Exit::Done, ""));
    }

    #[test]
    fn a_full_disk_is_an_error_with_words() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = Out::new(Output { json: true }, full).row(&json!({"a": 1})).unwrap_err();
        assert_eq!(error.exit, Exit::Io);
        assert!(error.to_string().contains("standard output"), "{error}");
    }
}
