//! Reverse-mode differentiation: a list of nodes in the order of execution, walked backwards.

use crate::device::Device;
use crate::dtype::Dtype;
use crate::op::{self, Grads, Input, Op, Saved};
use crate::tensor::Tensor;
use std::cell::RefCell;
use unix::{Error, Result};

struct Node {
    op: Box<dyn Op>,
    inputs: Vec<Input>,
    output: usize,
    saved: Saved,
}

#[derive(Default)]
struct Record {
    nodes: Vec<Node>,
    variables: usize,
}

/// Records ops as they run.
pub struct Tape {
    record: RefCell<Record>,
    recording: bool,
}

/// A tensor in a computation; differentiated when it is a leaf or depends on one.
#[derive(Clone, Debug)]
pub struct Var {
    value: Tensor,
    id: Option<usize>,
}

impl Var {
    /// The value.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// Length of every axis.
    pub fn shape(&self) -> &[usize] {
        self.value.shape()
    }

    /// The same elements under another shape.
    ///
    /// # Panics
    /// When the number of elements differs.
    pub fn reshape(&self, shape: &[usize]) -> Var {
        Var { value: self.value.reshape(shape), id: self.id }
    }

    /// The value as a constant: here a gradient stops, on purpose.
    pub fn detached(&self) -> Var {
        constant(self.value.clone())
    }
}

/// A tensor that is not differentiated.
pub fn constant(value: Tensor) -> Var {
    Var { value, id: None }
}

impl Tape {
    /// A tape for training.
    pub fn new() -> Self {
        Self { record: RefCell::default(), recording: true }
    }

    /// A tape that keeps nothing, for evaluation.
    pub fn without_gradients() -> Self {
        Self { record: RefCell::default(), recording: false }
    }

    /// A tensor whose gradient is wanted.
    pub fn leaf(&self, value: Tensor) -> Var {
        if !self.recording {
            return constant(value);
        }
        let mut record = self.record.borrow_mut();
        record.variables += 1;
        Var { value, id: Some(record.variables - 1) }
    }

    /// Runs an op. Inputs of the wrong shape are a fault of ours: shapes that come from files and
    /// configurations are checked where they are read.
    pub fn apply(&self, op: impl Op, inputs: &[&Var]) -> Result<Var> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| v.shape()).collect();
        let shape = op
            .shape(&shapes)
            .map_err(|why| Error::bug(format!("{} of {shapes:?}: {why}", op.name())))?;
        let float = |v: &&&Var| v.value.dtype() != Dtype::I32;
        let mut dtypes = inputs.iter().filter(float).map(|v| v.value.dtype());
        if dtypes.next().is_some_and(|first| dtypes.any(|other| other != first)) {
            return Err(Error::bug(format!("{}: inputs differ in element type", op.name())));
        }
        let device = inputs.first().map_or(Device::Cpu, |v| v.value.device());
        if let Some(v) = inputs.iter().find(|v| v.value.device() != device) {
            let other = v.value.device();
            return Err(Error::bug(format!("{}: inputs on {device} and {other}", op.name())));
        }
        if let Some(i) = op.constants().iter().find(|i| inputs[**i].id.is_some()) {
            return Err(Error::bug(format!("{}: input {i} has no gradient", op.name())));
        }
        let values: Vec<&Tensor> = inputs.iter().map(|v| &v.value).collect();
        let (out, saved) = op::forward(&op, &values, &shape);
        if !self.recording || inputs.iter().all(|v| v.id.is_none()) {
            return Ok(constant(out));
        }
        let input =
            |v: &&Var| Input { variable: v.id, shape: v.shape().to_vec(), dtype: v.value.dtype() };
        let mut record = self.record.borrow_mut();
        let output = record.variables;
        record.variables += 1;
        record.nodes.push(Node {
            op: Box::new(op),
            inputs: inputs.iter().map(input).collect(),
            output,
            saved,
        });
        Ok(Var { value: out, id: Some(output) })
    }

    /// Gradients of the scalar `loss` with respect to all leaves. Consumes the tape: what a node has
    /// saved is freed as soon as it has been walked over.
    pub fn backward(self, loss: &Var) -> Result<Gradients> {
        if loss.value.len() != 1 {
            return Err(Error::bug(format!("backward from a tensor of shape {:?}", loss.shape())));
        }
        let seed = Tensor::full(loss.shape(), 1.0, loss.value.dtype());
        Ok(self.backward_from(loss, seed.to_device(loss.value.device())?))
    }

    /// Σ over `output` of `dy` times its derivative: [`Tape::backward`] for any shape.
    pub fn backward_from(self, output: &Var, dy: Tensor) -> Gradients {
        let record = self.record.into_inner();
        let mut all: Vec<Option<Tensor>> = vec![None; record.variables];
        let Some(id) = output.id else { return Gradients { all } };
        all[id] = Some(dy);
        for node in record.nodes.into_iter().rev() {
            let Some(dy) = all[node.output].take() else { continue };
            let mut grads = Grads { all: &mut all, inputs: &node.inputs, device: dy.device() };
            op::backward(&*node.op, &node.saved, dy, &mut grads);
        }
        Gradients { all }
    }
}

impl Default for Tape {
    fn default() -> Self {
        Self::new()
    }
}

/// What [`Tape::backward`] found.
pub struct Gradients {
    all: Vec<Option<Tensor>>,
}

impl Gradients {
    /// Takes the gradient of a leaf; none when the loss does not depend on it.
    pub fn take(&mut self, leaf: &Var) -> Option<Tensor> {
        self.all.get_mut(leaf.id?)?.take()
    }
}
