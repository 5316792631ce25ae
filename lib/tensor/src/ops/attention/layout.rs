//! Location of queries, keys and values in the inputs of a call, and visibility of the keys.

use super::{Attention, Layout};
use crate::op::Op;
use crate::tensor::Tensor;

/// Sizes of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    /// Queries per sample; for joined sequences, the total of both.
    pub(super) queries: usize,
    /// Keys per sample; for joined sequences, the total of both.
    pub(super) keys: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Head size.
    pub(super) dim: usize,
}

/// Contents of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentRole {
    Queries,
    Keys,
    Values,
}

/// Columns of one input that hold queries, keys or values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Index of the input.
    pub(super) input: usize,
    /// First column of the first head.
    pub(super) start: usize,
    /// Row stride.
    pub(super) stride: usize,
    /// Rows per sample.
    pub(super) rows: usize,
    /// Index of the input that holds the normalization weight, if any.
    pub(super) weight: Option<usize>,
}

impl Segment {
    /// Returns the offset in the input of the first row of a sample and head.
    pub(super) fn at(&self, s: Sizes, sample: usize, head: usize) -> usize {
        sample * self.rows * self.stride + self.start + head * s.dim
    }
}

impl Sizes {
    /// Returns the sizes of a call whose shapes have been checked.
    pub(super) fn of(op: &Attention, inputs: &[&Tensor]) -> Self {
        sizes(op, inputs[0].shape(), inputs.get(1).map(|x| x.shape()))
    }

    /// Query heads per key/value head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the number of keys that query i sees under a causal mask: all keys j < i + 1 + keys - queries.
    pub(super) fn causal_end(&self, query: usize) -> usize {
        (query + 1 + self.keys).saturating_sub(self.queries)
    }

    /// Returns the sum of [`Self::causal_end`] over all queries.
    pub(super) fn causal_pairs(&self) -> usize {
        // Of more queries than keys, the first ones see none.
        let queries = self.queries.min(self.keys);
        queries * (2 * self.keys + 1 - queries) / 2
    }
}

fn sizes(op: &Attention, first: &[usize], second: Option<&[usize]>) -> Sizes {
    let (heads, kv_heads) = (op.heads, op.kv_heads);
    let packed = heads + 2 * kv_heads;
    let rows = |x: Option<&[usize]>| x.map_or(0, |x| x[1]);
    let (queries, keys, parts) = match op.layout {
        Layout::Packed => (first[1], first[1], packed),
        Layout::Separate => (first[1], rows(second), heads),
        Layout::Joined => (first[1] + rows(second), first[1] + rows(second), packed),
    };
    Sizes { batch: first[0], queries, keys, heads, kv_heads, dim: first[2] / parts }
}

/// Checks the shapes of a call and returns its sizes. Errors: the shapes violate a rule, which the message names.
pub(super) fn check(op: &Attention, inputs: &[&[usize]]) -> Result<Sizes, String> {
    let operands = op.operands();
    let wrong = || {
        let operands = match op.layout {
            Layout::Packed => "qkv [B, T, (heads + 2·kv_heads)·D]",
            Layout::Separate => "q [B, T, heads·D], k and v [B, S, kv_heads·D]",
            Layout::Joined => "two of qkv [B, T, (heads + 2·kv_heads)·D]",
        };
        let weights = [", two weights [D]", ", four weights [D]"];
        let weights = if op.weights() == 0 { "" } else { weights[op.weights() / 4] };
        let lengths = if op.mask.padding { ", lengths [B] (of two sequences [B, 2])" } else { "" };
        let counter = if op.dropout.is_some() { ", a counter [4]" } else { "" };
        format!("takes {operands}{weights}{lengths}{counter}")
    };
    if op.kv_heads == 0 || op.heads == 0 || !op.heads.is_multiple_of(op.kv_heads) {
        return Err(format!("{} heads cannot share {} key/value heads", op.heads, op.kv_heads));
    }
    if op.mask.causal && op.layout == Layout::Joined {
        return Err("joined sequences have no common order for a causal mask".to_string());
    }
    if inputs.len() != op.differentiated() + op.integers()
        || inputs[..operands].iter().any(|x| x.len() != 3 || x[1] == 0)
    {
        return Err(wrong());
    }
    let first = inputs[0];
    let parts = op.heads + if op.layout == Layout::Separate { 0 } else { 2 * op.kv_heads };
    if first[2] == 0 || !first[2].is_multiple_of(parts) {
        return Err(format!("{} features cannot be split into {parts} heads", first[2]));
    }
    let s = sizes(op, first, inputs.get(1).copied());
    let fits = match op.layout {
        Layout::Packed => true,
        Layout::Separate => {
            let kv = [s.batch, s.keys, s.kv_heads * s.dim];
            *inputs[1] == kv && *inputs[2] == kv
        }
        Layout::Joined => inputs[1][0] == s.batch && inputs[1][2] == first[2],
    };
    let weights = &inputs[operands..op.differentiated()];
    let lengths: &[usize] = if op.layout == Layout::Joined { &[s.batch, 2] } else { &[s.batch] };
    if !fits
        || weights.iter().any(|w| **w != [s.dim])
        || op.mask.padding && inputs[op.differentiated()] != lengths
    {
        return Err(wrong());
    }
    if let Some(dropout) = op.dropout {
        let probabilities = [s.batch, s.heads, s.queries, s.keys];
        dropout.shape(&[&probabilities, inputs[inputs.len() - 1]])?;
        if dropout.samples != s.batch {
            return Err(format!(
                "dropout expects {} samples, but the batch has {}",
                dropout.samples, s.batch
            ));
        }
    }
    Ok(s)
}

/// Returns the segments of `part`: one, or two for joined sequences.
pub(super) fn segments(
    op: &Attention,
    s: Sizes,
    part: SegmentRole,
    inputs: &[&Tensor],
) -> Vec<Segment> {
    let (q, kv) = (s.heads * s.dim, s.kv_heads * s.dim);
    let packed = match part {
        SegmentRole::Queries => 0,
        SegmentRole::Keys => q,
        SegmentRole::Values => q + kv,
    };
    let (first, count, start) = match (op.layout, part) {
        (Layout::Packed, _) => (0, 1, packed),
        (Layout::Joined, _) => (0, 2, packed),
        (Layout::Separate, _) => (part as usize, 1, 0),
    };
    let segment = |i: usize| Segment {
        input: first + i,
        start,
        stride: inputs[first + i].shape()[2],
        rows: inputs[first + i].shape()[1],
        weight: (op.weights() > 0 && part != SegmentRole::Values)
            .then(|| op.operands() + 2 * i + part as usize),
    };
    (0..count).map(segment).collect()
}

/// Returns the number of visible keys in each segment of sample `b`.
pub(super) fn visible_keys(
    op: &Attention,
    segments: &[Segment],
    inputs: &[&Tensor],
    b: usize,
) -> [usize; 2] {
    let mut seen = [0; 2];
    for (i, segment) in segments.iter().enumerate() {
        seen[i] = segment.rows;
        if op.mask.padding {
            let lengths = inputs[op.differentiated()].read::<i32>();
            let length = usize::try_from(lengths[b * segments.len() + i]).unwrap_or(0);
            seen[i] = length.min(segment.rows);
        }
    }
    seen
}
