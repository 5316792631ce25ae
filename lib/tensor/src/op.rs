//! What an op is: a pure function of tensors with a derivative, and a list of cases that feed every
//! check and table made of it.

use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::kernel;
use crate::tensor::{Shape, Tensor};
use unix::Error;

/// Tensors kept from forward to backward; clones share memory, so keeping an input costs nothing.
pub type Saved = Vec<Tensor>;

/// A differentiable function of tensors. An op without a gradient does not compile.
pub trait Op: Send + Sync + 'static {
    /// Name in errors and tables: the name of its folder.
    fn name(&self) -> &'static str;

    /// Shape of the output; an error says which rule the inputs break.
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String>;

    /// Inputs that have no gradient. A tape refuses to differentiate through them, so that no gradient
    /// stops without a word.
    fn constants(&self) -> &'static [usize] {
        &[]
    }

    /// Element type of the output, which follows from those of the inputs.
    fn dtype(&self, inputs: &[&Tensor]) -> Dtype {
        inputs.first().map_or(Dtype::F32, |x| x.dtype())
    }

    /// Floating-point operations of a forward pass, a multiply-add counting two. Unless said otherwise one
    /// for each element that goes in.
    fn operations(&self, inputs: &[&[usize]]) -> usize {
        inputs.iter().map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// On the host: writes the whole of `out` and returns what `backward` will need.
    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved;

    /// On the host: adds the gradient of each input to `grads`, given the gradient `dy` of the output.
    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads);

    /// Element types that its kernels compute in. Mixed precision casts to one of them before.
    fn elements(&self) -> &'static [Dtype] {
        kernel::ALL_ELEMENTS
    }

    /// [`Op::forward`] by kernels, on the device where the inputs are.
    fn launch_forward(&self, inputs: &[&Tensor], _out: &mut Tensor) -> Saved {
        let device = inputs[0].device();
        kernel::fail(device, Error::bug(format!("{} has no kernel yet", self.name())));
        vec![]
    }

    /// [`Op::backward`] by kernels.
    fn launch_backward(&self, _saved: &Saved, dy: Tensor, _grads: &mut Grads) {
        kernel::fail(dy.device(), Error::bug(format!("{} has no kernel yet", self.name())));
    }
}

/// Shape, element type and variable of an input of a recorded op.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// None where no gradient is wanted.
    pub(crate) variable: Option<usize>,
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
}

/// [`Op::forward`] where the inputs are, into a new tensor.
pub(crate) fn forward(op: &dyn Op, inputs: &[&Tensor], shape: &[usize]) -> (Tensor, Saved) {
    let device = inputs.first().map_or(Device::Cpu, |x| x.device());
    let mut out = Tensor::arbitrary_on(device, shape, op.dtype(inputs));
    let saved = match device {
        Device::Cpu => op.forward(inputs, &mut out),
        _ => op.launch_forward(inputs, &mut out),
    };
    (out, saved)
}

/// [`Op::backward`] where `dy` is.
pub(crate) fn backward(op: &dyn Op, saved: &Saved, dy: Tensor, grads: &mut Grads) {
    match dy.device() {
        Device::Cpu => op.backward(saved, dy, grads),
        _ => op.launch_backward(saved, dy, grads),
    }
}

/// The gradients of an op's inputs, while its `backward` runs.
pub struct Grads<'a> {
    /// Gradient of every variable of the tape, or where it is to be made.
    pub(crate) all: &'a mut [Option<Slot>],
    pub(crate) inputs: &'a [Input],
    pub(crate) device: Device,
}

/// The buffer an input's gradient is added to or, when nothing is there yet, set.
#[derive(Clone)]
pub struct Slot {
    /// Arbitrary content unless `add`.
    pub tensor: Tensor,
    /// Whether to add to the content.
    pub add: bool,
}

impl Slot {
    /// A gradient.
    pub(crate) fn of(tensor: Tensor) -> Self {
        Self { tensor, add: true }
    }

    /// The gradient, when there is one.
    pub(crate) fn gradient(self) -> Option<Tensor> {
        self.add.then_some(self.tensor)
    }

    /// The buffer on the host, made zero when it was not yet set: for ops that write only parts of it.
    pub fn zeroed<T: Float>(&mut self) -> &mut [T] {
        let fresh = !std::mem::replace(&mut self.add, true);
        let slice = self.tensor.write::<T>();
        if fresh {
            slice.fill(T::ZERO);
        }
        slice
    }
}

impl Grads<'_> {
    /// Whether the gradient of input `i` is wanted.
    pub fn wants(&self, i: usize) -> bool {
        self.inputs[i].variable.is_some()
    }

    /// The buffer for input `i`, if wanted; to be given back with [`Grads::put`].
    pub fn take(&mut self, i: usize) -> Option<Slot> {
        let Input { variable, shape, dtype } = &self.inputs[i];
        Some(match self.all[(*variable)?].take() {
            Some(slot) => slot,
            None => Slot { tensor: Tensor::arbitrary_on(self.device, shape, *dtype), add: false },
        })
    }

    /// Gives the buffer for input `i` back.
    pub fn put(&mut self, i: usize, slot: Slot) {
        self.pass(i, slot.tensor);
    }

    /// Adds `gradient` to that of input `i`; where there is none yet, the memory is shared.
    pub fn pass(&mut self, i: usize, gradient: Tensor) {
        let Some(variable) = self.inputs[i].variable else { return };
        let gradient = gradient.reshape(&self.inputs[i].shape);
        let sum = match self.all[variable].take().and_then(Slot::gradient) {
            None => gradient,
            Some(mut sum) => {
                crate::updates::sum::add(&mut sum, &gradient);
                sum
            }
        };
        self.all[variable] = Some(Slot::of(sum));
    }
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
