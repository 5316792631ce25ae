//! The nodes of a tape.

use super::Body;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::op::{GradientPlan, Input, Multiplication, Op, Saved};
use crate::tensor::{Shape, Tensor};

/// How the gradients of a node's inputs are computed.
pub(super) enum BackwardKind {
    /// From the tensors that the op saved.
    Op(Box<dyn Op>, Saved),
    /// By rerunning the computation from these inputs (activation checkpointing).
    Recomputed(Body, Vec<Tensor>),
}

pub(super) struct Node {
    pub(super) kind: BackwardKind,
    pub(super) inputs: Vec<Input>,
    pub(super) output: usize,
    /// Shape of the output; ops that read the output may see it reshaped.
    pub(super) shape: Shape,
}

#[derive(Default)]
pub(super) struct Record {
    pub(super) nodes: Vec<Node>,
    pub(super) variables: usize,
    /// Variables marked by `Tape::mark_boundary`: ops that compute their gradients do not multiply them.
    pub(super) bounds: Vec<usize>,
}

impl Record {
    /// Moves nodes that only transform a leaf, such as parameter casts, to the first use of their output, so that the
    /// leaf gradient is complete as early as the output gradient. The summation order of every gradient stays the same.
    pub(super) fn move_to_first_use(&mut self) {
        let mut uses = vec![(self.nodes.len(), 0); self.variables]; // node of the first use, number of uses
        let mut is_leaf = vec![true; self.variables];
        for (number, node) in self.nodes.iter().enumerate().rev() {
            is_leaf[node.output] = false;
            let variables = node.inputs.iter().filter_map(|input| input.variable);
            variables.for_each(|variable| uses[variable] = (number, uses[variable].1 + 1));
        }
        let first = |node: &Node| uses[node.output].0;
        let place = |number: usize, node: &Node| match node.inputs[..] {
            [Input { variable: Some(v), .. }] if is_leaf[v] && uses[v].1 == 1 => 2 * first(node),
            _ => 2 * number + 1,
        };
        let nodes = self.nodes.drain(..).enumerate().map(|(n, node)| (place(n, &node), node));
        let mut nodes: Vec<(usize, Node)> = nodes.collect();
        nodes.sort_by_key(|(place, _)| *place);
        self.nodes = nodes.into_iter().map(|(_, node)| node).collect();
    }

    /// Plans the gradients of variables that are used exactly once: the op that uses such a variable can multiply while it
    /// writes the gradient, and it can write f32 where the variable is a cast of an f32 leaf, or one of the leaves `wide`.
    /// Empty on the CPU.
    pub(super) fn plan(
        &self,
        output: Option<usize>,
        device: Device,
        wide: &[usize],
    ) -> GradientPlan {
        if device == Device::Cpu {
            return GradientPlan::default();
        }
        let mut uses = vec![0; self.variables];
        let inputs = self.nodes.iter().flat_map(|node| &node.inputs);
        let variables = inputs.filter_map(|i| i.variable).chain(output);
        variables.chain(self.bounds.iter().copied()).for_each(|id| uses[id] += 1);
        let mut plan = GradientPlan {
            factors: vec![Multiplication::None; self.variables],
            wide: vec![None; self.variables],
        };
        let mut is_leaf = vec![true; self.variables];
        self.nodes.iter().for_each(|node| is_leaf[node.output] = false);
        wide.iter()
            .filter(|leaf| uses[**leaf] == 1)
            .for_each(|leaf| plan.wide[*leaf] = Some(*leaf));
        for node in self.nodes.iter().filter(|node| uses[node.output] == 1) {
            let BackwardKind::Op(op, saved) = &node.kind else { continue };
            if let Some(derivative) = op.derivative(saved) {
                plan.factors[node.output] = Multiplication::Due(derivative);
            }
            if let [Input { variable: Some(leaf), dtype: Dtype::F32, .. }] = node.inputs[..]
                && is_leaf[leaf]
                && op.is_cast()
            {
                plan.wide[node.output] = Some(leaf);
            }
        }
        plan
    }
}
