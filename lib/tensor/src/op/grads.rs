//! The gradients of an op's inputs: buffers that the backward pass of an op requests and writes.

use crate::device::Device;
use crate::dtype::{Dtype, Float};
use crate::ops::activation::Activation;
use crate::tensor::{Shape, Tensor};

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

impl<'a> Grads<'a> {
    pub(super) fn new(
        all: &'a mut [Option<GradBuffer>],
        inputs: &'a [Input],
        device: Device,
        (plan, is_multiplied): (&'a mut GradientPlan, bool),
    ) -> Self {
        let buffers = vec![None; inputs.len()];
        Self { all, inputs, device, buffers, plan, is_multiplied }
    }

    /// Passes on what was written to the buffers.
    pub(super) fn close(mut self) {
        for i in 0..self.inputs.len() {
            if let Some(buffer) = self.buffers[i].take() {
                self.accumulate(i, buffer.tensor);
            }
        }
    }

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
