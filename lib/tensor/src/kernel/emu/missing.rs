//! Stubs for a build without the emulator.

use crate::dtype::Dtype;
use crate::kernel::{Grid, Source, Value};
use unix::{Error, Result};

/// Fails. Errors: this build has no emulator.
pub fn require() -> Result<()> {
    Err(Error::usage("this build has no emulator (feature emu)"))
}

/// Does nothing without the emulator.
pub fn set_order(_order: u64) {}

/// Fails. Errors: this build has no emulator.
pub fn set_architecture(_name: &str) -> Result<()> {
    require()
}

pub(crate) fn most_shared() -> usize {
    usize::MAX
}

pub(crate) fn has_warpgroups() -> bool {
    false
}

pub(crate) fn allocate(_bytes: usize) -> Result<u64> {
    require().map(|()| 0)
}

pub(crate) fn free(_address: u64) {}

pub(crate) fn copy_in(_to: u64, _from: &[u8]) -> Result<()> {
    require()
}

pub(crate) fn copy_out(_to: &mut [u8], _from: u64) -> Result<()> {
    require()
}

pub(crate) fn copy(_to: u64, _from: u64, _bytes: usize) -> Result<()> {
    require()
}

pub(crate) fn zero(_address: u64, _bytes: usize) -> Result<()> {
    require()
}

pub(crate) fn launch(
    _source: &'static Source,
    _element: Dtype,
    _kernel: &'static str,
    _grid: Grid,
    _args: &[Value],
) -> Result<()> {
    require()
}
