//! Reverse-mode automatic differentiation: nodes are recorded in execution order and visited in reverse.

mod apply;
mod record;

use crate::kernel;
use crate::op::{self, GradBuffer, Input, Multiplication};
use crate::tensor::Tensor;
use record::{BackwardKind, Record};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use unix::{Error, Result};

/// A computation that can be rerun from its inputs to its output, on any tape.
pub type Body = Box<dyn Fn(&Tape, &[Var]) -> Result<Var>>;

/// Records ops as they run.
pub struct Tape {
    record: RefCell<Record>,
    recording: bool,
    operations: Cell<usize>,
    /// Identifies the tape; unique within the process.
    number: u64,
}

/// A tensor in a computation; it has a gradient if it is a leaf or depends on one.
#[derive(Clone, Debug)]
pub struct Var {
    value: Tensor,
    id: Option<usize>,
    /// Number of the tape that `id` belongs to.
    tape: u64,
}

impl Var {
    /// The underlying tensor.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// Length of every axis.
    pub fn shape(&self) -> &[usize] {
        self.value.shape()
    }

    /// Returns the same elements with a different shape; shares memory.
    ///
    /// # Panics
    /// If the number of elements differs.
    pub fn reshape(&self, shape: &[usize]) -> Var {
        Var { value: self.value.reshape(shape), id: self.id, tape: self.tape }
    }

    /// Whether the variable has a gradient: it is a leaf or was computed from one.
    pub fn has_gradient(&self) -> bool {
        self.id.is_some()
    }

    /// Returns the value as a constant: no gradient flows through it.
    pub fn detached(&self) -> Var {
        constant(self.value.clone())
    }

    fn input(&self) -> Input {
        Input { variable: self.id, shape: self.shape().into(), dtype: self.value.dtype() }
    }
}

/// Wraps a tensor as a variable without a gradient.
pub fn constant(value: Tensor) -> Var {
    Var { value, id: None, tape: 0 }
}

