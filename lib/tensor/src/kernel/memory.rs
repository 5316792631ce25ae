//! A caching allocator for device memory with size classes, like the host allocator (`crate::memory`).
//!
//! Allocating from the driver takes longer than most kernels and waits for all of them, so memory freed by tensors is
//! kept and reused. Reuse needs no synchronization because launches run in order: the next owner writes to the memory
//! after the last kernel that used it. On the emulator every tensor is allocated from the system with its exact size,
//! so that an access one byte out of bounds is detected. `LONGHAUL_DEVICE_EXACT=1` does the same on a GPU, for
//! compute-sanitizer, to the next 16 bytes.

use super::{backend, state};
use crate::device::Device;
use crate::memory::{Usage, size_class};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use unix::{Error, Exit, Result};

/// Smallest allocation in bytes.
const LEAST: usize = 256;

/// Free memory by size class.
type Free = BTreeMap<usize, Vec<u64>>;

#[derive(Default)]
struct Pool {
    free: Free,
    /// Free memory and total bytes of each [`GraphPool`], by number.
    graph_pools: BTreeMap<u64, (Free, usize)>,
    usage: Usage,
}

static POOLS: Mutex<BTreeMap<Device, Pool>> = Mutex::new(BTreeMap::new());

fn pools() -> MutexGuard<'static, BTreeMap<Device, Pool>> {
    // A pool is consistent at every point where a panic can happen.
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Number of this thread's active [`GraphPool`]; 0 if there is none.
    static ENTERED: Cell<u64> = const { Cell::new(0) };
}

/// A private pool for a recording: buffers allocated while it is active return to it and are not used
/// elsewhere until it is dropped, so the addresses in the recording stay valid.
#[derive(Debug)]
pub(super) struct GraphPool {
    device: Device,
    number: u64,
}

/// Keeps a [`GraphPool`] active until it is dropped.
pub(super) struct PoolGuard;

impl GraphPool {
    pub(super) fn new(device: Device) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        pools().entry(device).or_default().graph_pools.insert(number, Default::default());
        Self { device, number }
    }

    /// Makes this thread allocate from the pool, until the guard is dropped.
    pub(super) fn enter(&self) -> PoolGuard {
        ENTERED.set(self.number);
        PoolGuard
    }

    /// Whether a pool is active on this thread.
    pub(super) fn is_active() -> bool {
        ENTERED.get() != 0
    }

    /// Total bytes of the pool, used and free.
    pub(super) fn bytes(&self) -> usize {
        let pools = pools();
        pools
            .get(&self.device)
            .and_then(|p| p.graph_pools.get(&self.number))
            .map_or(0, |graph_pool| graph_pool.1)
    }
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        ENTERED.set(0);
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        let mut pools = pools();
        let Some(pool) = pools.get_mut(&self.device) else { return };
        for (class, addresses) in pool.graph_pools.remove(&self.number).unwrap_or_default().0 {
            addresses.into_iter().for_each(|address| pool.take_back(self.device, class, address));
        }
    }
}

impl Pool {
    /// Takes back memory that is no longer used.
    fn take_back(&mut self, device: Device, class: usize, address: u64) {
        if is_exact(device) {
            self.usage.held -= class;
            backend::free(device, address);
        } else {
            self.free.entry(class).or_default().push(address);
        }
    }
}

/// A buffer in device memory. Dropping it returns the memory to its pool.
pub(crate) struct DeviceBuffer {
    device: Device,
    /// 0 if the allocation failed: the error is recorded, and no kernel will use the buffer.
    address: u64,
    bytes: usize,
    /// Number of the [`GraphPool`] that owns the buffer; 0 if there is none.
    graph_pool: u64,
    /// Owner of borrowed memory, which is not returned to a pool.
    owner: Option<Arc<dyn Send + Sync>>,
}

impl DeviceBuffer {
    /// Allocates at least `bytes` uninitialized bytes.
    pub(crate) fn take(device: Device, bytes: usize) -> DeviceBuffer {
        let class = match (is_exact(device), device) {
            (true, Device::Emu) => bytes,
            // The driver rejects allocations of 0 bytes. memcheck counts a cp.async of fewer bytes as one of 16.
            (true, _) => bytes.max(1).next_multiple_of(16),
            (false, _) => size_class(bytes.max(LEAST)),
        };
        let (mut address, graph_pool) = (0, ENTERED.get());
        state::run(device, || {
            address = take(device, graph_pool, class, bytes)?;
            if !is_exact(device) || class == bytes {
                return Ok(());
            }
            // initcheck, too, counts bytes that a cp.async does not read.
            backend::zero(device, address + bytes as u64, class - bytes)
        });
        DeviceBuffer { device, address, bytes: class, graph_pool, owner: None }
    }

