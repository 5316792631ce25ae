//! Ops: differentiable functions of tensors, each with CPU code, kernels and cases.
//!
//! An op is a folder `ops/NAME`:
//! - `mod.rs`: the type with its parameters, `impl Op` (shapes, dtypes, CPU dispatch by `with_float!`) and
//!   `cases()`, which feed the gradient check, the dtype and device comparisons and the benchmark;
//! - `cpu.rs`: the loops, generic over f32 and f64;
//! - `cuda.rs` and `NAME.cu`: `impl Launch` and the kernels. An op without kernels does not compile.
//!
//! `backward` asks [`Grads`] for the buffers of the inputs whose gradients are wanted and writes them:
//!
//! ```ignore
//! fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
//!     let [dx, dw] = grads.buffers([0, 1]); // Option<&mut GradBuffer> of inputs 0 and 1
//!     ...
//! }
//! ```
//!
//! A buffer whose `accumulate` is set holds the gradient so far and is added to; any other has undefined
//! content and is overwritten. A gradient that exists already (that of a sum is `dy` itself) is handed over
//! by [`Grads::accumulate`], without a copy.

use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel;
use crate::tensor::{Shape, Tensor};

/// Tensors kept from forward to backward; clones share memory, so keeping an input costs nothing.
pub type Saved = Vec<Tensor>;

/// A differentiable function of tensors. Every op has a gradient and, by [`Launch`], kernels.
pub trait Op: Launch {
    /// Name in errors and tables: the name of its folder.
    fn name(&self) -> &'static str;

    /// Shape of the output; an error says which rule the inputs break.
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String>;

    /// Inputs that have no gradient. A tape refuses to differentiate through them, so that no gradient is
    /// dropped silently.
    fn constants(&self) -> &'static [usize] {
        &[]
    }

    /// Dtype that input `i` must have when the op computes in `compute`, which is the dtype of input 0: the
    /// same unless the op says otherwise, as for indices ([`Dtype::I32`]) or weights in f32 beside activations
    /// of 16 bits.
    fn input_dtype(&self, _i: usize, compute: Dtype) -> Dtype {
        compute
    }

    /// Dtype of the output when the op computes in `compute`.
    fn output_dtype(&self, compute: Dtype) -> Dtype {
        compute
    }

    /// Floating-point operations of a forward pass, a multiply-add counting two. By default one for each
    /// input element.
    fn operations(&self, inputs: &[&[usize]]) -> usize {
        inputs.iter().map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// Dtypes that its kernels compute in. Mixed precision casts to one of them before.
    fn dtypes(&self) -> &'static [Dtype] {
        kernel::ALL_ELEMENTS
    }

    /// On the CPU: writes the whole of `out` and returns what `backward` needs.
    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved;

    /// On the CPU: adds the gradient of each input to `grads`, given the gradient `dy` of the output.
    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads);
}

/// The kernels of an op, on the device where its inputs are.
pub trait Launch: Send + Sync + 'static {
    /// [`Op::forward`] by kernels.
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved;

    /// [`Op::backward`] by kernels.
    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads);
}

/// Shape, dtype and variable of an input of a recorded op.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// None where no gradient is wanted.
    pub(crate) variable: Option<usize>,
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
}

/// The first input that has not the dtype that the op requires, with that dtype.
pub(crate) fn wrong_dtype(op: &dyn Op, inputs: &[Dtype]) -> Option<(usize, Dtype)> {
    let compute = *inputs.first()?;
    let required = (0..inputs.len()).map(|i| op.input_dtype(i, compute));
    required.enumerate().find(|(i, dtype)| inputs[*i] != *dtype)
}

/// [`Op::forward`] where the inputs are, into a new tensor.
pub(crate) fn forward(op: &dyn Op, inputs: &[&Tensor], shape: &[usize]) -> (Tensor, Saved) {
    let (device, compute) =
        inputs.first().map_or((Device::Cpu, Dtype::F32), |x| (x.device(), x.dtype()));
    let mut out = Tensor::arbitrary_on(device, shape, op.output_dtype(compute));
    let saved = match device {
        Device::Cpu => op.forward(inputs, &mut out),
        _ => op.launch_forward(inputs, &mut out),
    };
    (out, saved)
}

/// [`Op::backward`] where `dy` is: adds the gradients of `inputs` to `all`, the gradients by variable.
pub(crate) fn backward(
    op: &dyn Op,
    saved: &Saved,
    dy: Tensor,
    inputs: &[Input],
    all: &mut [Option<GradBuffer>],
) {
    let (device, buffers) = (dy.device(), vec![None; inputs.len()]);
    let mut grads = Grads { all, inputs, device, buffers };
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

/// The gradients of an op's inputs, while its `backward` runs.
pub struct Grads<'a> {
    /// Gradient of every variable of the tape, or where it is to be made.
    all: &'a mut [Option<GradBuffer>],
    inputs: &'a [Input],
    device: Device,
    /// What `backward` asked for, by input.
    buffers: Vec<Option<GradBuffer>>,
}

/// The memory of an input's gradient.
#[derive(Clone)]
pub struct GradBuffer {
    /// Shaped like the input; of undefined content unless `accumulate`.
    pub tensor: Tensor,
    /// Whether `tensor` holds a gradient to add to, instead of being overwritten.
    pub accumulate: bool,
}