impl Tape {
    /// Creates a tape for training.
    pub fn new() -> Self {
        static TAPES: AtomicU64 = AtomicU64::new(1);
        Self {
            record: RefCell::default(),
            recording: true,
            operations: Cell::new(0),
            number: TAPES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Creates a tape that saves nothing, for evaluation.
    pub fn without_gradients() -> Self {
        Self { recording: false, ..Self::new() }
    }

    /// Whether ops are recorded for a backward pass.
    pub fn is_recording(&self) -> bool {
        self.recording
    }

    /// Wraps a tensor as a leaf, whose gradient is computed.
    pub fn leaf(&self, value: Tensor) -> Var {
        if !self.recording {
            return constant(value);
        }
        let mut record = self.record.borrow_mut();
        record.variables += 1;
        Var { value, id: Some(record.variables - 1), tape: self.number }
    }

    /// Marks a variable as the boundary of a block that [`Tape::recomputed`] might recompute: the op that computes its
    /// gradient does not also multiply it by the derivative of an activation, as if the block were on a separate tape.
    pub fn mark_boundary(&self, var: &Var) {
        self.record.borrow_mut().bounds.extend(var.id);
    }

    /// Records a node that keeps only its inputs (activation checkpointing, Chen et al. 2016): `value` is the output of
    /// `body` for these inputs, and the backward pass reruns `body`. Gradients are bit-identical to recording every op
    /// if [`Tape::mark_boundary`] has been called for the inputs and the output.
    pub fn recomputed(&self, value: Tensor, inputs: &[&Var], body: Body) -> Result<Var> {
        self.owns(inputs, || "a recomputed block")?;
        Ok(self.node(value, inputs, || {
            BackwardKind::Recomputed(body, inputs.iter().map(|v| v.value.clone()).collect())
        }))
    }

    /// Bytes kept for the backward pass, not counting the `known` tensors.
    pub fn kept_bytes(&self, known: &[&Tensor]) -> usize {
        let record = self.record.borrow();
        let mut seen: BTreeSet<usize> = known.iter().map(|t| t.storage_id()).collect();
        let mut bytes = 0;
        for node in &record.nodes {
            let (BackwardKind::Op(_, kept) | BackwardKind::Recomputed(_, kept)) = &node.kind;
            let new = kept.iter().filter(|t| seen.insert(t.storage_id()));
            bytes += new.map(Tensor::bytes).sum::<usize>();
        }
        bytes
    }

    /// Number of floating-point operations of all ops run so far, from [`Op::flops`].
    pub fn flops(&self) -> usize {
        self.operations.get()
    }

    /// Computes the gradients of the scalar `loss` with respect to all leaves. Consumes the tape: the tensors saved by
    /// a node are freed as soon as it has been visited.
    pub fn backward(self, loss: &Var) -> Result<Gradients> {
        let one = Tensor::full(&[1], 1.0, loss.value.dtype());
        let one = kernel::constant(&one, loss.value.device())?;
        self.backward_scaled(loss, &one)
    }

    /// Like [`Tape::backward`], for `scale` times the scalar `loss`; `scale` has one element, and the dtype and device
    /// of `loss`.
    pub fn backward_scaled(self, loss: &Var, scale: &Tensor) -> Result<Gradients> {
        let seed = seed(loss, scale)?;
        self.backward_from(loss, seed)
    }

    /// Like [`Tape::backward_scaled`], but calls `whole` with the index and gradient of each leaf as soon as the
    /// gradient is complete; the gradient is `None` if the loss does not depend on the leaf. Gradients complete roughly
    /// in reverse order of the leaves' first use.
    ///
    /// `buffers` holds buffers with the shapes of the leaves, in the same order (there may be fewer): an op writes a
    /// leaf's gradient directly into its buffer if possible. If the gradient ends up in different memory, the buffer is
    /// dropped.
    pub fn backward_each(
        self,
        loss: &Var,
        scale: &Tensor,
        leaves: &[Var],
        buffers: Vec<Tensor>,
        mut whole: impl FnMut(usize, Option<Tensor>),
    ) -> Result<()> {
        let seed = seed(loss, scale)?;
        self.owns(&leaves.iter().chain([loss]).collect::<Vec<_>>(), || "backward")?;
        let mut record = self.record.borrow_mut();
        record.move_to_first_use();
        // For each leaf, the first node that uses it: once that has been visited, the gradient is complete.
        let mut first_use = vec![usize::MAX; record.variables];
        for (number, node) in record.nodes.iter().enumerate().rev() {
            let variables = node.inputs.iter().filter_map(|input| input.variable);
            variables.for_each(|variable| first_use[variable] = number);
        }
        let mut waiting = vec![Vec::new(); record.nodes.len()];
        let mut all = vec![None; record.variables];
        drop(record);
        for (leaf, tensor) in leaves.iter().zip(buffers) {
            if let Some(slot) = leaf.id.map(|id| &mut all[id]) {
                *slot = Some(GradBuffer { tensor, accumulate: false });
            }
        }
        let mut unused = Vec::new();
        for (place, leaf) in leaves.iter().enumerate() {
            match leaf.id.map(|id| (id, first_use[id])) {
                Some((id, number)) if number < waiting.len() => waiting[number].push((id, place)),
                _ => unused.push((leaf.id, place)),
            }
        }
        self.walk(loss, seed, &mut all, &[], |number, all| {
            for (id, place) in &waiting[number] {
                whole(*place, take(all, *id, leaves[*place].shape()));
            }
        })?;
        for (id, place) in unused {
            whole(place, id.and_then(|id| take(&mut all, id, leaves[place].shape())));
        }
        Ok(())
    }

    /// Like [`Tape::backward`] for an output of any shape: computes the gradients of Σ `dy`·`output`.
    pub fn backward_from(self, output: &Var, dy: Tensor) -> Result<Gradients> {
        self.owns(&[output], || "backward")?;
        let (mut all, tape) = (vec![None; self.record.borrow().variables], self.number);
        self.walk(output, dy, &mut all, &[], |_, _| ())?;
        Ok(Gradients { all, tape })
    }

    /// Visits all nodes in reverse order and adds to the existing gradients; calls `passed` with the index of each node
    /// after visiting it. The gradients of the 16-bit leaves `wide` may be f32.
    fn walk(
        self,
        output: &Var,
        dy: Tensor,
        all: &mut Vec<Option<GradBuffer>>,
        wide: &[usize],
        mut passed: impl FnMut(usize, &mut [Option<GradBuffer>]),
    ) -> Result<()> {
        let record = self.record.into_inner();
        all.resize(record.variables, None);
        let mut plan = record.plan(output.id, dy.device(), wide);
        if let Some(id) = output.id {
            op::accumulate(&mut all[id], dy);
        }
        for (number, node) in record.nodes.into_iter().enumerate().rev() {
            // Removed even if it was not applied, because a factor keeps a tensor alive.
            let factor = plan.factors.get_mut(node.output).map(std::mem::take);
            let is_multiplied = matches!(factor, Some(Multiplication::Done));
            drop(factor);
            if let Some(dy) = take(all, node.output, &node.shape) {
                match node.kind {
                    BackwardKind::Op(op, saved) => {
                        let plan = (&mut plan, is_multiplied);
                        op::backward(&*op, &saved, dy, &node.inputs, all, plan);
                    }
                    BackwardKind::Recomputed(body, values) => {
                        again(&body, values, &node.inputs, dy, all, &plan.wide)?
                    }
                }
            }
            passed(number, all);
        }
        Ok(())
    }
}

/// Removes and returns the gradient of a variable, in the shape of its value.
fn take(all: &mut [Option<GradBuffer>], id: usize, shape: &[usize]) -> Option<Tensor> {
    Some(all.get_mut(id)?.take()?.gradient()?.reshape(shape))
}

/// Returns the initial gradient of a backward pass for `scale` times the scalar `loss`.
fn seed(loss: &Var, scale: &Tensor) -> Result<Tensor> {
    let place = |t: &Tensor| (t.len(), t.dtype(), t.device());
    if loss.value.len() != 1 || place(scale) != place(&loss.value) {
        return Err(Error::bug(format!(
            "backward from {:?} needs a scalar and a scale like it, got {scale:?}",
            loss.value
        )));
    }
    Ok(scale.reshape(loss.shape()))
}

/// Reruns `body` on its own tape and runs its backward pass. Existing gradients are passed in; new terms are added in
/// the same buffers and in the same order as on a single tape. `wide` is that of [`op::GradientPlan`].
fn again(
    body: &Body,
    values: Vec<Tensor>,
    inputs: &[Input],
    dy: Tensor,
    all: &mut [Option<GradBuffer>],
    wide: &[Option<usize>],
) -> Result<()> {
    let tape = Tape::new();
    // For each leaf, its variable on the outer tape and its gradient or buffer. A variable passed twice is one leaf.
    let (mut outer, mut found) = (Vec::new(), Vec::new());
    let variables: Vec<Var> = inputs
        .iter()
        .zip(values)
        .map(|(input, value)| match input.variable {
            None => constant(value),
            Some(variable) => match outer.iter().position(|v| *v == variable) {
                Some(id) => Var { value, id: Some(id), tape: tape.number },
                None => {
                    outer.push(variable);
                    found.push(all[variable].take());
                    tape.leaf(value)
                }
            },
        })
        .collect();
    let is_wide = |leaf: &usize| wide.get(outer[*leaf]).is_some_and(Option::is_some);
    let wide: Vec<usize> = (0..outer.len()).filter(is_wide).collect();
    let output = body(&tape, &variables)?;
    tape.walk(&output, dy, &mut found, &wide, |_, _| ())?;
    for (variable, gradient) in outer.into_iter().zip(found) {
        all[variable] = gradient;
    }
    Ok(())
}

impl Default for Tape {
    fn default() -> Self {
        Self::new()
    }
}

/// The result of [`Tape::backward`].
pub struct Gradients {
    all: Vec<Option<GradBuffer>>,
    tape: u64,
}

impl Gradients {
    /// Removes and returns the gradient of a leaf; `None` if the loss does not depend on it.
    ///
    /// # Panics
    /// If the leaf belongs to another tape.
    pub fn take(&mut self, leaf: &Var) -> Option<Tensor> {
        let id = leaf.id?;
        assert_eq!(leaf.tape, self.tape, "the leaf belongs to another tape");
        take(&mut self.all, id, leaf.shape())
    }
}