    /// Wraps memory of `owner`, which is kept alive until the buffer is dropped.
    pub(crate) fn borrowed(device: Device, address: u64, owner: Arc<dyn Send + Sync>) -> Self {
        DeviceBuffer { device, address, bytes: 0, graph_pool: 0, owner: Some(owner) }
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

/// Whether every tensor gets a separate allocation of its exact size.
fn is_exact(device: Device) -> bool {
    static EXACT: LazyLock<bool> = LazyLock::new(|| {
        std::env::var_os("LONGHAUL_DEVICE_EXACT").is_some_and(|value| value == "1")
    });
    device == Device::Emu || *EXACT
}

fn take(device: Device, graph_pool: u64, class: usize, asked: usize) -> Result<u64> {
    let limit = limit()?;
    let mut pools = pools();
    let pool = pools.entry(device).or_default();
    let own = pool.graph_pools.get_mut(&graph_pool);
    let in_graph_pool = own.and_then(|(free, _)| free.get_mut(&class)).and_then(Vec::pop);
    let cached = in_graph_pool.or_else(|| {
        let moved = pool.free.get_mut(&class).and_then(Vec::pop)?;
        pool.graph_pools.entry(graph_pool).and_modify(|(_, bytes)| *bytes += class);
        Some(moved)
    });
    let address = match cached {
        Some(address) => address,
        None => {
            let address = match allocate(device, class, &pool.usage, limit) {
                Ok(address) => address,
                // Releasing cached buffers of other sizes may free enough memory.
                Err(_) if !pool.free.is_empty() => {
                    release(device, pool);
                    allocate(device, class, &pool.usage, limit)
                        .map_err(|why| no_memory(device, asked, &pool.usage, &why))?
                }
                Err(why) => return Err(no_memory(device, asked, &pool.usage, &why)),
            };
            pool.graph_pools.entry(graph_pool).and_modify(|(_, bytes)| *bytes += class);
            pool.usage.held += class;
            pool.usage.system_calls += 1;
            address
        }
    };
    pool.usage.live += class;
    pool.usage.peak = pool.usage.peak.max(pool.usage.live);
    Ok(address)
}

/// Allocates from the driver. Errors: out of memory, or the limit is reached.
fn allocate(device: Device, bytes: usize, usage: &Usage, limit: Option<usize>) -> Result<u64> {
    match limit {
        Some(limit) if usage.held + bytes > limit => {
            Err(Error::new(Exit::Failure, format!("LONGHAUL_DEVICE_MEMORY is {limit}")))
        }
        _ => backend::allocate(device, bytes),
    }
}

/// Maximum number of bytes that this process may allocate on a device, from LONGHAUL_DEVICE_MEMORY: for devices shared
/// with other processes. Errors: the variable is not a number.
fn limit() -> Result<Option<usize>> {
    static LIMIT: OnceLock<Option<Result<usize, String>>> = OnceLock::new();
    let read = || {
        let text = std::env::var("LONGHAUL_DEVICE_MEMORY").ok()?;
        Some(
            text.parse()
                .map_err(|_| format!("LONGHAUL_DEVICE_MEMORY={text} is not a number of bytes")),
        )
    };
    LIMIT.get_or_init(read).clone().transpose().map_err(Error::usage)
}

/// Returns the out-of-memory error of a device, with sizes and the configuration keys that reduce memory use.
fn no_memory(device: Device, asked: usize, usage: &Usage, why: &Error) -> Error {
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    Error::out_of_memory(format!(
        "{device} has no memory for a tensor of {:.1} MiB ({:.1} MiB in tensors, {:.1} MiB allocated): {why}; \
         reduce training.batch_size or training.mem_budget, or enable training.amp",
        mib(asked),
        mib(usage.live),
        mib(usage.held),
    ))
}

fn release(device: Device, pool: &mut Pool) {
    for (class, addresses) in std::mem::take(&mut pool.free) {
        pool.usage.held -= class * addresses.len();
        addresses.into_iter().for_each(|address| backend::free(device, address));
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.address == 0 || self.owner.is_some() {
            return;
        }
        let mut pools = pools();
        let pool = pools.entry(self.device).or_default();
        pool.usage.live -= self.bytes;
        match pool.graph_pools.get_mut(&self.graph_pool) {
            Some((free, _)) => free.entry(self.bytes).or_default().push(self.address),
            None => pool.take_back(self.device, self.bytes, self.address),
        }
    }
}

/// Current counters of a device.
pub fn usage(device: Device) -> Usage {
    pools().get(&device).map_or(Usage::default(), |pool| pool.usage)
}

/// Resets the peak to the current usage.
pub fn reset_peak(device: Device) {
    if let Some(pool) = pools().get_mut(&device) {
        pool.usage.peak = pool.usage.live;
    }
}