impl GradBuffer {
    /// The gradient, when there is one.
    pub(crate) fn gradient(self) -> Option<Tensor> {
        self.accumulate.then_some(self.tensor)
    }

    /// On the CPU: the elements to add to, set to zero when there was no gradient yet.
    pub fn zeroed<T: Float>(&mut self) -> &mut [T] {
        let fresh = !std::mem::replace(&mut self.accumulate, true);
        let slice = self.tensor.write::<T>();
        if fresh {
            slice.fill(T::ZERO);
        }
        slice
    }

    /// On the CPU: adds `gradient`, element by element.
    pub fn add<T: Float>(&mut self, gradient: &[T]) {
        self.zeroed::<T>().iter_mut().zip(gradient).for_each(|(sum, g)| *sum += *g);
    }
}

impl Grads<'_> {
    /// Dtype of input `i`, and so of its gradient.
    pub fn dtype(&self, i: usize) -> Dtype {
        self.inputs[i].dtype
    }

    /// Shape of each input.
    pub fn shapes(&self) -> impl Iterator<Item = &[usize]> {
        self.inputs.iter().map(|input| &*input.shape)
    }

    /// The buffer of input `i`, which the op must write; none where no gradient is wanted.
    pub fn buffer(&mut self, i: usize) -> Option<&mut GradBuffer> {
        let Input { variable, shape, dtype } = self.inputs.get(i)?;
        let slot = &mut self.buffers[i];
        if slot.is_none() {
            *slot = Some(match self.all[(*variable)?].take() {
                // Another op may have seen the same variable in another shape.
                Some(GradBuffer { tensor, accumulate }) => {
                    GradBuffer { tensor: tensor.reshape(shape), accumulate }
                }
                None => GradBuffer {
                    tensor: Tensor::arbitrary_on(self.device, shape, *dtype),
                    accumulate: false,
                },
            });
        }
        slot.as_mut()
    }

    /// [`Grads::buffer`] of several inputs, in ascending order; none for inputs that the op has not.
    pub fn buffers<const N: usize>(&mut self, inputs: [usize; N]) -> [Option<&mut GradBuffer>; N] {
        for i in inputs {
            self.buffer(i);
        }
        let mut each = self.buffers.iter_mut().enumerate();
        inputs.map(|input| each.find(|(i, _)| *i == input)?.1.as_mut())
    }

    /// Adds `gradient` to that of input `i`; where there is none yet, its memory is shared.
    pub fn accumulate(&mut self, i: usize, gradient: Tensor) {
        let Input { variable, shape, .. } = &self.inputs[i];
        if let Some(variable) = variable {
            accumulate(&mut self.all[*variable], gradient.reshape(shape));
        }
    }
}

/// Adds `gradient` to the one that is there, if any.
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

/// How the values of one input of a case are drawn.
#[derive(Clone, Debug)]
pub enum Draw {
    /// Normal with mean 0 and deviation 1.
    Normal,
    /// Uniform in [low, high).
    Uniform(f64, f64),
    /// Evenly spaced in [low, high) in random order, so that no two are near each other: for ops with kinks
    /// where inputs are equal.
    Distinct(f64, f64),
    /// Normal, and no gradient is asked for.
    Constant,
    /// Integers, uniform in 0..n.
    Below(u64),
}

impl Draw {
    /// Whether a gradient is asked for.
    pub fn is_differentiated(&self) -> bool {
        matches!(self, Draw::Normal | Draw::Uniform(..) | Draw::Distinct(..))
    }
}

/// One use of an op: feeds the gradient check, the agreement of element types and devices, the speed
/// table.
pub struct Case {
    /// The op with its parameters.
    pub op: Box<dyn Op>,
    /// Shape and values of each input.
    pub inputs: Vec<(Vec<usize>, Draw)>,
    /// Floating-point operations of a forward pass (a multiply-add counts two); 0 where memory is the
    /// limit.
    pub operations: usize,
}

impl Case {
    /// A case whose inputs are all normal and all differentiated.
    pub fn new(op: impl Op, shapes: &[&[usize]]) -> Self {
        let inputs = shapes.iter().map(|s| (s.to_vec(), Draw::Normal)).collect();
        Case { op: Box::new(op), inputs, operations: 0 }
    }

    /// The inputs as the op takes them when it computes in `dtype`: [`Op::input_dtype`] of each.
    pub fn inputs_in(&self, inputs: &[Tensor], dtype: Dtype) -> Vec<Tensor> {
        let each = inputs.iter().enumerate();
        each.map(|(i, x)| x.to_dtype(self.op.input_dtype(i, dtype))).collect()
    }

    /// With `draw` for input `i`.
    pub fn draw(mut self, i: usize, draw: Draw) -> Self {
        self.inputs[i].1 = draw;
        self
    }

    /// With the number of operations of a forward pass.
    pub fn operations(mut self, operations: usize) -> Self {
        self.operations = operations;
        self
    }
}

/// Runs the body with `T` as the element type that `dtype` names.
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
            other => unreachable!("the host computes in f32 and f64, not in {other}"),
        }
    };
}
