//! GPUs, through the CUDA driver, which is loaded at run time so that one program runs on machines with and without
//! GPUs.
//!
//! All work of a GPU goes into one stream and is executed in the order of submission. Only copies from and to the host
//! (`copy`) and the work of other libraries on side streams (`side_stream`) run concurrently, ordered by events.
//! Handles live as long as the process. None of this may be used after `fork`.

mod async_copy;
mod copy;
mod driver;
mod graph;
mod launch;
mod side_stream;
#[cfg(test)]
mod tests;

pub(crate) use async_copy::AsyncCopy;
pub use graph::{Capture, Graph};
pub use side_stream::{Event, SideStream};

use super::compile;
use async_copy::Slot;
use copy::{DeviceToHost, HostToDevice};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUstream};
use driver::check;
use launch::Functions;
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock, PoisonError};
use unix::{Error, Exit, Result};

/// Maximum number of GPUs, more than any machine has.
const MOST: usize = 64;
/// Minimum compute capability, as in `compile`.
const OLDEST: (c_int, c_int) = (8, 0);

/// A GPU: its context, its streams and the kernels loaded so far.
#[derive(Debug)]
pub struct Gpu {
    number: u32,
    name: String,
    architecture: String,
    /// CUDA version of the driver, e.g. 12040.
    driver: c_int,
    /// Maximum bytes of shared memory per block.
    shared: u32,
    multiprocessors: u32,
    context: CUcontext,
    /// The stream for all kernels.
    stream: CUstream,
    functions: Functions,
    upload: Mutex<Option<HostToDevice>>,
    download: Mutex<Option<DeviceToHost>>,
    slots: Mutex<Vec<Slot>>,
    /// Whether launches are being recorded.
    capturing: AtomicBool,
}

