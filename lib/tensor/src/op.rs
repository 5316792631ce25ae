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

use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel;
use crate::ops::activation::Activation;
use crate::tensor::{Shape, Tensor};

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

    /// Floating-point operations of a forward pass; a multiply-add counts as two. The default is one per input
    /// element.
    fn flops(&self, inputs: &[&[usize]]) -> usize {
        inputs.iter().map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// Dtypes in which the op's kernels can compute. Mixed precision casts inputs to one of these first.
    fn dtypes(&self) -> &'static [Dtype] {
        kernel::ALL_DTYPES
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

/// The elementwise derivative of an activation at a tensor with the shape and dtype of the gradient.
#[derive(Clone, Debug)]
pub struct Derivative {
    /// The activation.
    pub activation: Activation,
    /// Argument of the activation.
    pub at: Tensor,
}

/// The multiplication of a variable's complete gradient by a derivative.
#[derive(Clone, Debug, Default)]
pub(crate) enum Multiplication {
    #[default]
    None,
    /// Not yet multiplied; the gradient has one summand.
    Due(Derivative),
    Done,
}

/// How the gradients of variables are computed on a device; missing entries mean: in no special way.
#[derive(Debug, Default)]
pub(crate) struct GradientPlan {
    /// For each variable, the multiplication of its gradient.
    pub(crate) factors: Vec<Multiplication>,
    /// For each 16-bit variable whose gradient may be f32, the variable whose gradient it becomes: the f32 variable that
    /// was cast, or the variable itself.
    pub(crate) wide: Vec<Option<usize>>,
}

/// Shape, dtype and variable of one input of a recorded op.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// `None` if no gradient is needed.
    pub(crate) variable: Option<usize>,
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
}

/// Returns the first input whose dtype differs from the dtype that the op requires, and the required dtype.
pub(crate) fn wrong_dtype(op: &dyn Op, inputs: &[Dtype]) -> Option<(usize, Dtype)> {
    let compute = *inputs.first()?;
    let required = (0..inputs.len()).map(|i| op.input_dtype(i, compute));
    required.enumerate().find(|(i, dtype)| inputs[*i] != *dtype)
}

/// Runs [`Op::forward`] on the device of the inputs, into a new tensor.
pub(crate) fn forward(op: &dyn Op, inputs: &[&Tensor], shape: &[usize]) -> (Tensor, Saved) {
    let (device, compute) =
        inputs.first().map_or((Device::Cpu, Dtype::F32), |x| (x.device(), x.dtype()));
    let mut out = Tensor::empty_on(device, shape, op.output_dtype(compute));
    let saved = match device {
        Device::Cpu => op.forward(inputs, &mut out),
        _ => op.launch_forward(inputs, &mut out),
    };
    (out, saved)
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
    let (device, buffers) = (dy.device(), vec![None; inputs.len()]);
    let mut grads = Grads { all, inputs, device, buffers, plan, is_multiplied };
    match device {
        Device::Cpu => op.backward(saved, dy, &mut grads),
        _ => op.launch_backward(saved, dy, &mut grads),
    }
    for i in 0..inputs.len() {
        if let Some(buffer) = grads.buffers[i].take() {
            grads.accumulate(i, buffer.tensor);
        }
    }
}

/// The gradients of an op's inputs while its `backward` runs.
pub struct Grads<'a> {
    /// For each variable of the tape, its gradient so far or the buffer to write it to.
    all: &'a mut [Option<GradBuffer>],
    inputs: &'a [Input],
    device: Device,
    /// The buffers requested by `backward`, by input.
    buffers: Vec<Option<GradBuffer>>,
    plan: &'a mut GradientPlan,
    is_multiplied: bool,
}

/// The buffer for an input's gradient.
#[derive(Clone)]
pub struct GradBuffer {
    /// Has the shape of the input; uninitialized unless `accumulate` is set.
    pub tensor: Tensor,
    /// Whether `tensor` holds a gradient that must be added to instead of overwritten.
    pub accumulate: bool,
}

impl GradBuffer {
    /// The gradient, if one was accumulated.
    pub(crate) fn gradient(self) -> Option<Tensor> {
        self.accumulate.then_some(self.tensor)
    }

    /// Returns the elements to add to on the CPU, zeroed first if there is no gradient yet.
    pub fn zeroed<T: Float>(&mut self) -> &mut [T] {
        let fresh = !std::mem::replace(&mut self.accumulate, true);
        let slice = self.tensor.write::<T>();
        if fresh {
            slice.fill(T::ZERO);
        }
        slice
    }

    /// Adds `gradient` elementwise on the CPU.
    pub fn add<T: Float>(&mut self, gradient: &[T]) {
        self.zeroed::<T>().iter_mut().zip(gradient).for_each(|(sum, g)| *sum += *g);
    }
}

