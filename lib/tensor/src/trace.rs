//! Records which ops a computation consists of, from shapes alone: nothing is computed, so a model that is far too
//! large for this machine can be examined on it.

use crate::op::{Op, Saved};
use crate::tensor::Tensor;
use std::cell::RefCell;

/// An op of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedOp {
    /// Name of the op.
    pub name: &'static str,
    /// Floating-point operations of its forward pass.
    pub flops: usize,
    /// Floating-point operations of its backward pass, which computes only the gradients that are needed: none of frozen
    /// weights.
    pub backward_flops: usize,
    /// Bytes of the gradients that the backward pass computes; 0 if there is none.
    pub gradients: usize,
    /// Bytes of its inputs.
    pub read: usize,
    /// Bytes of its output.
    pub written: usize,
    /// Bytes of the gradients of its output and its inputs but a weight, whose gradient is one of the parameters'.
    pub passed: usize,
    /// Bytes that it takes beside inputs and output, if they matter ([`Op::workspace`]).
    pub workspace: usize,
    /// Size of an element of its first input in bytes.
    pub element: usize,
}

thread_local! {
    static TRACE: RefCell<Option<Vec<TracedOp>>> = const { RefCell::new(None) };
}

/// Ops whose second input is a weight.
const WEIGHTED: [&str; 3] = ["linear", "frozen_linear", "linear_cross_entropy"];
/// Ops whose gradient of an input takes the place of that of the output.
const IN_PLACE: [&str; 2] = ["low_rank", "swiglu"];

/// Runs `work`, whose ops on this thread are recorded and not computed, and returns the ops in order. Outputs are zeros
/// that take no memory if they are large; every op keeps for the backward pass what [`Op::kept`] says.
pub fn trace<R>(work: impl FnOnce() -> R) -> (R, Vec<TracedOp>) {
    TRACE.with(|trace| *trace.borrow_mut() = Some(Vec::new()));
    let result = work();
    let ops = TRACE.with(|trace| trace.borrow_mut().take());
    (result, ops.unwrap_or_default())
}

/// Whether ops of this thread are recorded and not computed.
pub fn is_on() -> bool {
    TRACE.with(|trace| trace.borrow().is_some())
}

/// Records an op in place of its forward pass, if ops are traced; `out` returns its output.
pub(crate) fn record(
    op: &dyn Op,
    inputs: &[&Tensor],
    out: impl FnOnce() -> Tensor,
) -> Option<(Tensor, Saved)> {
    TRACE.with(|trace| {
        let mut trace = trace.borrow_mut();
        let ops = trace.as_mut()?;
        let out = out();
        let shapes: Vec<&[usize]> = inputs.iter().map(|x| x.shape()).collect();
        // The output of a loss is in f32 whatever it computes in.
        let (name, element) = (op.name(), inputs.first().unwrap_or(&&out).dtype().bytes());
        let (flops, written) = (op.flops(&shapes), out.bytes());
        // Only some rows of a table are read.
        let read =
            if name == "embedding" { written } else { inputs.iter().map(|x| x.bytes()).sum() };
        let weight = if WEIGHTED.contains(&name) { inputs[1].bytes() } else { 0 };
        let shared = if IN_PLACE.contains(&name) { written } else { 0 };
        let passed = (read + written).saturating_sub(weight + shared);
        let workspace = op.workspace(&shapes, element);
        let [backward_flops, gradients] = [0; 2];
        ops.push(TracedOp {
            name,
            flops,
            backward_flops,
            gradients,
            read,
            written,
            passed,
            workspace,
            element,
        });
        let saved = op.kept(inputs, &out);
        Some((out, saved))
    })
}

