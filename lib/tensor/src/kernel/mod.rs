//! CUDA kernels, launched on a GPU or in the emulator.
//!
//! A source is compiled once per dtype. For a GPU, NVRTC compiles it when a kernel is first used
//! (`compile`, `cache`); for the emulator, sources are compiled with the program (feature `emu`).
//!
//! Errors are sticky, as in CUDA itself: the first failure on a device (out of memory, a rejected launch, a fault
//! inside a kernel) is recorded, later launches do nothing, and the next read of a value returns the error ([`finish`],
//! [`crate::Tensor::to_host`]). Ops therefore need no error handling of their own.

mod arg;
mod backend;
pub mod cache;
pub mod compile;
mod constants;
pub mod cuda;
pub(crate) mod divisor;
pub mod emu;
pub(crate) mod flat;
mod graph;
mod lent_memory;
pub mod memory;
mod pending_read;
pub mod product;
pub(crate) mod reduce_rows;
pub(crate) mod rows;
mod state;
pub(crate) mod table;
mod trace;
pub(crate) mod units;

pub use arg::Arg;
pub(crate) use arg::Value;
pub(crate) use backend::{
    copy, copy_in, copy_out, has_warpgroups, most_shared, multiprocessors, zero,
};
pub use constants::constant;
pub use graph::{Graph, Segments};
pub use lent_memory::LentMemory;
pub use pending_read::{PendingRead, read_async};
pub use product::{set_pingpong, set_tf32, set_wgmma};
pub(crate) use state::run;
pub use state::{fail, finish, is_idle, take_error, waits};
pub use trace::{Launched, trace};

use crate::device::Device;
use crate::dtype::Dtype;
use crate::{functions, ops, updates};
use unix::{Error, Exit};

/// All kernel sources, for ahead-of-time compilation and checks.
pub const SOURCES: &[&Source] = &[
    &reduce_rows::SOURCE,
    &ops::activation::cuda::SOURCE,
    &ops::cast::cuda::SOURCE,
    &ops::dropout::cuda::SOURCE,
    &ops::frozen_linear::cuda::SOURCE,
    &ops::low_rank::cuda::SOURCE,
    &ops::strided::cuda::SOURCE,
    &ops::relative_error::cuda::SOURCE,
    &ops::residual::cuda::SOURCE,
    &ops::normalization::SOURCE,
    &ops::normalization::GRADIENT,
    &ops::squared_error::cuda::SOURCE,
    &ops::weighted_sum::cuda::SOURCE,
    &functions::argmax::cuda::SOURCE,
    &functions::categorical::cuda::SOURCE,
    &functions::top_k::cuda::SOURCE,
    &updates::adafactor::SOURCE,
    &updates::adamw::SOURCE,
    &updates::adamw8bit::SOURCE,
    &updates::append::SOURCE,
    &updates::decision::SOURCE,
    &updates::ema::SOURCE,
    &updates::lamb::SOURCE,
    &updates::lion::SOURCE,
    &updates::norm::SOURCE,
    &updates::muon::SOURCE,
    &updates::sgd::SOURCE,
    &updates::sum::SOURCE,
    &ops::attention::cuda::FORWARD,
    &ops::attention::cuda::QUERY_GRADIENT,
    &ops::attention::cuda::KEY_GRADIENT,
    &ops::attention::cuda::FORWARD_F32,
    &ops::attention::cuda::QUERY_GRADIENT_F32,
    &ops::attention::cuda::KEY_GRADIENT_F32,
    &ops::attention::warpgroups::FORWARD,
    &ops::attention::warpgroups::QUERY_GRADIENT,
    &ops::attention::warpgroups::KEY_GRADIENT,
    &ops::attention::rows::SOURCE,
    &product::SOURCE,
    &product::SOURCE_F32,
    &product::SOURCE_TF32,
    &product::SOURCE_WGMMA,
    &product::SOURCE_PINGPONG,
    &product::SOURCE_LINES,
    &crate::ops::conv::SOURCE,
    &crate::ops::conv::VOLUME,
    &crate::ops::conv::SOURCE_TF32,
    &crate::ops::conv::VOLUME_TF32,
    &crate::ops::cross_entropy::SOURCE,
    &crate::ops::depthwise_conv::SOURCE,
    &crate::ops::embedding::SOURCE,
    &crate::ops::group_norm::SOURCE,
    &crate::ops::hyper_connection::SOURCE,
    &crate::ops::hyper_connection::DEPTH,
    &crate::ops::hyper_connection::NORM,
    &crate::ops::hyper_connection::TOKENS,
    &crate::ops::interpolate::SOURCE,
    &crate::ops::linear::cuda::SOURCE,
    &crate::ops::pool::SOURCE,
    &crate::ops::rotary::SOURCE,
    &crate::ops::swiglu::SOURCE,
    &crate::ops::vector_norm::SOURCE,
];

/// Dtypes of sources that support every floating-point dtype of kernels.
pub const ALL_DTYPES: &[Dtype] = &[Dtype::F32, Dtype::Bf16, Dtype::F16];

/// Dtypes of sources that support only f32: losses and updates.
pub const ONLY_F32: &[Dtype] = &[Dtype::F32];

