//! New records, for which a model predicts labels and answers: table rows or lines.

use super::columns::{Columns, Wanted, cell};
use super::json_rows::cells_of;
use super::lines::LineReader;
use super::rows::{HashedFile, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;
use std::path::Path;
use unix::{Error, Result};

/// A new record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewText {
    /// The line of the input on which it begins, from 1.
    pub line: u64,
    /// Identifies it in the output.
    pub id: Option<String>,
    /// The text, or the question about the context.
    pub text: Option<String>,
    /// The second text of a pair.
    pub text2: Option<String>,
    /// The context of an answer.
    pub context: Option<String>,
}

/// The parts of a record that a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// A text, or a question about the context.
    pub text: bool,
    /// A second text.
    pub text2: bool,
    /// A context.
    pub context: bool,
}

/// Default names of columns and of keys in JSON objects.
const NAMES: [&str; 3] = ["text", "text2", "context"];
/// Cells of these columns.
const CELLS: [usize; 3] = [0, 1, cell::CONTEXT];

impl Needs {
    fn of(self) -> [bool; 3] {
        [self.text, self.text2, self.context]
    }

    /// Returns the columns with these names, or with the names in columns.yaml. Errors: 78 if columns.yaml does not
    /// name one of them.
    fn wanted(self, columns: Option<&Columns>) -> Result<Wanted> {
        let mut wanted = Wanted { optional: &[cell::ID], every_line: true, ..Wanted::default() };
        for ((name, cell), needed) in NAMES.iter().zip(CELLS).zip(self.of()) {
            let given = columns.map_or(Some(*name), |columns| columns.names()[cell]);
            wanted.names[cell] = match (needed, given) {
                (false, _) => None,
                (true, Some(name)) => Some(name.to_string()),
                (true, None) => {
                    let what = format!("{name}: the columns name none, but the model reads one");
                    return Err(Error::config(what));
                }
            };
        }
        let id = columns.map_or(Some("id"), |columns| columns.names()[cell::ID]);
        wanted.names[cell::ID] = id.map(String::from);
        Ok(wanted)
    }

    /// Parses a line: a JSON object with these keys, or else plain text, which is the text, or the context for a model
    /// without texts. Errors: the parts that the model reads, if the line has different ones.
    fn cells(
        self,
        line: &str,
        wanted: &Wanted,
    ) -> std::result::Result<[String; cell::ALL], String> {
        let keys: [&str; 3] =
            std::array::from_fn(|i| wanted.names[CELLS[i]].as_deref().unwrap_or(NAMES[i]));
        let object =
            line.starts_with('{').then(|| serde_json::from_str::<Map<String, Value>>(line));
        let object = object.and_then(std::result::Result::ok).unwrap_or_else(|| {
            let name = if self.text { keys[0] } else { keys[2] };
            Map::from_iter([(name.to_string(), line.into())])
        });
        let has = keys.map(|key| object.contains_key(key));
        if has == self.of() {
            return cells_of(&object, wanted);
        }
        let names = |which: [bool; 3]| {
            let own = keys.iter().zip(which).filter(|(_, own)| *own);
            let own: Vec<String> = own.map(|(name, _)| format!("`{name}`")).collect();
            if own.is_empty() { "neither".into() } else { own.join(" and ") }
        };
        Err(format!("the model reads {}, but the line has {}", names(self.of()), names(has)))
    }
}

/// Reads new records in order.
pub struct NewTexts {
    source: Source,
    needs: Needs,
    wanted: Wanted,
}

enum Source {
    Table(Table),
    Lines(Box<LineReader>),
}

impl NewTexts {
    /// Opens a table in any format that can be imported, by file extension; its columns are named as in `columns`, or
    /// have the default names. Other files have one record per line; `-` is stdin. Errors: 66, 74; 65 for a missing
    /// column.
    pub fn open(path: &Path, needs: Needs, columns: Option<&Columns>) -> Result<Self> {
        let wanted = needs.wanted(columns)?;
        let lines = |file| Source::Lines(Box::new(LineReader::new(path, file)));
        let source = match path.as_os_str() == "-" {
            true => lines(HashedFile::new(io::stdin())),
            false => match Table::open(path, wanted.clone())? {
                Some(table) => Source::Table(table),
                None => lines(HashedFile::open(path)?),
            },
        };
        Ok(Self { source, needs, wanted })
    }

    /// Reads the next record. Errors: 65 with the line; 74.
    pub fn read(&mut self) -> Result<Option<NewText>> {
        let (line, cells) = match &mut self.source {
            Source::Table(table) => match table.next()? {
                None => return Ok(None),
                Some(row) => (row.line, row.cells),
            },
            Source::Lines(lines) => {
                let Some(text) = lines.next()? else { return Ok(None) };
                let cells = self.needs.cells(text, &self.wanted);
                (lines.line, cells.map_err(|what| lines.wrong(lines.line, what))?)
            }
        };
        let [text, text2, context] = self.needs.of();
        let own = |cell: usize, is_there: bool| is_there.then(|| cells[cell].clone());
        Ok(Some(NewText {
            line,
            id: Some(cells[cell::ID].clone()).filter(|id| !id.is_empty()),
            text: own(CELLS[0], text),
            text2: own(CELLS[1], text2),
            context: own(CELLS[2], context),
        }))
    }
}
