//! Weights that bitsandbytes quantised to 4 bits.

use super::{TensorEntry, WeightFile, row_major};
use crate::params::{NF4_BITS, Quantised, Value, check, groups, layout};
use tensor::{Dtype, FileDtype};
use unix::text::quote;
use unix::{Error, Result};

/// Maximum size of the description of a weight in bytes.
const MAX_STATE: usize = 1 << 16;

/// The tensors of a quantised weight.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pieces {
    state: TensorEntry,
    pieces: Vec<TensorEntry>,
}

/// Replaces the tensors of each quantised weight of a file by the matrix that they stand for. Errors: 65 when one of them
/// is missing or does not fit.
pub(super) fn grouped(mut file: WeightFile) -> Result<WeightFile> {
    let path = file.path.display().to_string();
    let bad = |what: String| Error::data(format!("{path}: {what}"));
    let (found, rest) = groups(file.tensors.iter().map(|t| t.name.as_str())).map_err(bad)?;
    if found.is_empty() {
        return Ok(file);
    }
    let mut tensors: Vec<TensorEntry> = rest.iter().map(|at| file.tensors[*at].clone()).collect();
    for group in found {
        let bad = |what: String| bad(what.replace('*', &quote(&group.name)));
        let state = file.tensors[group.state].clone();
        if state.dtype != FileDtype::U8 || state.shape.iter().product::<usize>() > MAX_STATE {
            return Err(bad(format!("{} is no description of a 4-bit weight", quote(&state.name))));
        }
        let layout = layout(file.read(&state, Dtype::U8)?.as_bytes()).map_err(bad)?;
        let pieces: Vec<TensorEntry> =
            group.pieces.iter().map(|at| file.tensors[*at].clone()).collect();
        let form = |piece: &TensorEntry| match piece.dtype.dtype() {
            Some(dtype) => Ok(dtype),
            None => Err(bad(format!("{} has dtype {}", quote(&piece.name), piece.dtype))),
        };
        let dtypes = pieces.iter().map(form).collect::<Result<Vec<Dtype>>>()?;
        let forms = pieces.iter().map(|piece| &piece.shape[..]).zip(dtypes);
        check(&layout, forms).map_err(bad)?;
        tensors.push(TensorEntry {
            name: group.name,
            dtype: layout.dtype.into(),
            shape: layout.shape.to_vec(),
            strides: row_major(&layout.shape),
            start: 0,
            part: 0,
            quantised: Some(Box::new(Pieces { state, pieces })),
        });
    }
    file.tensors = tensors;
    Ok(file)
}

impl TensorEntry {
    /// Bits of an element in the form in which it is stored.
    pub(crate) fn bits(&self) -> f64 {
        match &self.quantised {
            Some(_) => NF4_BITS,
            None => 8.0 * self.dtype.bytes().min(4) as f64,
        }
    }
}

impl WeightFile {
    /// Reads a tensor of this file in the form in which it is stored, in row-major order. Errors: 65 when it does not fit
    /// into memory, has a dtype that tensors do not have, or is a damaged quantised weight; 74 when reading fails.
    pub fn read_stored(&self, stored: &TensorEntry) -> Result<Value> {
        let Some(own) = &stored.quantised else {
            // Other dtypes, such as those with the bytes swapped, become f32.
            let dtype =
                stored.dtype.dtype().filter(|dtype| dtype.is_float() && *dtype != Dtype::F64);
            return self.read(stored, dtype.unwrap_or(Dtype::F32)).map(Value::Dense);
        };
        let read = |piece: &TensorEntry| {
            let dtype = piece.dtype.dtype().unwrap_or(Dtype::F32); // already checked
            self.read(piece, dtype)
        };
        let pieces = own.pieces.iter().map(read).collect::<Result<_>>()?;
        let weight = Quantised::new(read(&own.state)?, pieces);
        weight.map(Value::Nf4).map_err(|what| {
            let what = what.replace('*', &quote(&stored.name));
            Error::data(format!("{}: {what}", self.path.display()))
        })
    }
}
