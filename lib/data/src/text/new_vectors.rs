//! New vectors: the rows of an array, or one on each line: a JSON array, or an object with `vector` and, if it has one,
//! `id`.

use super::lines::LineReader;
use super::rows::{HashedFile, at_line};
use super::vectors::{VectorOptions, Vectors};
use crate::records::file_and_name;
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};
use unix::publish::hash_file;
use unix::{Error, Result};

/// Extensions of files that are read as arrays.
const ARRAYS: [&str; 6] = ["npy", "npz", "safetensors", "h5", "hdf5", "hdf"];

/// Reads new vectors in order.
pub struct NewVectors {
    path: PathBuf,
    dimension: usize,
    input: Input,
}

enum Input {
    Lines(Box<LineReader>),
    /// An array, and the row that is read next.
    Rows(Vectors, usize),
}

/// A new vector.
#[derive(Clone, Debug, PartialEq)]
pub struct NewVector {
    /// The line of a text file, from 1.
    pub line: Option<u64>,
    /// The row of an array, from 0.
    pub row: Option<u64>,
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

impl NewVectors {
    /// Opens a file of vectors with `dimension` values each: an array [N, D] or [D] in a .npy, .npz, .safetensors or HDF5
    /// file, FILE:NAME if it has several, or else lines; `-` is lines of stdin.
    ///
    /// Errors: 66; 65 for arrays of other shapes or with values that are not finite; 2 for a file with several arrays.
    pub fn open(path: &Path, dimension: usize) -> Result<Self> {
        let (file, _) = file_and_name(path);
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if !ARRAYS.contains(&ending.to_ascii_lowercase().as_str()) {
            let file = match path.as_os_str() == "-" {
                true => HashedFile::new(io::stdin()),
                false => HashedFile::open(path)?,
            };
            let input = Input::Lines(Box::new(LineReader::new(path, file)));
            return Ok(Self { path: path.into(), dimension, input });
        }
        let options = VectorOptions { files: vec![path.into()], ..VectorOptions::default() };
        let vectors = Vectors::open(&options)?.ok_or_else(|| Error::bug("no vectors"))?;
        if vectors.length() != dimension {
            return Err(Error::data(format!(
                "{}: vectors of {} values, but the model reads {dimension}",
                path.display(),
                vectors.length()
            )));
        }
        Ok(Self { path: path.into(), dimension, input: Input::Rows(vectors, 0) })
    }

    /// The BLAKE3 hash of the file, with the name of the array; None for stdin.
    pub fn hash(&self) -> Result<Option<String>> {
        match &self.input {
            Input::Lines(_) if self.path.as_os_str() == "-" => Ok(None),
            Input::Lines(_) => hash_file(&self.path).map(Some),
            Input::Rows(vectors, _) => {
                let name = file_and_name(&self.path).1.unwrap_or_default();
                Ok(vectors.sources.first().map(|source| format!("{} {name}", source.blake3)))
            }
        }
    }

    /// Reads the next vector. Errors: 65 with the line, for anything else than finite numbers in the right number; 74.
    pub fn read(&mut self) -> Result<Option<NewVector>> {
        let lines = match &mut self.input {
            Input::Lines(lines) => lines,
            Input::Rows(vectors, next) => {
                if *next == vectors.rows() {
                    return Ok(None);
                }
                let mut vector = vec![0.0; self.dimension];
                vectors.read(*next, &mut vector)?;
                let row = Some(*next as u64);
                *next += 1;
                return Ok(Some(NewVector { line: None, row, id: None, vector }));
            }
        };
        let Some(text) = lines.next()? else { return Ok(None) };
        let found: serde_json::Result<Line> = serde_json::from_str(text);
        let line = lines.line;
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
        Ok(Some(NewVector { line: Some(line), row: None, id, vector }))
    }
}
