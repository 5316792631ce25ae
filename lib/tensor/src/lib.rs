//! Tensors, differentiable ops and the in-place updates of training (optimizers, EMA, loss scaling).
//!
//! An op lives in `ops/NAME/` and is differentiable; an update lives in `updates/NAME/`, works in place and is
//! never recorded on the tape; a function lives in `functions/NAME/` and has no gradient. All provide `cases()`, which
//! drive checks and, of ops and updates, benchmarks.
//! All results are bit-identical for any number of threads.

pub mod check;
pub mod device;
pub mod dtype;
mod file_dtype;
pub mod functions;
pub mod kernel;
pub mod memory;
pub mod nf4;
pub mod op;
pub mod ops;
pub mod parallel;
pub mod product;
pub mod random;
pub mod safetensors;
mod scratch;
pub mod simd;
mod storage;
pub mod tape;
pub mod tensor;
pub mod trace;
pub mod updates;

pub use device::{Device, DeviceChoice};
pub use dtype::{Dtype, Element, Float};
pub use file_dtype::FileDtype;
pub use scratch::Scratch;
pub use storage::Access;
pub use tape::{Gradients, Tape, Var, constant};
pub use tensor::Tensor;
