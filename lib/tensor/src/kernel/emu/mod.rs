//! The emulator of a GPU: the kernels, compiled as C++ for the host with the feature `emu`, run lane by
//! lane on the calling thread, and every access they make is checked.
//!
//! A launch ends with an error where a card would, or might, go wrong: memory outside of what the
//! arguments point to, misaligned accesses, races between lanes or blocks, barriers and warp
//! operations that not all lanes reach, sizes no card takes. What is uninitialised is not a number.
//!
//! `lanes.cpp` and `switch.cpp` run the lanes, `collectives.cpp` what they do together, `memory.cpp`
//! and `accesses.cpp` look at memory, `async.cpp` at copies, `launch.cpp` is where it begins;
//! `emulator.h` is what a kernel sees instead of CUDA. `build.rs` compiles all of it.

#[cfg(feature = "emu")]
mod linked;
#[cfg(feature = "emu")]
pub use linked::*;

#[cfg(not(feature = "emu"))]
mod missing;
#[cfg(not(feature = "emu"))]
pub use missing::*;
