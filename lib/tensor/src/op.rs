//! Ops: differentiable functions of tensors, each with CPU code, kernels and test cases.
//!
//! An op is a folder `ops/NAME`:
//! - `mod.rs`: the type with its parameters, `impl Op` (shapes, dtypes, CPU dispatch by `with_float!`) and
//!   `cases()`, which drive the gradient check, the dtype and device comparisons and the benchmark;
//! - `cpu.rs`: the loops, generic over f32 and f64;
//! - `cuda.rs` and `NAME.cu`: `impl Launch` and the kernels. An op without kernels does not compile.
//!
//! `backward` asks [`Grads`] for the buffers of the inputs that need a gradient and writes them:
//!
//! ```ignore
//! fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
//!     let [dx, dw] = grads.buffers([0, 1]); // Option<&mut GradBuffer> of inputs 0 and 1
//!     ...
//! }
//! ```
//!
//! A buffer with `accumulate` set holds the gradient accumulated so far and must be added to; any other buffer is
//! uninitialized and must be overwritten. A gradient that already exists as a tensor (for an addition it is `dy`
//! itself) is passed to [`Grads::accumulate`] without a copy.

mod grads;

use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel;
use crate::tensor::Tensor;
pub use grads::{Derivative, GradBuffer, Grads};
pub(crate) use grads::{GradientPlan, Input, Multiplication, accumulate};
use std::iter;

/// Tensors saved by forward for backward; clones share memory, so saving an input costs nothing.
pub type Saved = Vec<Tensor>;

/// A differentiable function of tensors. Every op has a gradient and, through [`Launch`], kernels.
pub trait Op: Launch {
    /// Name used in errors and tables: by default the name of the op's folder, i.e. the module of its type.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>().rsplit("::").nth(1).unwrap_or("op")
    }

    /// Shape of the output. Errors: the inputs violate a shape rule, which the message names.
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String>;

    /// Inputs that have no gradient. The tape refuses to differentiate with respect to them, so no gradient is
    /// dropped silently.
    fn constants(&self) -> &'static [usize] {
        &[]
    }

    /// Dtype required of input `i` when the op computes in `compute`, the dtype of input 0. By default all inputs
    /// have the same dtype; exceptions are indices ([`Dtype::I32`]) and f32 weights used with 16-bit activations.
    fn input_dtype(&self, _i: usize, compute: Dtype) -> Dtype {
        compute
    }

    /// Dtype of the output when the op computes in `compute`.
    fn output_dtype(&self, compute: Dtype) -> Dtype {
        compute
    }

    /// What [`Op::forward`] saves, apart from small tensors, in a plan of memory where nothing is computed. By default all
    /// inputs.
    fn kept(&self, inputs: &[&Tensor], _out: &Tensor) -> Saved {
        inputs.iter().map(|x| (*x).clone()).collect()
    }

    /// Bytes of memory beside inputs and outputs that a pass takes on a GPU for elements of `element` bytes, where they
    /// matter: in a plan of memory.
    fn workspace(&self, _inputs: &[&[usize]], _element: usize) -> usize {
        0
    }

    /// Floating-point operations of a forward pass; a multiply-add counts as two. The default is one per input
    /// element.
    fn flops(&self, inputs: &[&[usize]]) -> usize {
        inputs.iter().map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// Floating-point operations of a backward pass that computes the gradients of the inputs marked `needed`. The default
    /// is that of products: for each of the first two inputs those of the forward pass.
    fn backward_flops(&self, inputs: &[&[usize]], needed: &[bool]) -> usize {
        self.flops(inputs) * needed.iter().take(2).filter(|needed| **needed).count()
    }

    /// Dtypes in which the op's kernels can compute. Mixed precision casts inputs to one of these first.
    fn dtypes(&self) -> &'static [Dtype] {
        kernel::ALL_DTYPES
    }

    /// Whether the op adds to input 0. Then `out` already holds it, in its own memory where nothing else uses that
    /// ([`Tape::apply_onto`](crate::Tape::apply_onto)), and forward passes get only the other inputs.
    fn adds(&self) -> bool {
        false
    }

    /// Computes all of `out` on the CPU and returns the tensors that `backward` needs.
    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved;

    /// Adds the gradient of each input to `grads` on the CPU, given the output gradient `dy`.
    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads);
}

/// The kernels of an op; they run on the device that holds the inputs.
pub trait Launch: Send + Sync + 'static {
    /// [`Op::forward`] on a device.
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved;

    /// [`Op::backward`] on a device.
    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads);

    /// The factor by which `launch_backward` first multiplies `dy`, if it uses `dy` for nothing else. The op whose
    /// backward pass computes `dy` may multiply instead; [`Grads::is_multiplied`] then returns true.
    fn derivative(&self, _saved: &Saved) -> Option<Derivative> {
        None
    }

    /// Whether the op only changes the dtype of its input, so that a gradient in the dtype of the input is passed on as
    /// it is.
    fn is_cast(&self) -> bool {
        false
    }
}

