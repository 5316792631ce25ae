//! A caching allocator for tensor memory.
//!
//! Fresh pages cost far more than arithmetic (first touch runs at a fraction of a gigabyte per second), and a training
//! step allocates the same sizes again and again. So memory is faulted in when it is first taken from the system and
//! then kept in free lists by size class: after the first training step nothing is allocated from the system. Memory is
//! written once before it is handed out, so its content is arbitrary but always initialized. Only large blocks of zeros
//! are not faulted in until their first write: optimizer moments, for example, are not needed before the end of the
//! first update. When the system runs out of memory, free blocks of other sizes are returned to it: a validation needs
//! other sizes than an update.

use rustix::mm::{self, MapFlags, ProtFlags};
use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::parallel;
use unix::{limits, memory};

/// Alignment of blocks in bytes: a cache line, and the widest vector register.
const ALIGN: usize = 64;
/// Blocks of at least this many bytes use transparent huge pages.
const HUGE: usize = 2 << 20;
/// Bytes that stay available to the rest of the process and to others.
const RESERVE: usize = 512 << 20;

/// Counters of the allocator, in bytes except `system_calls`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes currently used by tensors.
    pub live: usize,
    /// Maximum of `live` since the last reset.
    pub peak: usize,
    /// Bytes allocated from the system, live or cached.
    pub held: usize,
    /// Number of allocations from the system.
    pub system_calls: u64,
}

#[derive(Default)]
struct Pool {
    free: BTreeMap<usize, Vec<Block>>,
    usage: Usage,
}

/// One allocation of a size class. Dropping it returns the memory to the free list.
pub(crate) struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block is plain memory with exactly one owner.
unsafe impl Send for Block {}
// SAFETY: shared access only reads; writing requires `&mut` of the tensor.
unsafe impl Sync for Block {}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    free: BTreeMap::new(),
    usage: Usage { live: 0, peak: 0, held: 0, system_calls: 0 },
});

impl Pool {
    /// Returns the large free blocks to the system.
    fn release(&mut self) {
        for (class, blocks) in self.free.split_off(&HUGE) {
            self.usage.held -= class * blocks.len();
            for block in blocks {
                let block = ManuallyDrop::new(block);
                // SAFETY: the range is part of a mapping of `fresh`, and nothing uses a free block.
                let unmapped = unsafe { mm::munmap(block.start().cast(), class) };
                debug_assert_eq!(unmapped, Ok(()));
            }
        }
    }
}

fn pool() -> MutexGuard<'static, Pool> {
    // The pool is consistent at every point where a panic can happen.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rounds up to the next multiple of a quarter of a power of two: at most a fifth of a block is wasted, and similar
/// sizes share a free list.
pub(crate) fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(ALIGN);
    let quarter = (bytes.next_power_of_two() / 8).max(ALIGN);
    bytes.next_multiple_of(quarter)
}

impl Block {
    /// Allocates at least `bytes` bytes, aligned to 64 bytes.
    pub(crate) fn take(bytes: usize) -> Block {
        let class = size_class(bytes);
        Self::cached(class).unwrap_or_else(|| {
            let block = Self::fresh(class);
            block.clear();
            block
        })
    }

    /// Allocates at least `bytes` zero bytes, aligned to 64 bytes.
    pub(crate) fn zeroed(bytes: usize) -> Block {
        let class = size_class(bytes);
        match Self::cached(class) {
            Some(block) => {
                block.clear();
                block
            }
            None => Self::fresh(class),
        }
    }

    /// Like [`Block::zeroed`], but the pages of large blocks take no memory before they are written, used or not.
    pub(crate) fn untouched(bytes: usize) -> Block {
        let class = size_class(bytes);
        if class < HUGE {
            return Self::zeroed(bytes);
        }
        let Some(block) = Self::cached(class) else {
            return Self::fresh(class);
        };
        // SAFETY: the range is part of a private mapping of `fresh` and ours; its pages read as zeros afterwards.
        let dropped =
            unsafe { mm::madvise(block.start().cast(), class, mm::Advice::LinuxDontNeed) };
        if dropped.is_err() {
            block.clear();
        }
        block
    }

