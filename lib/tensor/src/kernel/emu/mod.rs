//! GPU emulator: with the feature `emu`, kernels are compiled as C++ for the host. They run lane by lane on the calling
//! thread, and every memory access is checked.
//!
//! A launch fails where a GPU would, or might, misbehave: accesses outside of the memory that the arguments point to,
//! misaligned accesses, races between lanes or blocks, barriers and warp operations that some lanes do not reach, and
//! sizes beyond the limits of a GPU. Uninitialized memory contains NaN.
//!
//! A launch starts in `launch.cpp` and ends there or, on a fault, in `faults.cpp`; `lanes.cpp` and `switch.cpp` run the
//! lanes, `collectives.cpp` runs warp collectives; `memory.cpp` and `accesses.cpp` check memory accesses, `async.cpp`
//! checks asynchronous copies. `barriers.cpp`, `boxes.cpp` and `wgmma.cpp` implement the Hopper primitives.
//! `emulator.h` and `numbers.h` replace the CUDA headers for kernels. `build.rs` compiles all of these.

/// Maximum shared memory per block in bytes, by architecture (CUDA C++ Programming Guide, "Technical Specifications per
/// Compute Capability").
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