/// Returns the first input whose dtype differs from the dtype that the op requires, and the required dtype.
pub(crate) fn wrong_dtype(op: &dyn Op, inputs: &[Dtype]) -> Option<(usize, Dtype)> {
    let compute = *inputs.first()?;
    let required = (0..inputs.len()).map(|i| op.input_dtype(i, compute));
    required.enumerate().find(|(i, dtype)| inputs[*i] != *dtype)
}

/// Runs [`Op::forward`] on the device of the inputs, into a new tensor.
pub(crate) fn forward(op: &dyn Op, inputs: &[&Tensor], shape: &[usize]) -> (Tensor, Saved) {
    if let Some((first, others)) = inputs.split_first()
        && op.adds()
    {
        return forward_onto(op, (*first).clone(), others);
    }
    let (device, compute) =
        inputs.first().map_or((Device::Cpu, Dtype::F32), |x| (x.device(), x.dtype()));
    let dtype = op.output_dtype(compute);
    let out = || Tensor::untouched(shape, dtype);
    if let Some(traced) = crate::trace::record(op, inputs, out) {
        return traced;
    }
    let mut out = Tensor::empty_on(device, shape, dtype);
    let saved = run_forward(op, inputs, &mut out);
    (out, saved)
}

/// Runs [`Op::forward`] of an op that adds to input 0, which is `out`.
pub(crate) fn forward_onto(op: &dyn Op, mut out: Tensor, others: &[&Tensor]) -> (Tensor, Saved) {
    let inputs: Vec<&Tensor> = iter::once(&out).chain(others.iter().copied()).collect();
    if let Some(traced) = crate::trace::record(op, &inputs, || out.clone()) {
        return traced;
    }
    let saved = run_forward(op, others, &mut out);
    (out, saved)
}

fn run_forward(op: &dyn Op, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
    match out.device() {
        Device::Cpu => op.forward(inputs, out),
        _ => op.launch_forward(inputs, out),
    }
}

/// Runs [`Op::backward`] on the device of `dy`: adds the gradients of `inputs` to `all`, which is indexed by variable.
/// `plan` is indexed by variable and may be shorter than `all`. `is_multiplied` is the result of
/// [`Grads::is_multiplied`].
pub(crate) fn backward(
    op: &dyn Op,
    saved: &Saved,
    dy: Tensor,
    inputs: &[Input],
    all: &mut [Option<GradBuffer>],
    (plan, is_multiplied): (&mut GradientPlan, bool),
) {
    let device = dy.device();
    let mut grads = Grads::new(all, inputs, device, (plan, is_multiplied));
    match device {
        Device::Cpu => op.backward(saved, dy, &mut grads),
        _ => op.launch_backward(saved, dy, &mut grads),
    }
    grads.close();
}

/// How the values of one input of a test case are drawn.
#[derive(Clone, Debug)]
pub enum Draw {
    /// Normal with mean 0 and standard deviation 1.
    Normal,
    /// Uniform in [low, high).
    Uniform(f64, f64),
    /// Evenly spaced in [low, high) in random order, so that no two values are close: for ops that have kinks where
    /// inputs are equal.
    Distinct(f64, f64),
    /// Normal; no gradient is computed.
    Constant,
    /// Integers, uniform in 0..n.
    RandInt(u64),
}

impl Draw {
    /// Whether a gradient is computed for this input.
    pub fn is_differentiated(&self) -> bool {
        matches!(self, Draw::Normal | Draw::Uniform(..) | Draw::Distinct(..))
    }
}

/// One example use of an op, for the gradient check, the comparison of dtypes and devices, and the benchmark.
pub struct Case {
    /// The op with its parameters.
    pub op: Box<dyn Op>,
    /// Shape and values of each input.
    pub inputs: Vec<(Vec<usize>, Draw)>,
    /// Floating-point operations of a forward pass (a multiply-add counts as two); 0 for memory-bound cases.
    pub operations: usize,
}

impl Case {
    /// Creates a case whose inputs are all normally distributed and differentiated.
    pub fn new(op: impl Op, shapes: &[&[usize]]) -> Self {
        let inputs = shapes.iter().map(|s| (s.to_vec(), Draw::Normal)).collect();
        Case { op: Box::new(op), inputs, operations: 0 }
    }

    /// Casts each input to the dtype that the op requires when it computes in `dtype` ([`Op::input_dtype`]).
    pub fn inputs_in(&self, inputs: &[Tensor], dtype: Dtype) -> Vec<Tensor> {
        let each = inputs.iter().enumerate();
        each.map(|(i, x)| x.to_dtype(self.op.input_dtype(i, dtype))).collect()
    }

    /// Sets how input `i` is drawn.
    pub fn draw(mut self, i: usize, draw: Draw) -> Self {
        self.inputs[i].1 = draw;
        self
    }

    /// Sets the number of floating-point operations of a forward pass.
    pub fn flops(mut self, operations: usize) -> Self {
        self.operations = operations;
        self
    }
}

/// Runs the body with `T` as the Rust type of `dtype`, which must be f32 or f64.
#[macro_export]
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::Dtype::F32 => {
                type $T = f32;
                $body
            }
            $crate::Dtype::F64 => {
                type $T = f64;
                $body
            }
            other => unreachable!("the CPU computes in f32 or f64, not in {other}"),
        }
    };
}
