//! Creates NumPy files: one array, in C order, without coordinates or attributes.

use super::{Dataset, Header, TrajectoryOffsets};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tensor::Dtype;

/// Returns the header of a NumPy file (format 1.0) for an f32 array of shape `shape` in C order; the values follow it.
pub fn npy_header(shape: &[usize]) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    // The values begin at a multiple of 64 bytes.
    let padding = 64 - (10 + text.len() + 1) % 64;
    text.push_str(&" ".repeat(padding % 64));
    text.push('\n');
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes()].concat()
}

/// Creates the file with everything except the values, and returns the dataset to write these to.
pub(super) fn lay_out(path: &Path, header: &Header) -> io::Result<Vec<Dataset>> {
    let parts = header.parts();
    let [part] = &parts[..] else {
        return Err(io::Error::other("a NumPy file holds one array; choose .hdf5 or .safetensors"));
    };
    if header.dtype != Dtype::F32 {
        let what = format!("NumPy files are written as f32, not {}", header.dtype);
        return Err(io::Error::other(what));
    }
    let dims: Vec<usize> =
        part.axes.iter().map(|axis| header.shape.size(axis, part.channels.len())).collect();
    let head = npy_header(&dims);
    let file = File::create_new(path)?;
    file.write_all_at(&head, 0)?;
    file.set_len(head.len() as u64 + header.bytes())?;
    let place = TrajectoryOffsets::One(head.len() as u64);
    Ok(vec![Dataset { channels: part.channels.clone(), is_static: false, place }])
}