impl Grads<'_> {
    /// Whether `dy` has already been multiplied by [`Launch::derivative`].
    pub fn is_multiplied(&self) -> bool {
        self.is_multiplied
    }

    /// Whether [`Self::take_derivative`] would return a derivative for input `i`.
    pub(crate) fn has_derivative(&self, i: usize) -> bool {
        let variable = self.inputs.get(i).and_then(|input| input.variable);
        let factor = variable.and_then(|variable| self.plan.factors.get(variable));
        matches!(factor, Some(Multiplication::Due(_)))
    }

    /// Takes the derivative by which the op that computed input `i` would multiply the gradient; the caller must
    /// multiply instead.
    pub fn take_derivative(&mut self, i: usize) -> Option<Derivative> {
        let factor = self.plan.factors.get_mut(self.inputs.get(i)?.variable?)?;
        match std::mem::take(factor) {
            Multiplication::Due(derivative) => {
                *factor = Multiplication::Done;
                Some(derivative)
            }
            other => {
                *factor = other;
                None
            }
        }
    }

    /// Dtype of input `i` and of its gradient.
    pub fn dtype(&self, i: usize) -> Dtype {
        self.inputs[i].dtype
    }

    /// Shape of each input.
    pub fn shapes(&self) -> impl Iterator<Item = &[usize]> {
        self.inputs.iter().map(|input| &*input.shape)
    }

    /// Makes the buffers of these inputs f32 where all of them have 16 bits only because f32 was cast and nothing else
    /// uses them, as the weights in mixed precision: the gradient is not rounded, and the backward pass of the cast has
    /// nothing to do. Called before the buffers are requested; the op must then write the dtype that it finds.
    pub(crate) fn widen(&mut self, inputs: &[usize]) {
        let variable = |i: &usize| Some((*i, self.inputs.get(*i)?.variable?));
        let needed: Vec<(usize, usize)> = inputs.iter().filter_map(variable).collect();
        let becomes = |variable: usize| {
            let wide = self.plan.wide.get(variable).copied().flatten();
            wide.filter(|_| self.all[variable].is_none())
        };
        let wide: Option<Vec<usize>> = needed.iter().map(|(_, v)| becomes(*v)).collect();
        for ((i, _), becomes) in needed.iter().zip(wide.unwrap_or_default()) {
            let shape = &self.inputs[*i].shape;
            let tensor = match self.all[becomes].take() {
                Some(GradBuffer { tensor, accumulate: false }) => tensor.reshape(shape),
                other => {
                    self.all[becomes] = other;
                    Tensor::empty_on(self.device, shape, Dtype::F32)
                }
            };
            self.buffers[*i] = Some(GradBuffer { tensor, accumulate: false });
        }
    }

    /// Returns the gradient buffer of input `i`, which the op must then write; `None` if that input needs no gradient.
    pub fn buffer(&mut self, i: usize) -> Option<&mut GradBuffer> {
        let Input { variable, shape, dtype } = self.inputs.get(i)?;
        let slot = &mut self.buffers[i];
        if slot.is_none() {
            *slot = Some(match self.all[(*variable)?].take() {
                // Another op may have used the same variable with a different shape.
                Some(GradBuffer { tensor, accumulate }) => {
                    GradBuffer { tensor: tensor.reshape(shape), accumulate }
                }
                None => GradBuffer {
                    tensor: Tensor::empty_on(self.device, shape, *dtype),
                    accumulate: false,
                },
            });
        }
        slot.as_mut()
    }

    /// Like [`Grads::buffer`], for several inputs in ascending order; `None` for inputs that the op does not have.
    pub fn buffers<const N: usize>(&mut self, inputs: [usize; N]) -> [Option<&mut GradBuffer>; N] {
        for i in inputs {
            self.buffer(i);
        }
        let mut each = self.buffers.iter_mut().enumerate();
        inputs.map(|input| each.find(|(i, _)| *i == input)?.1.as_mut())
    }

    /// Adds `gradient` to the gradient of input `i`; if there is none yet, shares the memory of `gradient`.
    pub fn accumulate(&mut self, i: usize, gradient: Tensor) {
        let Input { variable, shape, .. } = &self.inputs[i];
        if let Some(variable) = variable {
            accumulate(&mut self.all[*variable], gradient.reshape(shape));
        }
    }
}

/// Adds `gradient` to the gradient in `slot`, if any.
pub(crate) fn accumulate(slot: &mut Option<GradBuffer>, gradient: Tensor) {
    let tensor = match slot.take().and_then(GradBuffer::gradient) {
        None => gradient,
        Some(mut sum) => {
            crate::updates::sum::add(&mut sum, &gradient);
            sum
        }
    };
    *slot = Some(GradBuffer { tensor, accumulate: true });
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
