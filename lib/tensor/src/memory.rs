//! A caching allocator for tensor memory.
//!
//! Fresh pages cost far more than arithmetic (first touch runs at a fraction of a gigabyte a
//! second), and a training step asks for the same sizes again and again. So memory is faulted in
//! when it is first taken from the system and then kept in free lists by size class: after the
//! first step a training step takes nothing from the system. Memory is written once before it is
//! handed out, so its content is arbitrary but always initialised.

use std::alloc::{Layout, alloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use unix::limits;

/// A cache line, and the widest vector register.
const ALIGN: usize = 64;
/// From here on the kernel is asked for huge pages.
const HUGE: usize = 2 << 20;

/// Counters of the allocator, in bytes but for `system_calls`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In tensors now.
    pub live: usize,
    /// The most that was ever in tensors at once.
    pub peak: usize,
    /// Taken from the system and not given back: live and cached.
    pub held: usize,
    /// How often the system was asked for memory.
    pub system_calls: u64,
}

#[derive(Default)]
struct Pool {
    free: BTreeMap<usize, Vec<Block>>,
    usage: Usage,
}

/// One piece of memory of a size class. Dropping it returns it to the free list.
pub(crate) struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block is plain memory owned by exactly one holder.
unsafe impl Send for Block {}
// SAFETY: shared access only reads; writing needs `&mut` of the owner.
unsafe impl Sync for Block {}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    free: BTreeMap::new(),
    usage: Usage { live: 0, peak: 0, held: 0, system_calls: 0 },
});

fn pool() -> MutexGuard<'static, Pool> {
    // The pool stays consistent at every point where a panic could happen.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rounds up to a quarter of a power of two: at most a fifth is wasted, and sizes that differ a
/// little share a list.
pub(crate) fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(ALIGN);
    let quarter = (bytes.next_power_of_two() / 8).max(ALIGN);
    bytes.next_multiple_of(quarter)
}

fn layout(bytes: usize) -> Layout {
    let align = if bytes >= HUGE { HUGE } else { ALIGN };
    match Layout::from_size_align(bytes, align) {
        Ok(layout) => layout,
        Err(_) => limits::out_of_memory(bytes, "a tensor"),
    }
}

impl Block {
    /// At least `bytes` bytes, aligned to 64.
    pub(crate) fn take(bytes: usize) -> Block {
        let class = size_class(bytes);
        let mut pool = pool();
        let cached = pool.free.get_mut(&class).and_then(Vec::pop);
        pool.usage.live += class;
        pool.usage.peak = pool.usage.peak.max(pool.usage.live);
        if let Some(block) = cached {
            return block;
        }
        pool.usage.held += class;
        pool.usage.system_calls += 1;
        drop(pool);
        let layout = layout(class);
        // SAFETY: the size is not zero (at least ALIGN).
        let start = NonNull::new(unsafe { alloc(layout) })
            .unwrap_or_else(|| limits::out_of_memory(class, "a tensor"));
        if class >= HUGE {
            // A hint: without huge pages everything still works.
            // SAFETY: the range was just allocated and is ours.
            let _ = unsafe {
                rustix::mm::madvise(start.as_ptr().cast(), class, rustix::mm::Advice::LinuxHugepage)
            };
        }
        // SAFETY: `start` is valid for `class` bytes. Writing faults the pages in and initialises them.
        unsafe { start.as_ptr().write_bytes(0, class) };
        Block { start, bytes: class }
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut pool = pool();
        pool.usage.live -= self.bytes;
        let block = Block { start: self.start, bytes: self.bytes };
        pool.free.entry(self.bytes).or_default().push(block);
    }
}

/// The counters now.
pub fn usage() -> Usage {
    pool().usage
}

/// Starts a new measurement of the peak.
pub fn reset_peak() {
    let mut pool = pool();
    pool.usage.peak = pool.usage.live;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_quarter_and_never_shrink() {
        for bytes in (1..100_000).chain([1 << 20, (1 << 20) + 1, 12_345_678]) {
            let class = size_class(bytes);
            assert!(class >= bytes && class.is_multiple_of(ALIGN));
            assert!(bytes < 1024 || class as f64 <= bytes as f64 * 1.25 + 64.0, "{bytes} {class}");
        }
    }

    #[test]
    fn memory_returns_to_its_list() {
        // A size no other test uses, because the pool is shared by all tests of the process.
        let bytes = 7_654_321;
        let start = Block::take(bytes).start();
        let again = Block::take(bytes);
        // The same address: the system was not asked, which never got it back. Usage cannot show it, because
        // other tests count there too.
        assert_eq!(again.start(), start);
        assert_eq!(again.start() as usize % ALIGN, 0);
    }
}
