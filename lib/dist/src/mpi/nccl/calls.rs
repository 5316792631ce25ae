//! The NCCL library: a communicator and its collectives.

use super::super::Ranks;
use super::super::calls::CallCounter;
use super::NCCL;
use crate::Collective;
use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};
use std::ffi::{CStr, c_int, c_uint, c_void};
use tensor::Dtype;
use unix::{Error, Result};

/// An in-place collective on GPU memory.
pub enum Call {
    /// Sums `count` elements over all ranks; with an owner, only that rank gets the sum.
    Sum { address: u64, count: usize, dtype: Dtype, owner: Option<usize> },
    /// Broadcasts each range of bytes, (address, length, rank), from its rank to all others.
    AllGather(Vec<(u64, usize, usize)>),
}

/// The configuration struct of NCCL 2.18: newer versions recognise it by its size.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const std::ffi::c_char,
    split_share: c_int,
}

/// Ranks connected by NCCL. The communicator is not aborted when this process ends with an error: kernels that wait for
/// other ranks end with the process, whereas after an abort later kernels would use gradients that are not summed.
pub struct Communicator(ncclComm_t);

// SAFETY: a handle that any thread may use; `&mut` prevents concurrent calls.
unsafe impl Send for Communicator {}

/// Whether the NCCL library can be loaded.
pub fn is_present() -> bool {
    // SAFETY: loading only runs the initialisers of the library. Without the library, every function of `sys` panics.
    unsafe { sys::is_culib_present() }
}

impl Communicator {
    /// Connects the current GPUs of all ranks; called by all ranks. Rank 0 creates the id of the communicator, which is
    /// broadcast over MPI.
    pub fn connect(ranks: &Ranks) -> Result<Self> {
        let mut name = sys::ncclUniqueId { internal: [0; 128] };
        if ranks.rank() == 0 {
            // SAFETY: the library is loaded; it writes to `name`.
            check(unsafe { sys::ncclGetUniqueId(&mut name) }, "ncclGetUniqueId")?;
        }
        let bytes = ranks.broadcast(name.internal.iter().map(|c| c.cast_unsigned()).collect())?;
        for (to, byte) in name.internal.iter_mut().zip(bytes) {
            *to = byte.cast_signed();
        }
        let mut config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_700,
            // Nonblocking, so that the watchdog can report a missing rank instead of this rank blocking forever.
            blocking: 0,
            cga_cluster_size: c_int::MIN,
            min_ctas: c_int::MIN,
            max_ctas: c_int::MIN,
            net_name: std::ptr::null(),
            split_share: c_int::MIN,
        };
        let (rank, size) = (c_rank(ranks.rank())?, c_rank(ranks.size())?);
        let mut handle: ncclComm_t = std::ptr::null_mut();
        // SAFETY: the library is loaded; the configuration starts with its size; the library writes the handle.
        let result = unsafe {
            let config = std::ptr::from_mut(&mut config).cast();
            sys::ncclCommInitRankConfig(&mut handle, size, name, rank, config)
        };
        check(result, "ncclCommInitRankConfig")?;
        let mut communicator = Self(handle);
        communicator.wait_enqueued(&ranks.counter)?;
        Ok(communicator)
    }

    /// Whether the last operations have been enqueued on the GPU. Errors: the communicator failed.
    pub fn is_enqueued(&mut self) -> Result<bool> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: a valid handle; NCCL writes the state.
        check(unsafe { sys::ncclCommGetAsyncError(self.0, &mut state) }, "NCCL")?;
        check(state, "NCCL")?;
        Ok(state != ncclResult_t::ncclInProgress)
    }

    /// Waits until the ranks are connected, or until the last call has been enqueued.
    fn wait_enqueued(&mut self, counter: &CallCounter) -> Result<()> {
        let _waiting = counter.mark_waiting();
        let mut backoff = counter.backoff();
        while !self.is_enqueued()? {
            backoff.pause();
        }
        Ok(())
    }

    /// Enqueues a collective on a stream.
    ///
    /// # Safety
    /// The memory of the call must be valid on the GPU of this communicator and stream until the call has completed
    /// there, and must not be used by anything else meanwhile.
    pub unsafe fn enqueue(
        &mut self,
        call: &Call,
        stream: *mut c_void,
        counter: &CallCounter,
    ) -> Result<()> {
        let (group, stream) = (self.0, stream.cast());
        match *call {
            Call::Sum { address, count, dtype, owner } => {
                let (read, write) = (address as *const c_void, address as *mut c_void);
                let (kind, op) = (kind(dtype)?, ncclRedOp_t::ncclSum);
                // SAFETY: by the contract; the library is loaded.
                let (result, what) = unsafe {
                    match owner {
                        None => {
                            let sum =
                                sys::ncclAllReduce(read, write, count, kind, op, group, stream);
                            (sum, "ncclAllReduce")
                        }
                        Some(owner) => {
                            let owner = c_rank(owner)?;
                            let sum =
                                sys::ncclReduce(read, write, count, kind, op, owner, group, stream);
                            (sum, "ncclReduce")
                        }
                    }
                };
                check(result, what)?;
            }
            Call::AllGather(ref ranges) => {
                // SAFETY: the library is loaded.
                check(unsafe { sys::ncclGroupStart() }, "ncclGroupStart")?;
                for (address, bytes, owner) in ranges {
                    let (read, write) = (*address as *const c_void, *address as *mut c_void);
                    let (kind, owner) = (ncclDataType_t::ncclUint8, c_rank(*owner)?);
                    // SAFETY: by the contract; the library is loaded.
                    let result = unsafe {
                        sys::ncclBroadcast(read, write, *bytes, kind, owner, group, stream)
                    };
                    check(result, "ncclBroadcast")?;
                }
                // SAFETY: the library is loaded.
                check(unsafe { sys::ncclGroupEnd() }, "ncclGroupEnd")?;
            }
        }
        self.wait_enqueued(counter)
    }
}

fn c_rank(number: usize) -> Result<c_int> {
    c_int::try_from(number).map_err(Error::bug)
}

fn kind(dtype: Dtype) -> Result<ncclDataType_t> {
    match dtype {
        Dtype::F32 => Ok(ncclDataType_t::ncclFloat32),
        Dtype::F64 => Ok(ncclDataType_t::ncclFloat64),
        Dtype::Bf16 => Ok(ncclDataType_t::ncclBfloat16),
        Dtype::F16 => Ok(ncclDataType_t::ncclFloat16),
        Dtype::I32 => Ok(ncclDataType_t::ncclInt32),
        Dtype::U8 => Ok(ncclDataType_t::ncclUint8),
    }
}

/// Turns the result of a call into an error with the library's message; `ncclInProgress` is not an error.
fn check(result: ncclResult_t, what: &str) -> Result<()> {
    if matches!(result, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) {
        return Ok(());
    }
    // SAFETY: the library is loaded; its texts are constants, or null.
    let text = |pointer: *const std::ffi::c_char| match pointer.is_null() {
        true => String::new(),
        // SAFETY: the text is null-terminated.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned(),
    };
    // SAFETY: as above; the last error may be queried without a communicator.
    let (error, last) = unsafe {
        (text(sys::ncclGetErrorString(result)), text(sys::ncclGetLastError(std::ptr::null_mut())))
    };
    Err(Error::failure(format!(
        "{what}: {error} {last} (NCCL_DEBUG=WARN prints more; {NCCL}=0 sums over the host)"
    )))
}
