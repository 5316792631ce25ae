//! New vectors, one on each line: a JSON array, or an object with `vector` and, if it has one, `id`.

use super::lines::LineReader;
use super::rows::{HashedFile, at_line};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};
use unix::Result;

/// Reads new vectors in order.
pub struct VectorLines {
    path: PathBuf,
    lines: LineReader,
    dimension: usize,
}

/// A new vector.
#[derive(Clone, Debug, PartialEq)]
pub struct NewVector {
    /// The line of the input, from 1.
    pub line: u64,
    /// Identifies it in the output.
    pub id: Option<String>,
    /// Its values.
    pub vector: Vec<f32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Array(Vec<f32>),
    Object {
        vector: Vec<f32>,
        #[serde(default)]
        id: Option<Id>,
    },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Text(String),
    Number(serde_json::Number),
}

impl VectorLines {
    /// Opens a file of vectors with `dimension` values each; `-` is stdin. Errors: 66.
    pub fn open(path: &Path, dimension: usize) -> Result<Self> {
        let file = match path.as_os_str() == "-" {
            true => HashedFile::new(io::stdin()),
            false => HashedFile::open(path)?,
        };
        Ok(Self { path: path.into(), lines: LineReader::new(path, file), dimension })
    }

    /// Reads the next vector. Errors: 65 with the line, for anything else than finite numbers in the right number; 74.
    pub fn read(&mut self) -> Result<Option<NewVector>> {
        let Some(text) = self.lines.next()? else { return Ok(None) };
        let found: serde_json::Result<Line> = serde_json::from_str(text);
        let line = self.lines.line;
        let wrong = |what: String| at_line(&self.path, line, what);
        let (id, vector) = match found {
            Ok(Line::Array(vector)) => (None, vector),
            Ok(Line::Object { vector, id }) => (id, vector),
            Err(_) => {
                let what = "neither a JSON array of numbers nor an object with `vector`";
                return Err(wrong(what.into()));
            }
        };
        if vector.len() != self.dimension {
            let (found, wanted) = (vector.len(), self.dimension);
            return Err(wrong(format!(
                "the vector has {found} values, but the model reads {wanted}"
            )));
        }
        if let Some(at) = vector.iter().position(|x| !x.is_finite()) {
            return Err(wrong(format!("value {at} of the vector is not finite")));
        }
        let id = id.map(|id| match id {
            Id::Text(text) => text,
            Id::Number(number) => number.to_string(),
        });
        Ok(Some(NewVector { line, id, vector }))
    }
}
