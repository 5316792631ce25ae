//! Rust bindings of the emulator's runtime.

use super::MOST_SHARED;
use crate::dtype::Dtype;
use crate::kernel::{Arg, Grid, Source, Value};
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use unix::{Error, Exit, Result};

// Defined in launch.cpp and memory.cpp.
unsafe extern "C" {
    fn emulator_allocate(bytes: usize) -> *mut c_void;
    fn emulator_free(pointer: *mut c_void) -> bool;
    fn emulator_holds(pointer: *const c_void, bytes: usize) -> bool;
    fn emulator_launch(
        source: *const c_char,
        element: *const c_char,
        kernel: *const c_char,
        grid: *const c_uint,
        block: *const c_uint,
        shared: c_uint,
        most_shared: c_uint,
        hopper: bool,
        arguments: *const u64,
        kinds: *const u8,
        count: c_uint,
        seed: u64,
        message: *mut c_char,
        message_bytes: usize,
    ) -> c_int;
}

/// Succeeds: this build has the emulator.
pub fn require() -> Result<()> {
    Ok(())
}

/// Allocates exactly `bytes` bytes, filled with 0xFF, which is NaN in every float dtype.
pub(crate) fn allocate(bytes: usize) -> Result<u64> {
    // SAFETY: any size may be requested.
    match unsafe { emulator_allocate(bytes) } {
        pointer if pointer.is_null() => {
            Err(Error::new(Exit::Failure, format!("the host cannot allocate {bytes} bytes")))
        }
        pointer => Ok(pointer as u64),
    }
}

pub(crate) fn free(address: u64) {
    // SAFETY: the runtime looks up the address and ignores an unknown address.
    unsafe { emulator_free(address as *mut c_void) };
}

/// Checks that a range lies inside one allocation. Errors: some of the bytes do not.
fn check(address: u64, bytes: usize) -> Result<()> {
    // SAFETY: the runtime looks up the address and reads nothing there.
    if bytes == 0 || unsafe { emulator_holds(address as *const c_void, bytes) } {
        return Ok(());
    }
    Err(Error::bug(format!("a copy of {bytes} bytes outside of the emulator's memory")))
}

pub(crate) fn copy_in(to: u64, from: &[u8]) -> Result<()> {
    check(to, from.len())?;
    // SAFETY: `to` has room, as just checked, and is not memory that Rust manages.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
    Ok(())
}

pub(crate) fn copy_out(to: &mut [u8], from: u64) -> Result<()> {
    check(from, to.len())?;
    // SAFETY: as in `copy_in`; every bit pattern is a valid `u8`.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
    Ok(())
}

pub(crate) fn copy(to: u64, from: u64, bytes: usize) -> Result<()> {
    check(to, bytes)?;
    check(from, bytes)?;
    // SAFETY: both ranges have `bytes` bytes, as just checked.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    Ok(())
}

pub(crate) fn zero(address: u64, bytes: usize) -> Result<()> {
    check(address, bytes)?;
    // SAFETY: as in `copy_in`.
    unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes) };
    Ok(())
}

thread_local! {
    static CHOSEN: Cell<Option<u64>> = const { Cell::new(None) };
    /// Name, and shared memory per block in bytes.
    static ARCHITECTURE: Cell<(&'static str, usize)> = const { Cell::new(("sm_90a", 227 << 10)) };
}

/// Makes this thread's later kernels use the limits of an architecture listed in [`MOST_SHARED`] instead of sm_90a.
/// Errors: the architecture is not listed.
pub fn set_architecture(name: &str) -> Result<()> {
    let found = MOST_SHARED.iter().find(|(known, _)| *known == name);
    let known = || MOST_SHARED.map(|(known, _)| known).join(", ");
    let unknown =
        || Error::usage(format!("the emulator knows no architecture {name}, only {}", known()));
    ARCHITECTURE.set(*found.ok_or_else(unknown)?);
    Ok(())
}

/// Maximum shared memory per block in bytes.
pub(crate) fn most_shared() -> usize {
    ARCHITECTURE.get().1
}

/// Whether Hopper instructions are available.
pub(crate) fn has_warpgroups() -> bool {
    ARCHITECTURE.get().0 == "sm_90a"
}

/// Sets the order of lanes and blocks in this thread's later kernels, as in [`run`].
pub fn set_order(order: u64) {
    CHOSEN.set(Some(order));
}

/// Returns the order that was set, or else the value of LONGHAUL_EMULATOR_ORDER; 0 by default.
fn order() -> u64 {
    if let Some(order) = CHOSEN.get() {
        return order;
    }
    static ORDER: OnceLock<u64> = OnceLock::new();
    let read = || std::env::var("LONGHAUL_EMULATOR_ORDER").ok()?.parse().ok();
    *ORDER.get_or_init(|| read().unwrap_or(0))
}

pub(crate) fn launch(
    source: &'static Source,
    element: Dtype,
    kernel: &'static str,
    grid: Grid,
    args: &[Value],
) -> Result<()> {
    run_values(source.name, element, kernel, grid, args, order())
}

/// Runs a kernel in a given order of lanes and blocks: 0 is forward, 1 is backward, any other number seeds a
/// pseudo-random order. Errors: a check failed; the message names source, kernel, block and thread.
pub fn run(
    source: &str,
    element: Dtype,
    kernel: &str,
    grid: Grid,
    args: &[Arg],
    order: u64,
) -> Result<()> {
    let values: Vec<Value> = args.iter().map(Arg::value).collect();
    run_values(source, element, kernel, grid, &values, order)
}

fn run_values(
    source: &str,
    element: Dtype,
    kernel: &str,
    grid: Grid,
    args: &[Value],
    order: u64,
) -> Result<()> {
    let text = |s: &str| {
        CString::new(s).map_err(|_| Error::bug(format!("name contains a NUL byte: {s:?}")))
    };
    let (source, kernel, element) = (text(source)?, text(kernel)?, text(&element.to_string())?);
    let word = |arg: &Value| match arg {
        Value::TensorMap(map) => &raw const *map as u64,
        number => number.bits(),
    };
    let bits: Vec<u64> = args.iter().map(word).collect();
    let kinds: Vec<u8> = args.iter().map(|a| a.kind()).collect();
    let mut message = [0 as c_char; 4096];
    // SAFETY: strings are NUL-terminated, slices have the given lengths, and tensor maps do not move while `args` is
    // borrowed. The runtime lets the kernel access only memory from emulator_allocate, to which there are no Rust
    // references.
    let failed = unsafe {
        emulator_launch(
            source.as_ptr(),
            element.as_ptr(),
            kernel.as_ptr(),
            grid.blocks.as_ptr(),
            grid.threads.as_ptr(),
            grid.shared,
            most_shared() as c_uint,
            has_warpgroups(),
            bits.as_ptr(),
            kinds.as_ptr(),
            args.len() as c_uint,
            order,
            message.as_mut_ptr(),
            message.len(),
        )
    };
    if failed == 0 {
        return Ok(());
    }
    // SAFETY: the runtime NUL-terminates its message inside the buffer.
    let words = unsafe { CStr::from_ptr(message.as_ptr()) };
    Err(Error::bug(words.to_string_lossy()))
}

/// Returns the address of a tensor's memory, for tests that store it in another tensor.
pub fn address(tensor: &crate::Tensor) -> u64 {
    tensor.address()
}
