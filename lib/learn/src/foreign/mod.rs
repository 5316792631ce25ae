//! Weight files written by other programs: safetensors, PyTorch's `.pt` and `.bin`, and Hugging Face transformers'
//! index for tensors sharded over several such files. Weights that bitsandbytes quantised to 4 bits appear as the
//! matrices that they stand for.
//!
//! The files are untrusted. [`open`] reads only the names, shapes and positions of the tensors. Values are read one
//! tensor at a time on request, so that a file with bogus sizes costs no memory. Pickles are parsed but never executed;
//! see `pickle`.

mod layout;
mod names;
mod pickle;
mod quantised;
mod sharded;
mod torch;
mod write;

pub(crate) use layout::assemble;
pub use layout::{ForeignModel, Layout, Piece};
pub use names::{NameMap, Named};
pub use write::{write, write_shards};

use quantised::Pieces;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tensor::safetensors::{self, Header, MAX_NAME, MAX_RANK};
use tensor::{Dtype, FileDtype, Tensor, with_element};
use unix::text::quote;
use unix::{Error, Result, retry};

/// Files of weights in a folder of transformers, by preference.
const WEIGHTS: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];
/// Elements of a part of a tensor that is converted while it is read.
const PART: usize = 1 << 20;
/// Maximum number of tensors in a file.
const MAX_TENSORS: usize = 100_000;

/// Description of a tensor in a weight file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    /// Tensor name; the keys of nested containers are joined with dots.
    pub name: String,
    /// Dtype in the file; of a quantised matrix, that of its values.
    pub dtype: FileDtype,
    /// Shape.
    pub shape: Vec<usize>,
    /// Stride of each axis, in elements.
    strides: Vec<usize>,
    /// Byte offset of the first element in the file.
    start: u64,
    /// Index of the file that holds the tensor, if there are several.
    part: usize,
    /// The tensors of a quantised matrix.
    quantised: Option<Box<Pieces>>,
}

/// An open weight file.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    parts: Vec<WeightShard>,
    tensors: Vec<TensorEntry>,
}

/// One of the files that make up a weight file.
#[derive(Debug)]
struct WeightShard {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// Returns the file of weights, or the index of several, in a folder of transformers. Errors: 66 when there is none.
pub fn folder_weights(folder: &Path) -> Result<PathBuf> {
    let found = WEIGHTS.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        Error::open(folder, format!("it has neither {} nor {}", WEIGHTS[0], WEIGHTS[2]))
    })
}

/// Opens a weight file and reads its list of tensors. The format is detected from the first bytes; a file whose name
/// ends in `.index.json` lists several files in the same folder.
///
/// Errors: 66 when it cannot be opened; 65 when it is neither a safetensors nor a PyTorch file, is damaged, or contains
/// anything other than tensors and plain containers; the message names the offending content.
pub fn open(path: &Path) -> Result<WeightFile> {
    if path.to_string_lossy().ends_with(sharded::ENDING) {
        return sharded::open(path);
    }
    let (part, tensors) = open_part(path)?;
    quantised::grouped(WeightFile { path: path.into(), parts: vec![part], tensors })
}

/// Opens a single file; its tensors have part number 0.
fn open_part(path: &Path) -> Result<(WeightShard, Vec<TensorEntry>)> {
    let found = std::fs::metadata(path).map_err(|cause| Error::open(path, cause))?;
    if !found.is_file() {
        return Err(Error::open(path, "not a regular file; expected a .safetensors or .pt file"));
    }
    let mut file = File::open(path).map_err(|cause| Error::open(path, cause))?;
    let bytes = found.len();
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    let mut first = [0; 8];
    if bytes < 8 {
        return Err(bad(format!("not a weight file, it has only {bytes} bytes")));
    }
    file.read_exact(&mut first).map_err(|cause| Error::io(path, cause))?;
    let tensors = match first {
        [b'P', b'K', 3, 4, ..] => torch::tensors(&file),
        [0x80, 2..=5, ..] => Err("a bare pickle as written by PyTorch before 1.6: load it there \
                                and save it with a newer version"
            .into()),
        _ => safetensors(&file),
    };
    let tensors = tensors.map_err(bad)?;
    let part = WeightShard { path: path.into(), file, bytes };
    tensors.iter().try_for_each(|tensor| part.check(tensor)).map_err(bad)?;
    Ok((part, tensors))
}

impl WeightFile {
    /// Path of the file, or of the index of a sharded model.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tensors in file order.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// The dtype that a dense tensor is read as, and its consecutive parts [elements] in its own dtype. None: its elements
    /// are not in row-major order, or not numbers of a floating-point dtype of tensors. Errors: 74 when reading fails.
    fn parts(&self, stored: &TensorEntry) -> Option<(Dtype, impl Iterator<Item = Result<Tensor>>)> {
        let is_dense = stored.quantised.is_none();
        let dtype = stored.dtype.dtype().filter(|dtype| dtype.is_float() && is_dense)?;
        let part = self.parts.get(stored.part)?;
        if stored.strides != row_major(&stored.shape) || part.check(stored).is_err() {
            return None;
        }
        let count: usize = stored.shape.iter().product();
        let parts = (0..count).step_by(PART).map(move |at| {
            let mut tensor = Tensor::empty(&[PART.min(count - at)], dtype);
            let start = stored.start + (at * dtype.bytes()) as u64;
            part.read_at(tensor.as_bytes_mut(), start).map(|()| tensor)
        });
        Some((if dtype == Dtype::F64 { Dtype::F32 } else { dtype }, parts))
    }

