//! Requests to the HDF5 library and its answers, as sent through a pipe: two lengths, the message in JSON, then numbers
//! in native byte order.

use super::super::packing::Packing;
use bytemuck::Pod;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::{self, Read, Write};
use std::ops::Range;
use tensor::FileDtype;

/// A request about a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HelperRequest {
    /// Number of the open file; the same path may be open several times.
    pub file: u64,
    /// The path as bytes.
    pub path: Vec<u8>,
    pub ask: Ask,
}

/// The object to which an attribute belongs: the root (`None`), or the group or dataset of that name.
pub(super) type Object = Option<String>;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Answered by `()`, as is `Close`.
    Open,
    Close,
    /// Names at the root: `Vec<String>`.
    Names,
    /// Description of an object that is not a readable dataset: `String`.
    Kind(String),
    /// Shape of a dataset: `Option<Vec<usize>>`.
    Shape(String),
    /// All values of a dataset, unpacked: `()`, and the values as f64.
    Numbers(String, Packing),
    /// Storage of a dataset: [`Dataset`].
    Dataset(String),
    /// Part of a dataset, unpacked: `Option<u64>`, the bits as f64 of a value too large for f32, and the values as f32.
    Part(String, Vec<Range<usize>>, Packing),
    /// Attributes of an object: `Map<String, Value>`; non-finite values are null.
    Attributes(Object),
    /// Groups that hold `data`: `Vec<String>`.
    Groups,
}

/// The answer: the type documented at [`Ask`], or an error message.
pub(super) type Reply = Result<serde_json::Value, String>;

/// Storage of a dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Dataset {
    pub shape: Vec<usize>,
    /// Offset of the first byte and dtype, for a contiguous dataset that needs no conversion.
    pub mapped: Option<(u64, FileDtype)>,
    /// Size of a value in bytes.
    pub size: usize,
    /// Stored size in bytes.
    pub stored: u64,
    pub chunk: Option<Vec<usize>>,
    /// Whether chunks pass through filters, such as compression.
    pub is_compressed: bool,
    /// Chunks that were never written.
    pub unwritten: Option<Unwritten>,
    pub attributes: Map<String, Value>,
    /// The fill value, if the writer chose one.
    pub fill: Option<f64>,
    pub is_integer: bool,
}

/// Number of missing chunks, total number of chunks, and the index of the first value in the first missing chunk, if
/// known.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Unwritten {
    pub missing: usize,
    pub of: usize,
    pub first: Option<Vec<usize>>,
}

/// Writes a message and the numbers that belong to it.
pub(super) fn send(
    to: &mut impl Write,
    message: &impl Serialize,
    numbers: &[u8],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let lengths = [text.len() as u64, numbers.len() as u64].map(u64::to_le_bytes);
    to.write_all(&[&lengths.concat(), &text[..]].concat())?;
    to.write_all(numbers)?;
    to.flush()
}

/// Reads a message and its numbers; `None` at the end of the pipe.
pub(super) fn receive<M: DeserializeOwned, T: Pod>(
    from: &mut impl Read,
) -> io::Result<Option<(M, Vec<T>)>> {
    let mut lengths = [[0; 8]; 2];
    match from.read_exact(lengths.as_flattened_mut()) {
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let [text, numbers] = lengths.map(|length| u64::from_le_bytes(length) as usize);
    let mut message = vec![0; text];
    from.read_exact(&mut message)?;
    let mut values = vec![T::zeroed(); numbers / size_of::<T>()];
    from.read_exact(bytemuck::cast_slice_mut(&mut values))?;
    Ok(Some((serde_json::from_slice(&message)?, values)))
}
