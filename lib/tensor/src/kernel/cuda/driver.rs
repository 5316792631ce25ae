//! The CUDA driver: whether it is there, and what its errors mean.

use cudarc::driver::sys::{self, CUresult};
use std::ffi::CStr;
use std::ffi::c_int;
use std::sync::OnceLock;
use unix::{Error, Exit, Result};

/// CUDA 12.0, as the driver counts: the first whose drivers run what NVRTC 12 and 13 make.
const OLDEST: c_int = 12000;

/// The version of the driver, initialised once a process, e.g. 12040. Errors: there is no driver, it is
/// too old, it finds no GPU.
pub(super) fn version() -> Result<c_int> {
    static VERSION: OnceLock<Result<c_int, String>> = OnceLock::new();
    let version = VERSION.get_or_init(initialise);
    version.clone().map_err(|why| Error::new(Exit::Failure, why))
}

fn initialise() -> Result<c_int, String> {
    // First of all: without the library every function of the driver panics.
    // SAFETY: what runs on opening it is the driver's own.
    if !unsafe { sys::is_culib_present() } {
        return Err("no GPU: this machine has no CUDA driver (libcuda.so.1); \
                    --device cpu computes without, or use a node with GPUs"
            .into());
    }
    let mut version = 0;
    // SAFETY: it writes to the integer, and may be called first.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    if result == CUresult::CUDA_SUCCESS && version < OLDEST {
        return Err(format!(
            "the CUDA driver is of CUDA {}, and {} or newer is needed: ask for a newer driver, or use --device cpu",
            dotted(version),
            dotted(OLDEST)
        ));
    }
    // SAFETY: any thread may call it, any number of times.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(version),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(format!(
            "no GPU: the CUDA driver finds none{}; in a job, ask for one (sbatch --gres=gpu:1), or use --device cpu",
            visible()
        )),
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            Err("no GPU: the libcuda.so that is found is the toolkit's stub, not the driver's; \
                 take its folder out of LD_LIBRARY_PATH"
                .into())
        }
        result => {
            Err(format!("the CUDA driver {} does not start: {}", dotted(version), words(result)))
        }
    }
}

/// What hides GPUs, for messages.
pub(super) fn visible() -> String {
    std::env::var("CUDA_VISIBLE_DEVICES")
        .map_or_else(|_| String::new(), |list| format!(" (CUDA_VISIBLE_DEVICES={list})"))
}

/// A version as people write it.
pub(super) fn dotted(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// An error of the driver: `what` was asked of it.
pub(super) fn check(result: CUresult, what: impl FnOnce() -> String) -> Result<()> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        result => {
            Err(Error::new(Exit::Failure, format!("{}: {}{}", what(), words(result), hint(result))))
        }
    }
}

/// Name and meaning.
pub(super) fn words(result: CUresult) -> String {
    let (mut name, mut meaning) = (std::ptr::null(), std::ptr::null());
    // SAFETY: both write a pointer to a string that is never freed, or null.
    unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut meaning);
        match (name.is_null(), meaning.is_null()) {
            (false, false) => format!(
                "{} ({})",
                CStr::from_ptr(meaning).to_string_lossy(),
                CStr::from_ptr(name).to_string_lossy()
            ),
            _ => format!("error {} of the CUDA driver", result as u32),
        }
    }
}

/// What helps against errors that come from a kernel launched earlier.
fn hint(result: CUresult) -> &'static str {
    match result {
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT => {
            "; an earlier kernel may be the cause: CUDA_LAUNCH_BLOCKING=1 in the environment tells which"
        }
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE => {
            "; the memory of this GPU is bad: use another node"
        }
        _ => "",
    }
}
