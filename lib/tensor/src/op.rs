//! What an op is: a pure function of tensors with a derivative, and a list of cases that feed every
//! check and table made of it.

use crate::dtype::{Dtype, Float};
use crate::tensor::Tensor;

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

    /// Writes the whole of `out` and returns what `backward` will need.
    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved;

    /// Adds the gradient of each input to `grads`, given the gradient `dy` of the output.
    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads);
}

/// The gradients of an op's inputs, while its `backward` runs.
pub struct Grads<'a> {
    /// Gradient of every variable of the tape.
    pub(crate) all: &'a mut [Option<Tensor>],
    /// Variable of each input; none where no gradient is wanted.
    pub(crate) inputs: &'a [Option<usize>],
    pub(crate) shapes: &'a [Vec<usize>],
    pub(crate) dtype: Dtype,
}

/// The buffer an input's gradient is added to or, when nothing is there yet, set.
pub struct Slot {
    /// Arbitrary content unless `add`.
    pub tensor: Tensor,
    /// Whether to add to the content.
    pub add: bool,
}

impl Slot {
    /// The buffer, made zero when it was not yet set: for ops that write only parts of it.
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
        self.inputs[i].is_some()
    }

    /// The buffer for input `i`, if wanted; to be given back with [`Grads::put`].
    pub fn take(&mut self, i: usize) -> Option<Slot> {
        let variable = self.inputs[i]?;
        Some(match self.all[variable].take() {
            Some(tensor) => Slot { tensor, add: true },
            None => Slot { tensor: Tensor::arbitrary(&self.shapes[i], self.dtype), add: false },
        })
    }

    /// Gives the buffer for input `i` back.
    pub fn put(&mut self, i: usize, slot: Slot) {
        self.pass(i, slot.tensor);
    }

    /// Adds `gradient` to that of input `i`; where there is none yet, the memory is shared.
    pub fn pass(&mut self, i: usize, gradient: Tensor) {
        let Some(variable) = self.inputs[i] else { return };
        let gradient = gradient.reshape(&self.shapes[i]);
        self.all[variable] = Some(match self.all[variable].take() {
            None => gradient,
            Some(mut sum) => {
                crate::updates::sum::add(&mut sum, &gradient);
                sum
            }
        });
    }
}

/// How the values of one input of a case are drawn.
#[derive(Clone, Debug)]
pub enum Draw {
    /// Normal with mean 0 and deviation 1.
    Normal,
    /// Uniform in [low, high).
    Uniform(f64, f64),
    /// Normal, and no gradient is asked for.
    Constant,
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