// SAFETY: driver handles may be used from any thread; each use makes the context current first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver does its own locking, and our own state is behind locks.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the GPU with this index, once per process. Errors: the driver is missing or too old; the GPU is missing or
    /// too old.
    pub fn open(number: u32) -> Result<&'static Gpu> {
        static OPEN: [OnceLock<&'static Gpu>; MOST] = [const { OnceLock::new() }; MOST];
        static OPENING: Mutex<()> = Mutex::new(());
        let place = OPEN.get(number as usize);
        if let Some(gpu) = place.and_then(OnceLock::get) {
            return Ok(gpu);
        }
        let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = place.and_then(OnceLock::get) {
            return Ok(gpu);
        }
        let gpu = Self::new(number)?;
        match place {
            Some(place) => Ok(place.get_or_init(|| Box::leak(Box::new(gpu)))),
            None => Err(Error::new(
                Exit::Failure,
                format!("cuda:{number}: at most {MOST} GPUs are supported"),
            )),
        }
    }

    /// Number of GPUs visible to this process. Errors: there is no driver.
    pub fn count() -> Result<u32> {
        driver::version()?;
        let mut count = 0;
        // SAFETY: the driver is initialized; writes to the integer.
        check(unsafe { sys::cuDeviceGetCount(&mut count) }, || "counting GPUs".into())?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn new(number: u32) -> Result<Gpu> {
        let driver = driver::version()?;
        let asked = |what: &str| format!("cuda:{number}: {what}");
        let mut count = 0;
        // SAFETY: the driver is initialized; writes to the integer.
        check(unsafe { sys::cuDeviceGetCount(&mut count) }, || asked("counting GPUs"))?;
        let ordinal = c_int::try_from(number).ok().filter(|n| *n < count).ok_or_else(|| {
            let visible = driver::visible();
            let message = format!("no cuda:{number}: visible GPUs: {count}{visible}");
            Error::new(Exit::Failure, message)
        })?;
        let mut device = 0;
        // SAFETY: an ordinal below the count.
        check(unsafe { sys::cuDeviceGet(&mut device, ordinal) }, || asked("finding it"))?;
        let name = name(device).map_err(|why| why.context(asked("its name")))?;
        let get = |what| attribute(device, what).map_err(|why| why.context(asked(&name)));
        let major = get(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = get(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let shared =
            get(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let multiprocessors = get(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        if (major, minor) < OLDEST {
            let (a, b) = OLDEST;
            return Err(Error::new(
                Exit::Failure,
                format!(
                    "cuda:{number}, {name}, has compute capability {major}.{minor}, but {a}.{b} or newer is required: \
                     use another, or --device cpu"
                ),
            ));
        }
        let of = |number: c_int| u32::try_from(number).unwrap_or(0);
        let mut context = ptr::null_mut();
        let what = || format!("cuda:{number}, {name}: creating its context");
        // SAFETY: a device of the driver; the context is retained until the process ends.
        check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) }, what)?;
        // SAFETY: the context just retained.
        check(unsafe { sys::cuCtxSetCurrent(context) }, what)?;
        Ok(Gpu {
            number,
            name,
            architecture: compile::architecture(of(major), of(minor)),
            driver,
            shared: of(shared),
            multiprocessors: of(multiprocessors).max(1),
            context,
            stream: stream()?,
            functions: Functions::default(),
            upload: Mutex::new(None),
            download: Mutex::new(None),
            slots: Mutex::new(Vec::new()),
            capturing: AtomicBool::new(false),
        })
    }

    /// Name of the GPU, as reported by the driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Maximum shared memory per block in bytes.
    pub(crate) fn most_shared(&self) -> usize {
        self.shared as usize
    }

    pub(crate) fn multiprocessors(&self) -> usize {
        self.multiprocessors as usize
    }

    /// The architecture that kernels are compiled for, e.g. `sm_90a`, or `compute_90` for PTX.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Free and total bytes of GPU memory. Errors: an earlier kernel failed.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; writes to both numbers.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check(result, || self.with_device("querying its memory"))?;
        Ok((free, total))
    }

    /// Allocates memory aligned to 256 bytes. Errors: out of memory.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: a context is current; writes to the address.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) };
        check(result, || {
            let left = self.memory().map(|(free, total)| format!(", {free} of {total} are free"));
            self.with_device(&format!("allocating {bytes} bytes{}", left.unwrap_or_default()))
        })?;
        Ok(address)
    }

    /// Frees memory; waits for the work that uses it.
    pub(crate) fn free(&self, address: u64) {
        // An error here comes from an earlier kernel and is reported by the next call.
        if self.enter().is_ok() {
            // SAFETY: from `allocate`, and no longer used.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
    }

    /// Waits until all work is done. Errors: part of it failed.
    pub(crate) fn synchronise(&self) -> Result<()> {
        self.enter()?;
        // SAFETY: our stream.
        let result = unsafe { sys::cuStreamSynchronize(self.stream) };
        check(result, || self.with_device("waiting for kernels"))
    }

    /// Makes the context current on this thread, as driver functions require.
    fn enter(&self) -> Result<()> {
        // SAFETY: a context that is never released.
        check(unsafe { sys::cuCtxSetCurrent(self.context) }, || {
            self.with_device("setting its context")
        })
    }

    /// Prefixes an error message with the device.
    fn with_device(&self, what: &str) -> String {
        format!("cuda:{}: {what}", self.number)
    }
}

fn name(device: CUdevice) -> Result<String> {
    let mut bytes = [0; 256];
    // SAFETY: the buffer has the given length, and the result is NUL-terminated.
    let result = unsafe { sys::cuDeviceGetName(bytes.as_mut_ptr(), 255, device) };
    check(result, || "cuDeviceGetName".into())?;
    // SAFETY: as above; the last byte is 0 in any case.
    Ok(unsafe { CStr::from_ptr(bytes.as_ptr()) }.to_string_lossy().into_owned())
}

fn attribute(device: CUdevice, which: CUdevice_attribute) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: a device of the driver; writes to the integer.
    let result = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
    check(result, || "cuDeviceGetAttribute".into())?;
    Ok(value)
}

/// Creates a non-blocking stream with normal priority, which does not synchronize with the default stream. A context
/// must be current.
fn stream() -> Result<CUstream> {
    stream_of_priority(0)
}

/// Creates a non-blocking stream with the given priority; blocks of streams with lower numbers are scheduled first.
fn stream_of_priority(priority: c_int) -> Result<CUstream> {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: a context is current; the stream is kept until the process ends.
    let result = unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags, priority) };
    check(result, || "creating a stream".into())?;
    Ok(stream)
}
