//! Forward passes: what a tape checks, runs and records.

use super::record::{BackwardKind, Node};
use super::{Tape, Var, constant};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::op::{self, Op};
use crate::ops::cast::{self, Cast};
use crate::tensor::Tensor;
use crate::trace;
use std::iter;
use unix::{Error, Result};

impl Tape {
    /// Runs an op. Errors: a bug if the inputs do not fit the op, because shapes from files and configurations are
    /// validated where they are read.
    pub fn apply(&self, op: impl Op, inputs: &[&Var]) -> Result<Var> {
        let shape = self.check(&op, inputs)?;
        let values: Vec<&Tensor> = inputs.iter().map(|v| &v.value).collect();
        let (out, saved) = op::forward(&op, &values, &shape);
        self.trace_backward(&op, inputs);
        Ok(self.node(out, inputs, || BackwardKind::Op(Box::new(op), saved)))
    }

    /// Runs an op that adds to its first input ([`Op::adds`]) in the memory of that input, unless others use it too.
    /// Errors: as for [`Tape::apply`].
    pub fn apply_onto(&self, op: impl Op, first: Var, others: &[&Var]) -> Result<Var> {
        fn all<'a>(first: &'a Var, others: &[&'a Var]) -> Vec<&'a Var> {
            iter::once(first).chain(others.iter().copied()).collect()
        }
        self.check(&op, &all(&first, others))?;
        let values: Vec<&Tensor> = others.iter().map(|v| &v.value).collect();
        let (out, saved) = op::forward_onto(&op, first.value, &values);
        // Of inputs, a node has only shapes and dtypes.
        let first = Var { value: out.clone(), ..first };
        self.trace_backward(&op, &all(&first, others));
        Ok(self.node(out, &all(&first, others), || BackwardKind::Op(Box::new(op), saved)))
    }

    /// Records which gradients the backward pass of an op computes, if ops are traced.
    fn trace_backward(&self, op: &dyn Op, inputs: &[&Var]) {
        if trace::is_on() {
            let needed = |v: &Var| self.recording && v.id.is_some();
            let inputs: Vec<_> = inputs.iter().map(|v| (&v.value, needed(v))).collect();
            trace::record_backward(op, &inputs);
        }
    }

    /// Checks the inputs of an op, counts its operations and returns the shape of its output.
    fn check(&self, op: &dyn Op, inputs: &[&Var]) -> Result<Vec<usize>> {
        let shapes: Vec<&[usize]> = inputs.iter().map(|v| v.shape()).collect();
        let shape = op
            .shape(&shapes)
            .map_err(|why| Error::bug(format!("{} of {shapes:?}: {why}", op.name())))?;
        let device = inputs.first().map_or(Device::Cpu, |v| v.value.device());
        let dtypes: Vec<Dtype> = inputs.iter().map(|v| v.value.dtype()).collect();
        if let Some((i, required)) = op::wrong_dtype(op, &dtypes) {
            let (name, found) = (op.name(), dtypes[i]);
            return Err(Error::bug(format!("{name}: input {i} is {found}, must be {required}")));
        }
        if let Some(other) = inputs.iter().map(|v| v.value.device()).find(|d| *d != device) {
            return Err(Error::bug(format!("{}: inputs are on {device} and {other}", op.name())));
        }
        self.owns(inputs, || op.name())?;
        if let Some(i) =
            op.constants().iter().find(|i| inputs.get(**i).is_some_and(|v| v.id.is_some()))
        {
            return Err(Error::bug(format!("{}: input {i} has no gradient", op.name())));
        }
        self.operations.set(self.operations.get() + op.flops(&shapes));
        Ok(shape)
    }

    /// Casts many variables at once, as [`Cast`] does one by one.
    pub fn cast_all(&self, inputs: &[&Var], dtype: Dtype) -> Result<Vec<Var>> {
        self.owns(inputs, || "cast")?;
        let values: Vec<&Tensor> = inputs.iter().map(|v| &v.value).collect();
        let Some(cast) = cast::convert_all(&values, dtype) else {
            return inputs.iter().map(|v| self.apply(Cast(dtype), &[v])).collect();
        };
        let elements: usize = values.iter().map(|value| value.len()).sum();
        self.operations.set(self.operations.get() + elements);
        let kind = || BackwardKind::Op(Box::new(Cast(dtype)), Vec::new());
        Ok(inputs.iter().zip(cast).map(|(v, value)| self.node(value, &[v], kind)).collect())
    }

    /// Records a node with this output; returns a constant if no input needs a gradient.
    pub(super) fn node(
        &self,
        value: Tensor,
        inputs: &[&Var],
        kind: impl FnOnce() -> BackwardKind,
    ) -> Var {
        if !self.recording || inputs.iter().all(|v| v.id.is_none()) {
            return constant(value);
        }
        let mut record = self.record.borrow_mut();
        let output = record.variables;
        record.variables += 1;
        let inputs = inputs.iter().map(|v| v.input()).collect();
        let shape = value.shape().into();
        record.nodes.push(Node { kind: kind(), inputs, output, shape });
        Var { value, id: Some(output), tape: self.number }
    }

    /// Checks that `vars` belong to this tape: on another tape, their ids mean different gradients. Errors: a bug if
    /// one does not.
    pub(super) fn owns(&self, vars: &[&Var], what: impl Fn() -> &'static str) -> Result<()> {
        let is_foreign = |v: &&Var| v.id.is_some() && v.tape != self.number;
        match vars.iter().position(is_foreign) {
            Some(i) if self.recording => {
                Err(Error::bug(format!("{}: variable {i} belongs to another tape", what())))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::low_rank::LowRank;

    #[test]
    fn an_op_adds_in_place_unless_its_first_input_is_used_elsewhere() {
        let tape = Tape::new();
        let full = |value, shape: &[usize]| tape.leaf(Tensor::full(shape, value, Dtype::F64));
        let (x, a, b) = (full(2.0, &[3, 2]), full(0.5, &[1, 2]), full(1.0, &[4, 1]));
        let y = full(1.0, &[3, 4]);
        let start = y.value.read::<f64>().as_ptr();
        let kept = y.clone();
        let add =
            |y| tape.apply_onto(LowRank { scale: 3.0, merged: false }, y, &[&x, &a, &b]).unwrap();
        let shared = add(y);
        assert_eq!((kept.value.to_f64(), shared.value.to_f64()), (vec![1.0; 12], vec![7.0; 12]));
        let own = add(kept);
        assert_eq!((own.value.read::<f64>().as_ptr(), own.value.to_f64()), (start, vec![7.0; 12]));
    }
}