/// Adds the backward pass to the op that was recorded last, if ops are traced: `inputs` are its inputs, each with whether
/// its gradient is needed.
pub(crate) fn record_backward(op: &dyn Op, inputs: &[(&Tensor, bool)]) {
    TRACE.with(|trace| {
        if let Some(last) = trace.borrow_mut().as_mut().and_then(|ops| ops.last_mut()) {
            let shapes: Vec<&[usize]> = inputs.iter().map(|(x, _)| x.shape()).collect();
            let needed: Vec<bool> = inputs.iter().map(|(_, needed)| *needed).collect();
            last.backward_flops = op.backward_flops(&shapes, &needed);
            let gradients = inputs.iter().filter(|(_, needed)| *needed);
            last.gradients = gradients.map(|(x, _)| x.bytes()).sum();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::ops::activation::Activation;
    use crate::ops::attention::{Attention, Layout, Mask};
    use crate::ops::linear::Linear;
    use crate::ops::linear_cross_entropy::LinearCrossEntropy;
    use crate::ops::low_rank::LowRank;
    use crate::{Tape, constant, memory};

    /// Counted by hand: 3 rows of 5 features, rank 2, 7 outputs; 4 queries and 6 keys of 8.
    #[test]
    fn backward_passes_compute_only_the_gradients_that_are_needed() {
        let tape = Tape::new();
        let zeros = |shape: &[usize]| constant(Tensor::zeros(shape, Dtype::F32));
        let leaf = |shape: &[usize]| tape.leaf(Tensor::zeros(shape, Dtype::F32));
        let linear = || Linear { bias: false, activation: Activation::Identity };
        let low_rank = || LowRank { scale: 1.0, merged: false };
        let (a, b) = (leaf(&[2, 5]), leaf(&[7, 2]));
        let loss = LinearCrossEntropy { ignore: -1, smoothing: 0.0 };
        let causal = Mask { causal: true, ..Mask::default() };
        let attention = Attention { mask: causal, ..Attention::new(1, Layout::Separate) };
        let (_, ops) = trace(|| {
            let frozen = tape.apply(linear(), &[&zeros(&[3, 5]), &zeros(&[7, 5])]).unwrap();
            tape.apply(linear(), &[&leaf(&[3, 5]), &zeros(&[7, 5])]).unwrap();
            tape.apply(low_rank(), &[&frozen, &zeros(&[3, 5]), &a, &b]).unwrap();
            tape.apply(low_rank(), &[&frozen, &leaf(&[3, 5]), &a, &b]).unwrap();
            let [q, k, v] = [4, 6, 6].map(|rows| leaf(&[1, rows, 8]));
            tape.apply(attention, &[&q, &k, &v]).unwrap();
            let targets = constant(Tensor::from_slice(&[0_i32; 3], &[3]));
            tape.apply(loss, &[&leaf(&[3, 5]), &zeros(&[7, 5]), &targets]).unwrap();
        });
        let found: Vec<_> = ops.iter().map(|op| [op.flops, op.backward_flops]).collect();
        let product = 2 * 3 * 5 * 7;
        let [y, x] = [2 * 3 * 7 * 2, 2 * 3 * 5 * 2];
        // The four queries see 3, 4, 5 and 6 keys; two products forward, five backward.
        let seen = 2 * 8 * (3 + 4 + 5 + 6);
        assert_eq!(
            found,
            [
                [product, 0],
                [product, product],
                [y + x, 2 * y + x],
                [y + x, 2 * (y + x)],
                [2 * seen, 5 * seen],
                [product, 2 * product],
            ]
        );
    }

    #[test]
    fn a_large_product_is_traced_and_not_computed() {
        let (rows, width) = (1 << 16, 1 << 13);
        let before = memory::usage().live;
        let ((live, shape), ops) = trace(|| {
            let tape = Tape::new();
            let x = constant(Tensor::zeros(&[rows, 1], Dtype::F32));
            let w = tape.leaf(Tensor::zeros(&[width, 1], Dtype::F32));
            let op = Linear { bias: false, activation: Activation::Identity };
            let y = tape.apply(op, &[&x, &w]).unwrap();
            (memory::usage().live, y.shape().to_vec())
        });
        assert_eq!(shape, [rows, width]);
        // The allocator rounds sizes up; other tests may free a little.
        let bytes = 4 * rows * width;
        assert!((live - before).abs_diff(bytes) < bytes / 4, "{live} {before}");
        let [op] = ops[..] else { panic!("{ops:?}") };
        assert_eq!((op.name, op.flops, op.element), ("linear", 2 * rows * width, 4));
        assert_eq!((op.read, op.written), (4 * (rows + width), 4 * rows * width));
        assert_eq!((op.backward_flops, op.gradients), (2 * rows * width, 4 * width), "of W alone");
        // Outside, ops are computed.
        let x = constant(Tensor::full(&[1, 1], 3.0, Dtype::F32));
        let op = Linear { bias: false, activation: Activation::Identity };
        let y = Tape::new().apply(op, &[&x, &x]).unwrap();
        assert_eq!(y.value().to_f64(), [9.0]);
    }
}