    /// Takes a block of this size class from the free list, if there is one; counts the allocation in either case.
    fn cached(class: usize) -> Option<Block> {
        let mut pool = pool();
        pool.usage.live += class;
        pool.usage.peak = pool.usage.peak.max(pool.usage.live);
        let block = pool.free.get_mut(&class).and_then(Vec::pop);
        if block.is_none() {
            let free = pool.usage.held + class - pool.usage.live;
            let needed = (class + RESERVE) as u64;
            if class.min(free) >= HUGE && memory::available().is_some_and(|left| left < needed) {
                pool.release();
            }
            pool.usage.held += class;
            pool.usage.system_calls += 1;
        }
        block
    }

    /// Allocates zeros from the system. The pages of large blocks are not yet faulted in.
    fn fresh(class: usize) -> Block {
        let failed = || -> ! { limits::out_of_memory(class, "a tensor") };
        if class < HUGE {
            let Ok(layout) = Layout::from_size_align(class, ALIGN) else { failed() };
            // SAFETY: the size is not zero (at least ALIGN).
            let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| failed());
            return Block { start, bytes: class };
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let with_alignment = class.checked_add(HUGE).unwrap_or_else(|| failed());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), with_alignment, protection, flags) };
        let mapped = mapped.unwrap_or_else(|_| failed()).cast::<u8>();
        let offset = mapped.align_offset(HUGE);
        // SAFETY: the offset is below HUGE, so at least `class` bytes of the mapping remain.
        let (start, end) = unsafe { (mapped.add(offset), mapped.add(offset + class)) };
        for (unused, bytes) in [(mapped, offset), (end, HUGE - offset)] {
            if bytes > 0 {
                // SAFETY: the range was just mapped, is ours, and lies outside the block. Only saves addresses.
                let _ = unsafe { mm::munmap(unused.cast(), bytes) };
            }
        }
        // SAFETY: the range was just mapped and is ours. Only a hint: everything also works without huge pages.
        let _ = unsafe { mm::madvise(start.cast(), class, mm::Advice::LinuxHugepage) };
        Block { start: NonNull::new(start).unwrap_or_else(|| failed()), bytes: class }
    }

    /// Writes zeros to all bytes, which faults the pages in; uses all threads for large blocks.
    fn clear(&self) {
        parallel::blocks(self.bytes.div_ceil(HUGE), 1, |pages| {
            let bytes = pages.start * HUGE..self.bytes.min(pages.end * HUGE);
            // SAFETY: the range lies within the block, which has no other user yet, and ranges do not overlap.
            unsafe { self.start.as_ptr().add(bytes.start).write_bytes(0, bytes.len()) };
        });
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

/// Current counters of host tensor memory.
pub fn usage() -> Usage {
    pool().usage
}

/// Returns large free blocks to the system, after work whose sizes do not come again.
pub fn release() {
    pool().release();
}

/// Resets the peak to the current usage.
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
        // A size that no other test uses, because all tests of the process share the pool.
        let bytes = 7_654_321;
        let start = Block::take(bytes).start();
        let again = Block::take(bytes);
        // The same address: the block came from the free list. The counters cannot show it: other tests allocate
        // too.
        assert_eq!(again.start(), start);
        assert_eq!(again.start() as usize % ALIGN, 0);
    }

    #[test]
    fn large_free_blocks_are_returned_to_the_system() {
        // Far more than other tests allocate meanwhile; the pages are not faulted in.
        const LARGE: usize = 1 << 30;
        let mut pool = Pool::default();
        for bytes in [LARGE, HUGE, HUGE] {
            let block = Block::fresh(size_class(bytes));
            pool.usage.held += block.bytes;
            pool.free.entry(block.bytes).or_default().push(block);
        }
        let before = memory::held().unwrap();
        pool.release();
        let after = memory::held().unwrap();
        assert_eq!((pool.usage.held, pool.free.len()), (0, 0));
        assert!(after + LARGE as u64 / 2 < before, "{before} {after}");
    }

    #[test]
    fn zeros_are_zeros_whether_fresh_or_used() {
        for bytes in [5_432_109, 1_234, 543_211] {
            for i in 0..4 {
                let block = if i % 2 == 0 { Block::zeroed(bytes) } else { Block::untouched(bytes) };
                // SAFETY: the block has at least `bytes` bytes and is not shared.
                let all = unsafe { std::slice::from_raw_parts_mut(block.start(), bytes) };
                assert!(all.iter().all(|byte| *byte == 0));
                all.fill(7);
            }
        }
    }
}
