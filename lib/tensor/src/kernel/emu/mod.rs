//! The emulator of a GPU.

use super::{Grid, Source, Value};
use crate::dtype::Dtype;
use unix::{Error, Result};

/// Errors: this build has no emulator.
pub fn available() -> Result<()> {
    Err(Error::usage("this build has no emulator (feature emu)"))
}

pub(super) fn allocate(_bytes: usize) -> Result<u64> {
    available().map(|()| 0)
}

pub(super) fn free(_address: u64) {}

pub(super) fn copy_in(_to: u64, _from: &[u8]) -> Result<()> {
    available()
}

pub(super) fn copy_out(_to: &mut [u8], _from: u64) -> Result<()> {
    available()
}

pub(super) fn copy(_to: u64, _from: u64, _bytes: usize) -> Result<()> {
    available()
}

pub(super) fn zero(_address: u64, _bytes: usize) -> Result<()> {
    available()
}

pub(super) fn launch(
    _source: &'static Source,
    _element: Dtype,
    _kernel: &'static str,
    _grid: Grid,
    _args: &[Value],
) -> Result<()> {
    available()
}
