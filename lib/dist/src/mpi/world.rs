//! The MPI library: initialised once, called by one thread at a time, and finalised or aborted.
//!
//! While ranks may be lost, only nonblocking calls are made (`MPI_Isend`, `MPI_Testall`). Calls that block inside the
//! library (creating a communicator or a window) are made at the start, under a time limit.

use mpi::ffi;
use std::alloc::{Layout, alloc_zeroed};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use unix::{Error, Result};

/// MPI is initialised with `MPI_THREAD_SERIALIZED`: a thread must hold this lock to call it.
static MPI: Mutex<()> = Mutex::new(());

/// Held by the thread that may call MPI.
pub type MpiGuard = MutexGuard<'static, ()>;

/// Takes the MPI lock.
pub fn lock() -> MpiGuard {
    MPI.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the MPI lock; returns `None` if other threads hold it for longer than 50 ms. On an oversubscribed machine, the
/// thread that holds the lock may have to wait for a CPU.
pub fn try_lock() -> Option<MpiGuard> {
    for _ in 0..50 {
        match MPI.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// A communicator; messages of different communicators never match.
#[derive(Clone, Copy, Debug)]
pub struct Communicator(pub ffi::MPI_Comm);

// SAFETY: a handle (an integer or an address) that the library looks up; used while holding `MPI`.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

/// Initialises MPI. Errors: MPI is already initialised, or does not support calls from several threads.
pub fn start() -> Result<Communicator> {
    let _mpi = lock();
    let mut initialised = 0;
    // SAFETY: may be called at any time; writes to `initialised`.
    check(unsafe { ffi::MPI_Initialized(&mut initialised) }, "MPI_Initialized")?;
    if initialised != 0 {
        return Err(Error::bug("MPI is initialised twice in one process"));
    }
    // SAFETY: constants of the MPI library.
    let (wanted, mut given) = unsafe { (ffi::RSMPI_THREAD_SERIALIZED, 0) };
    // SAFETY: null arguments are allowed; writes to `given`.
    let status = unsafe {
        ffi::MPI_Init_thread(std::ptr::null_mut(), std::ptr::null_mut(), wanted, &mut given)
    };
    check(status, "MPI_Init_thread")?;
    if given < wanted {
        return Err(Error::failure(
            "this MPI library does not support calls from several threads (MPI_THREAD_SERIALIZED): \
             gradients are summed concurrently with the backward pass; use a library built with threads",
        ));
    }
    // SAFETY: constants of the library, which is initialised. From now on, MPI returns errors instead of aborting.
    unsafe {
        let world = ffi::RSMPI_COMM_WORLD;
        check(ffi::MPI_Comm_set_errhandler(world, ffi::RSMPI_ERRORS_RETURN), "MPI errors")?;
        Ok(Communicator(world))
    }
}

/// Finalises MPI; called by all ranks.
pub fn finish() -> Result<()> {
    let _mpi = lock();
    // SAFETY: MPI is initialised, and is not called afterwards.
    check(unsafe { ffi::MPI_Finalize() }, "MPI_Finalize")
}

/// Ends all ranks with `status`, regardless of MPI calls in other threads; returns only if the abort fails.
pub fn abort(status: c_int) {
    // SAFETY: MPI_COMM_WORLD is a valid handle. Does not take the lock, because another thread may be stuck in the
    // library; the process ends in any case.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, status) };
}

impl Communicator {
    /// Returns the number of this rank.
    pub fn rank(self) -> Result<usize> {
        let (_mpi, mut rank) = (lock(), 0);
        // SAFETY: a valid handle; writes to `rank`.
        check(unsafe { ffi::MPI_Comm_rank(self.0, &mut rank) }, "MPI_Comm_rank")?;
        usize::try_from(rank).map_err(|_| Error::bug("MPI gives a negative rank"))
    }

    /// Returns the number of ranks.
    pub fn size(self) -> Result<usize> {
        let (_mpi, mut size) = (lock(), 0);
        // SAFETY: a valid handle; writes to `size`.
        check(unsafe { ffi::MPI_Comm_size(self.0, &mut size) }, "MPI_Comm_size")?;
        usize::try_from(size).map_err(|_| Error::bug("MPI gives a negative size"))
    }

    /// Duplicates the communicator; called by all ranks.
    pub fn duplicate(self) -> Result<Self> {
        // SAFETY: valid handles; the new one is written.
        Self::made("MPI_Comm_dup", |copy| unsafe { ffi::MPI_Comm_dup(self.0, copy) })
    }

    /// Creates the communicator of the ranks that can share memory with this one, in rank order; called by all ranks.
    pub fn host(self) -> Result<Self> {
        let key = c_rank(self.rank()?)?;
        // SAFETY: as above, with constants of the MPI library.
        Self::made("MPI_Comm_split_type", |host| unsafe {
            let (kind, info) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
            ffi::MPI_Comm_split_type(self.0, kind, key, info, host)
        })
    }

    /// Creates the communicator of the ranks that pass the same `color`, in rank order; called by all ranks.
    pub fn split(self, color: usize) -> Result<Self> {
        let (color, key) = (c_rank(color)?, c_rank(self.rank()?)?);
        // SAFETY: as above.
        Self::made("MPI_Comm_split", |part| unsafe {
            ffi::MPI_Comm_split(self.0, color, key, part)
        })
    }

    /// Returns the communicator that `call` writes. Its errors are returned instead of aborting the job.
    fn made(what: &str, call: impl FnOnce(&mut ffi::MPI_Comm) -> c_int) -> Result<Self> {
        let _mpi = lock();
        // SAFETY: constants of the MPI library, and the handle that it created.
        unsafe {
            let mut made = ffi::RSMPI_COMM_NULL;
            check(call(&mut made), what)?;
            check(ffi::MPI_Comm_set_errhandler(made, ffi::RSMPI_ERRORS_RETURN), "MPI errors")?;
            Ok(Self(made))
        }
    }
}

/// Converts a rank to a C integer.
pub fn c_rank(rank: usize) -> Result<c_int> {
    c_int::try_from(rank).map_err(|_| Error::bug(format!("rank {rank}")))
}

/// Turns the error code of an MPI call into an error with the library's message.
pub fn check(status: c_int, what: &str) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let mut text = [0_u8; 4096]; // MPI_MAX_ERROR_STRING is a few hundred bytes
    let mut len = 0;
    // SAFETY: valid for any code; the buffer is longer than any message.
    let told = unsafe { ffi::MPI_Error_string(status, text.as_mut_ptr().cast(), &mut len) };
    let len = if told == 0 { usize::try_from(len).unwrap_or(0).min(text.len()) } else { 0 };
    let text = String::from_utf8_lossy(&text[..len]);
    Err(Error::failure(format!("{what}: {text} (MPI error {status})")))
}

/// Alignment in bytes of each rank's part of the memory.
const ALIGN: usize = 64;

/// Memory of an MPI window shared by ranks of one host. It is kept until the process ends, because threads and tensors
/// may still use it, and freeing it would be another collective call.
#[derive(Debug)]
pub struct WindowMemory {
    /// Start address of each rank's part.
    parts: Vec<*mut u8>,
    /// Length of each part in bytes.
    bytes: usize,
}

// SAFETY: memory that lives as long as the process. `window` determines which rank accesses which bytes when.
unsafe impl Send for WindowMemory {}
// SAFETY: as above.
unsafe impl Sync for WindowMemory {}

impl WindowMemory {
    /// Allocates `bytes` zeroed bytes for each rank of a communicator of one host; called by all of its ranks. Errors:
    /// the allocation failed on a rank.
    pub fn allocate(host: Communicator, bytes: usize) -> Result<Self> {
        let (size, rank) = (host.size()?, host.rank()?);
        let _mpi = lock();
        // Whole pages plus one, because each rank aligns the start of its own part.
        let taken = bytes.next_multiple_of(4096) + 4096;
        let length = ffi::MPI_Aint::try_from(taken).map_err(|_| Error::bug("size of a window"))?;
        let mut parts = Vec::with_capacity(size);
        // SAFETY: valid handles; MPI writes the pointers.
        unsafe {
            let mut base: *mut c_void = std::ptr::null_mut();
            let mut window = ffi::RSMPI_WIN_NULL;
            let to = std::ptr::from_mut(&mut base).cast();
            let info = ffi::RSMPI_INFO_NULL;
            let status = ffi::MPI_Win_allocate_shared(length, 1, info, host.0, to, &mut window);
            check(status, "MPI_Win_allocate_shared")?;
            for part in 0..size {
                let (mut length, mut unit) = (0, 0);
                let mut base: *mut c_void = std::ptr::null_mut();
                let to = std::ptr::from_mut(&mut base).cast();
                let (part, length, unit) = (c_rank(part)?, &mut length, &mut unit);
                let status = ffi::MPI_Win_shared_query(window, part, length, unit, to);
                check(status, "MPI_Win_shared_query")?;
                let base = base.cast::<u8>();
                parts.push(base.add(base.align_offset(ALIGN)));
            }
        }
        // SAFETY: our own part, of at least `bytes` bytes; no other rank accesses it before the barrier that follows
        // the creation of every window. Writing to it allocates the pages on this rank's NUMA node.
        unsafe { parts[rank].write_bytes(0, bytes) };
        Ok(Self { parts, bytes })
    }

    /// Allocates zeroed memory private to this process. Errors: the allocation failed.
    pub fn private(bytes: usize) -> Result<Self> {
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).map_err(Error::bug)?;
        // SAFETY: the size is not zero.
        let part = unsafe { alloc_zeroed(layout) };
        if part.is_null() {
            let text = format!("cannot allocate {bytes} bytes for gradients");
            return Err(Error::out_of_memory(text));
        }
        Ok(Self { parts: vec![part], bytes })
    }

    /// Returns a pointer to byte `at` of the part of a rank, valid for `bytes` bytes.
    ///
    /// # Panics
    /// If the bytes are not all inside the part.
    pub fn at(&self, rank: usize, at: usize, bytes: usize) -> *mut u8 {
        let end = at.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "bytes {at}+{bytes} of {}", self.bytes);
        // SAFETY: inside the part, as checked above.
        unsafe { self.parts[rank].add(at) }
    }
}
