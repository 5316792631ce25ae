//! GPU emulator: with the feature `emu` the kernels are compiled as C++ for the host. They run lane by lane on the
//! calling thread, and every memory access is checked.
//!
//! A launch fails where a GPU would, or might, misbehave: accesses outside of the memory that the arguments point to,
//! misaligned accesses, races between lanes or blocks, barriers and warp operations that not all lanes reach, and sizes
//! beyond the limits of a GPU. Uninitialized memory is NaN.
//!
//! A launch begins in `launch.cpp` and ends there or in `faults.cpp`; `lanes.cpp` and `switch.cpp` run the lanes,
//! `collectives.cpp` their collective operations; `memory.cpp` and `accesses.cpp` check memory, `async.cpp`
//! asynchronous copies. `barriers.cpp`, `boxes.cpp` and `wgmma.cpp` have the primitives of Hopper. `emulator.h` and
//! `numbers.h` are what a kernel sees instead of CUDA. `build.rs` compiles it all.

/// Bytes of shared memory that a block may have, by architecture (CUDA C++ Programming Guide, "Technical Specifications
/// per Compute Capability").
pub const MOST_SHARED: [(&str, usize); 6] = [
    ("sm_80", 163 << 10),
    ("sm_86", 99 << 10),
    ("sm_89", 99 << 10),
    ("sm_90a", 227 << 10),
    ("sm_100", 227 << 10),
    ("sm_120", 99 << 10),
];

#[cfg(feature = "emu")]
mod linked;
#[cfg(feature = "emu")]
pub use linked::*;

#[cfg(not(feature = "emu"))]
mod missing;
#[cfg(not(feature = "emu"))]
pub use missing::*;