/// A `.cu` file. Only the ops, updates and functions of this crate launch its kernels, because they know the correct
/// grids:
///
/// ```compile_fail
/// use tensor::{Device, Dtype, Tensor, args, kernel::{Grid, SOURCES}};
/// let x = Tensor::zeros_on(Device::Cuda(0), &[1], Dtype::F32);
/// SOURCES[0].launch(Dtype::F32, "reduce_rows_sum", Grid::new(1 << 20, 1024), args![&x]);
/// ```
#[derive(Debug)]
pub struct Source {
    /// File name without the suffix; kernel names start with it.
    pub name: &'static str,
    /// The source text.
    pub text: &'static str,
    /// Dtypes that `element` can have in the source; the first line of the file repeats them for the emulator build.
    pub dtypes: &'static [Dtype],
    /// The only architecture that supports the instructions of the source; `None` if all do.
    pub only: Option<&'static str>,
}

/// Creates the [`Source`] for NAME.cu in the folder of the calling file.
macro_rules! source {
    ($name:literal, $dtypes:expr) => {
        $crate::kernel::source!($name, $dtypes, None)
    };
    ($name:literal, $dtypes:expr, $only:expr) => {
        $crate::kernel::Source {
            name: $name,
            text: include_str!(concat!($name, ".cu")),
            dtypes: $dtypes,
            only: $only,
        }
    };
}
pub(crate) use source;

/// The grid and block dimensions of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks along x, y, z.
    pub blocks: [u32; 3],
    /// Threads per block along x, y, z.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
    /// Number of floating-point operations of the matrix products in a block, including padding; 0 if there are none.
    /// Only used by time models.
    pub operations: u64,
}

impl Grid {
    /// Creates a one-dimensional grid: `blocks` blocks of `threads` threads.
    pub fn new(blocks: usize, threads: usize) -> Self {
        Self::over([blocks, 1, 1], threads)
    }

    /// Creates a grid of blocks along x, y and z (at most 65535 along y and z).
    pub fn over(blocks: [usize; 3], threads: usize) -> Self {
        Self { blocks: blocks.map(size), threads: [size(threads), 1, 1], shared: 0, operations: 0 }
    }

    /// Sets the dynamic shared memory per block in bytes.
    pub fn shared(mut self, bytes: usize) -> Self {
        self.shared = size(bytes);
        self
    }

    /// Sets the number of floating-point operations of the matrix products in a block.
    pub fn flops(mut self, operations: usize) -> Self {
        self.operations = operations as u64;
        self
    }
}

/// Converts a size to u32; a size that does not fit makes the launch fail.
fn size(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Describes what exceeds the limits of a launch, if anything: kernels use 31 bits for thread counts and sizes.
fn too_large(grid: Grid, args: &[Value]) -> Option<String> {
    let threads = |n: &[u32]| n.iter().fold(1, |all: u64, n| all.saturating_mul(u64::from(*n)));
    let all = threads(&grid.blocks).saturating_mul(threads(&grid.threads));
    let size = args.iter().find_map(|arg| match arg {
        Value::TooLarge(n) => Some(format!("a size of {n}")),
        _ => None,
    });
    size.or_else(|| (all > i32::MAX as u64).then(|| format!("{all} threads")))
}

impl Source {
    /// Launches a kernel of this source, compiled for `element`, on the device of its tensor arguments. An empty grid
    /// launches nothing.
    ///
    /// Crate-private, because a wrong grid or size would access memory outside of the tensors on a GPU, where only the
    /// number and sizes of the arguments are checked against the compiled kernel. The emulator checks every access.
    ///
    /// # Panics
    /// If the tensors are not all on one device that runs kernels.
    pub(crate) fn launch(
        &'static self,
        element: Dtype,
        kernel: &'static str,
        grid: Grid,
        args: &[Arg],
    ) {
        let mut devices = args.iter().filter_map(Arg::device);
        let Some(device) = devices.next() else { unreachable!("{kernel} has no tensor argument") };
        assert!(devices.all(|d| d == device), "{kernel}: tensors are on different devices");
        assert!(self.dtypes.contains(&element), "{}.cu does not support {element:?}", self.name);
        if grid.blocks.contains(&0) || grid.threads.contains(&0) {
            return;
        }
        assert!(device != Device::Cpu, "{kernel} cannot run on the host");
        if trace::record(element, kernel, grid, args) {
            return;
        }
        let values: Vec<Value> = args.iter().map(Arg::value).collect();
        state::run(device, || match too_large(grid, &values) {
            None => backend::launch(device, self, element, kernel, grid, &values),
            Some(what) => Err(Error::new(
                Exit::Failure,
                format!(
                    "{kernel}: {what} exceeds the limits of a launch; reduce training.batch_size and \
                     increase training.accumulation"
                ),
            )),
        });
    }
}

/// Lists the arguments of a launch: tensors (`x` for reading, `&mut x` for writing, an `Option` of either), and numbers
/// of the kernel's parameter types.
#[macro_export]
macro_rules! args {
    ($($arg:expr),* $(,)?) => { &[$($crate::kernel::Arg::from($arg)),*][..] };
}