    /// Reads a tensor of this file in row-major order, converted to `dtype`. Errors: 65 when it does not fit into
    /// memory, 74 when reading fails.
    pub fn read(&self, stored: &TensorEntry, dtype: Dtype) -> Result<Tensor> {
        if stored.quantised.is_some() {
            return Ok(self.read_stored(stored)?.dense(dtype));
        }
        let part =
            self.parts.get(stored.part).ok_or_else(|| Error::bug("a tensor of another file"))?;
        part.check(stored).map_err(Error::data)?;
        let what = format!("{}: tensor {}", part.path.display(), stored.name);
        let count: usize = stored.shape.iter().product();
        // The file already has the memory layout of the result; this program supports only little-endian machines.
        if stored.dtype.dtype() == Some(dtype) && stored.strides == row_major(&stored.shape) {
            unix::memory::ensure(&what, Some((count * dtype.bytes()) as u64))?;
            let mut tensor = Tensor::empty(&stored.shape, dtype);
            part.read_at(tensor.as_bytes_mut(), stored.start)?;
            return Ok(tensor);
        }
        let span = span(&stored.shape, &stored.strides).unwrap_or(0) as usize; // already checked
        let bytes = span * stored.dtype.bytes();
        unix::memory::ensure(&what, Some((bytes + count * dtype.bytes()) as u64))?;
        let mut bytes = vec![0; bytes];
        part.read_at(&mut bytes, stored.start)?;
        let mut tensor = Tensor::zeros(&stored.shape, dtype);
        let offsets = Offsets { stored, index: vec![0; stored.shape.len()], at: 0 };
        let value = |at: usize| stored.dtype.read(&bytes[at * stored.dtype.bytes()..]);
        with_element!(dtype, T => {
            let elements = tensor.write::<T>().iter_mut().zip(offsets.take(count));
            elements.for_each(|(out, at)| *out = tensor::Element::of(value(at)));
        });
        Ok(tensor)
    }
}

impl WeightShard {
    /// Fills `out` from the offset `at` on. Errors: 74.
    fn read_at(&self, out: &mut [u8], at: u64) -> Result<()> {
        let read = retry::reading(&self.path, || self.file.read_exact_at(out, at));
        read.map_err(|cause| Error::io(&self.path, cause))
    }

    /// Checks that a tensor lies within the file and takes at most twice the size of the file, because a stride of 0
    /// expands one element to any number.
    fn check(&self, tensor: &TensorEntry) -> Result<(), String> {
        let name = quote(&tensor.name);
        let rank = tensor.shape.len();
        let bad_name = tensor.name.len() > MAX_NAME || tensor.name.contains('\0');
        if bad_name || rank > MAX_RANK || tensor.strides.len() != rank {
            return Err(format!("tensor \"{name}\" of rank {rank}: name or rank is not supported"));
        }
        let count = tensor.shape.iter().try_fold(1u128, |n, axis| n.checked_mul(*axis as u128));
        let width = tensor.dtype.bytes() as u128;
        let bytes = span(&tensor.shape, &tensor.strides).and_then(|span| span.checked_mul(width));
        let end = bytes.and_then(|bytes| bytes.checked_add(u128::from(tensor.start)));
        if count.is_none() || end.is_none_or(|end| end > u128::from(self.bytes)) {
            return Err(format!(
                "tensor {name} {:?} extends beyond the end of the file",
                tensor.shape
            ));
        }
        let bytes = count.and_then(|count| count.checked_mul(width));
        if bytes.is_none_or(|bytes| bytes > 2 * u128::from(self.bytes)) {
            return Err(format!(
                "tensor {name} {:?} has more elements than the file has room for",
                tensor.shape
            ));
        }
        Ok(())
    }
}

/// Lists the tensors of a safetensors file. The error describes what is wrong with the file.
fn safetensors(file: &File) -> Result<Vec<TensorEntry>, String> {
    let header = Header::read(file)
        .map_err(|cause| format!("neither safetensors nor a PyTorch file: {cause}"))?;
    if header.entries.len() > MAX_TENSORS {
        return Err(format!("more than {MAX_TENSORS} tensors"));
    }
    // TensorFlow and Flax store matrices transposed and under different names.
    if let Some(format) = header.metadata.get("format").filter(|f| ["tf", "flax"].contains(&&***f))
    {
        return Err(format!("its weights are those of {format}; save them with PyTorch"));
    }
    let entry = |entry: safetensors::Entry| TensorEntry {
        strides: row_major(&entry.shape),
        name: entry.name,
        dtype: entry.dtype,
        shape: entry.shape,
        start: entry.start,
        part: 0,
        quantised: None,
    };
    Ok(header.entries.into_iter().map(entry).collect())
}

/// Number of storage elements from the first to the last element of a tensor, inclusive; None on overflow.
fn span(shape: &[usize], strides: &[usize]) -> Option<u128> {
    let first = u128::from(!shape.contains(&0));
    shape.iter().zip(strides).filter(|_| first == 1).try_fold(first, |span, (n, stride)| {
        span.checked_add((*n as u128 - 1).checked_mul(*stride as u128)?)
    })
}

/// Infinite iterator over the storage offsets of the elements of a tensor in row-major order.
struct Offsets<'a> {
    stored: &'a TensorEntry,
    index: Vec<usize>,
    at: usize,
}

impl Iterator for Offsets<'_> {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        let at = self.at;
        for axis in (0..self.index.len()).rev() {
            self.index[axis] += 1;
            self.at += self.stored.strides[axis];
            if self.index[axis] < self.stored.shape[axis] {
                break;
            }
            self.at -= self.index[axis] * self.stored.strides[axis];
            self.index[axis] = 0;
        }
        Some(at)
    }
}

/// Strides of a row-major tensor.
fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}
