//! Weights that bitsandbytes quantised to 4 bits.

use super::{TensorEntry, WeightFile, row_major};
use crate::params::{NF4_BITS, Quantised, Storage, Value, check, groups, layout};
use tensor::{Dtype, FileDtype};
use unix::text::quote;
use unix::{Context, Error, Result};

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

    /// Reads a matrix in the form `form`. One that is dense and in row-major order is converted in parts, so that it does
    /// not take memory in two forms; others are read as a whole. Errors: also 65 when it is to be quantised and not finite.
    pub fn read_as(&self, stored: &TensorEntry, form: Storage) -> Result<Value> {
        let value = match self.parts(stored) {
            Some((dtype, parts)) => Value::from_parts(&stored.shape, dtype, form, parts),
            None => self.read_stored(stored)?.stored_as(form),
        };
        value.context(|| format!("{}: {}", self.path.display(), stored.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{PART, open, write};
    use tensor::Tensor;

    /// What is converted in parts is what is converted as a whole.
    #[test]
    fn matrices_are_converted_in_parts() {
        let shape = [PART / 1000 + 1, 1003];
        let values = |i: usize| (i as f32 * 0.37).sin() * (1.0 + (i % 4099) as f32);
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(values).collect();
        let matrix = Tensor::from_slice(&values, &shape);
        assert!(matrix.len() > PART && !(matrix.len() % PART).is_multiple_of(64));
        let folder = tempfile::tempdir().unwrap();
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::F64] {
            let path = folder.path().join(format!("{dtype}.safetensors"));
            let mut matrix = matrix.to_dtype(dtype);
            let save = |matrix: &Tensor| write(&path, &[("a.weight".into(), matrix.clone())]);
            save(&matrix).unwrap();
            for form in [Storage::Nf4, Storage::Bf16] {
                let file = open(&path).unwrap();
                let found = file.read_as(&file.tensors()[0], form).unwrap();
                let whole = file.read_stored(&file.tensors()[0]).unwrap();
                let whole = whole.stored_as(form).unwrap();
                let bytes = |value: Value| match value {
                    Value::Dense(tensor) => vec![tensor.as_bytes().to_vec()],
                    Value::Nf4(weight) => {
                        let entries = weight.entries("a").into_iter();
                        entries.map(|(_, tensor)| tensor.as_bytes().to_vec()).collect()
                    }
                };
                assert!(bytes(found) == bytes(whole), "{dtype} {form:?}");
            }
            tensor::with_element!(dtype, T => {
                *matrix.write::<T>().last_mut().unwrap() = tensor::Element::of(f64::NAN);
            });
            std::fs::remove_file(&path).unwrap();
            save(&matrix).unwrap();
            let file = open(&path).unwrap();
            let error = file.read_as(&file.tensors()[0], Storage::Nf4).unwrap_err();
            let expected = format!("{}: a.weight: some values are not finite", path.display());
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
