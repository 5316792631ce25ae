//! Finds the CUDA driver and describes its errors.

use cudarc::driver::sys::{self, CUresult};
use std::ffi::CStr;
use std::ffi::c_int;
use std::sync::OnceLock;
use unix::{Error, Exit, Result};

/// CUDA 12.0 in the driver's numbering: the oldest version whose drivers run code compiled by NVRTC 12 and 13.
const OLDEST: c_int = 12000;

/// Returns the version of the driver, e.g. 12040; initializes the driver once per process. Errors: there is no driver,
/// it is too old, or it finds no GPU.
pub(super) fn version() -> Result<c_int> {
    static VERSION: OnceLock<Result<c_int, String>> = OnceLock::new();
    let version = VERSION.get_or_init(initialize);
    version.clone().map_err(|why| Error::new(Exit::Failure, why))
}

fn initialize() -> Result<c_int, String> {
    // Checked first, because every driver function panics without the library.
    // SAFETY: only the driver's own initializers run on opening it.
    if !unsafe { sys::is_culib_present() } {
        return Err("no GPU: this machine has no CUDA driver (libcuda.so.1); \
                    use a node with GPUs, or --device cpu"
            .into());
    }
    let mut version = 0;
    // SAFETY: writes to the integer, and may be called before cuInit.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    if result == CUresult::CUDA_SUCCESS && version < OLDEST {
        return Err(format!(
            "the CUDA driver supports CUDA {}, but {} or newer is required; update the driver, or use --device cpu",
            dotted(version),
            dotted(OLDEST)
        ));
    }
    // SAFETY: may be called from any thread, any number of times.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(version),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(format!(
            "no GPU: the CUDA driver finds none{}; in a job, ask for one (sbatch --gres=gpu:1), or use --device cpu",
            visible()
        )),
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            Err("no GPU: libcuda.so is the stub of the CUDA toolkit, not the driver; \
                 remove its folder from LD_LIBRARY_PATH"
                .into())
        }
        result => Err(format!(
            "the CUDA driver {} failed to initialize: {}",
            dotted(version),
            words(result)
        )),
    }
}

/// Returns the value of CUDA_VISIBLE_DEVICES, for messages.
pub(super) fn visible() -> String {
    std::env::var("CUDA_VISIBLE_DEVICES")
        .map_or_else(|_| String::new(), |list| format!(" (CUDA_VISIBLE_DEVICES={list})"))
}

/// Formats a version in the usual notation, e.g. 12.4.
pub(super) fn dotted(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Turns a driver result into an error that says what was attempted.
pub(super) fn check(result: CUresult, what: impl FnOnce() -> String) -> Result<()> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        result => {
            Err(Error::new(Exit::Failure, format!("{}: {}{}", what(), words(result), hint(result))))
        }
    }
}

/// Returns the name and description of a driver result.
pub(super) fn words(result: CUresult) -> String {
    let (mut name, mut meaning) = (std::ptr::null(), std::ptr::null());
    // SAFETY: both write a pointer to a static string, or null.
    unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut meaning);
        match (name.is_null(), meaning.is_null()) {
            (false, false) => format!(
                "{} ({})",
                CStr::from_ptr(meaning).to_string_lossy(),
                CStr::from_ptr(name).to_string_lossy()
            ),
            _ => format!("CUDA driver error {}", result as u32),
        }
    }
}

/// Returns advice for certain errors, e.g. errors that may come from an earlier kernel.
fn hint(result: CUresult) -> &'static str {
    match result {
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT => {
            "; an earlier kernel may be the cause: set CUDA_LAUNCH_BLOCKING=1 to find which"
        }
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE => {
            "; the memory of this GPU is faulty; use another node"
        }
        _ => "",
    }
}
