//! A linear layer whose weight is not trained and is stored in another form than x: y = f(x Wᵀ + b), with x [.., K],
//! W [N, K] in 4 bits ([`crate::nf4`]) or in another floating-point dtype, b [N] if `bias`, y [.., N].
//!
//! W is brought into the dtype of x for the time of a product, in the forward pass and again in the backward pass, so that
//! only one weight at a time takes that memory: the values, and so all results, are those of [`Linear`] with a weight that
//! was dequantised once. On the CPU, single steps of few sequences multiply a W in bf16 as it is stored, and products of up to
//! some hundred rows expand parts of W that stay in the cache; on a GPU, a few rows are multiplied by the codes themselves.
//! Costs 2·R·N·K FLOPs forward and as many backward (R rows); a product of many rows also moves 0.5 and 2 or 4 bytes per
//! weight to dequantise it.
//!
//! With a low-rank update ([`LowRank`](super::low_rank::LowRank) with `merged`), W + s·B A takes the place of W: B A costs
//! 2·r·N·K FLOPs each time that W is expanded, which is less than the update of many rows costs.

mod cpu;
pub(crate) mod cuda;

use super::activation::Activation;
use super::linear::Linear;
use super::linear::cpu::{Weight, transposes};
use crate::dtype::{Dtype, Element};
use crate::nf4::{Nf4, widen};
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::product::FEW;
use crate::tensor::Tensor;
use crate::with_float;

/// How the weight is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Storage {
    /// A matrix of this floating-point dtype.
    Dense(Dtype),
    /// 4-bit codes, of the tensors [`Nf4::pieces`].
    Nf4(Nf4),
}

/// Linear layer with a stored weight. Inputs: x, W or the codes of W, b if `bias`, the other tensors of W, and A [r, K] and
/// B [N, r] if `merged`.
#[derive(Clone, Copy, Debug)]
pub struct FrozenLinear {
    /// How W is stored.
    pub weight: Storage,
    /// Whether there is a b.
    pub bias: bool,
    /// Activation f.
    pub activation: Activation,
    /// The factor s of a low-rank update that is merged into W while it is expanded.
    pub merged: Option<f64>,
}

impl FrozenLinear {
    fn linear(&self) -> Linear {
        Linear { bias: self.bias, activation: self.activation }
    }

    /// Returns the tensors of W, and A and B, given all inputs.
    fn pieces<'a>(&self, inputs: &[&'a Tensor]) -> Vec<&'a Tensor> {
        let rest = inputs[2 + usize::from(self.bias)..].iter().copied();
        std::iter::once(inputs[1]).chain(rest).collect()
    }

    /// Shapes and dtypes of the tensors of W; the shape is None for a dense W, which may have any.
    fn stored(&self) -> Vec<(Option<Vec<usize>>, Dtype)> {
        match self.weight {
            Storage::Dense(dtype) => vec![(None, dtype)],
            Storage::Nf4(layout) => {
                layout.pieces().into_iter().map(|(shape, dtype)| (Some(shape), dtype)).collect()
            }
        }
    }

    /// Shape [N, K] of W, whose first tensor has the shape `first`.
    fn weight_shape(&self, first: &[usize]) -> Option<[usize; 2]> {
        match self.weight {
            Storage::Dense(_) => first.try_into().ok(),
            Storage::Nf4(layout) => Some(layout.shape),
        }
    }

    /// Returns W, or W + s·B A, in the dtype of x, on its device.
    fn expanded(&self, x: &Tensor, pieces: &[&Tensor]) -> Tensor {
        let [n, k] = self.weight_shape(pieces[0].shape()).unwrap_or_default();
        let mut w = Tensor::empty_on(x.device(), &[n, k], x.dtype());
        let (pieces, update) = match (self.merged, pieces) {
            (Some(scale), [pieces @ .., a, b]) => (pieces, Some((scale, *a, *b))),
            _ => (pieces, None),
        };
        if x.device() != crate::Device::Cpu {
            cuda::expand(self.weight, pieces, &mut w);
            if let Some((scale, a, b)) = update {
                cuda::merge(scale, [a, b], &mut w);
            }
            return w;
        }
        with_float!(x.dtype(), T => {
            match self.weight {
                Storage::Dense(_) => widen::<T>(pieces[0], w.write()),
                Storage::Nf4(layout) => layout.dequantise::<T>(pieces, w.write()),
            }
            if let Some((scale, a, b)) = update {
                cpu::merge::<T>(T::of(scale), [a, b], w.write());
            }
        });
        w
    }

    /// Inputs of [`Linear`].
    fn dense<'a>(&self, inputs: &[&'a Tensor], w: &'a Tensor) -> Vec<&'a Tensor> {
        let bias = self.bias.then(|| inputs[2]);
        [inputs[0], w].into_iter().chain(bias).collect()
    }

    /// What to save, given what [`Linear`] saved: x, z or f'(z) if f is not the identity, and the tensors of W.
    fn saved(&self, mut saved: Saved, inputs: &[&Tensor]) -> Saved {
        saved.remove(1);
        saved.extend(self.pieces(inputs).into_iter().cloned());
        saved
    }

    /// Returns what [`Linear`] saved, without W, and the tensors of W.
    fn split<'a>(&self, saved: &'a Saved) -> (Saved, Vec<&'a Tensor>) {
        let own = 1 + usize::from(self.activation != Activation::Identity);
        (saved[..own].to_vec(), saved[own..].iter().collect())
    }

    /// Returns what [`Linear`] saved.
    fn restored(&self, saved: &Saved) -> Saved {
        let (mut own, pieces) = self.split(saved);
        own.insert(1, self.expanded(&saved[0], &pieces));
        own
    }
}

impl Op for FrozenLinear {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        let stored = self.stored();
        let update = if self.merged.is_some() { 2 } else { 0 };
        if inputs.len() != 1 + stored.len() + usize::from(self.bias) + update {
            return Err("takes x, the tensors of W, with a bias b [N], and merged A and B".into());
        }
        let first_rest = 2 + usize::from(self.bias);
        let pieces = std::iter::once(&inputs[1]).chain(&inputs[first_rest..]);
        for ((shape, _), given) in stored.iter().zip(pieces) {
            if shape.as_ref().is_some_and(|shape| shape != given) {
                return Err(format!("a tensor of W is {given:?}, not {:?}", shape.as_ref()));
            }
        }
        let shape = self.weight_shape(inputs[1]).ok_or("takes a matrix W [N, K]")?;
        if let ([.., [r, of_a], [of_b, columns]], 1..) = (inputs, update)
            && [*of_b, *of_a, *columns] != [shape[0], shape[1], *r]
        {
            return Err("takes A [r, K] and B [N, r] for W [N, K]".into());
        }
        let all = [Some(inputs[0]), Some(&shape), self.bias.then(|| inputs[2])];
        self.linear().shape(&all.into_iter().flatten().collect::<Vec<_>>())
    }

    fn constants(&self) -> &'static [usize] {
        if self.bias { &[1, 3, 4, 5, 6, 7, 8] } else { &[1, 2, 3, 4, 5, 6, 7] }
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        let piece = match i {
            0 => return compute,
            1 => 0,
            2 if self.bias => return compute,
            _ => i - 1 - usize::from(self.bias),
        };
        self.stored().get(piece).map_or(compute, |(_, dtype)| *dtype)
    }

    fn flops(&self, inputs: &[&[usize]]) -> usize {
        let [n, _] = self.weight_shape(inputs[1]).unwrap_or_default();
        2 * inputs[0].iter().product::<usize>() * n
    }

    fn kept(&self, inputs: &[&Tensor], out: &Tensor) -> Saved {
        // The tensors of W are parameters.
        self.linear().kept(&[inputs[0], inputs[1]], out)
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let (x, pieces) = (inputs[0], self.pieces(inputs));
        let shape = self.weight_shape(pieces[0].shape()).unwrap_or_default();
        let bias = self.bias.then(|| inputs[2]);
        let of_steps = matches!(x.shape(), [_, .., 1, _]) && (1..=FEW).contains(&x.rows());
        if of_steps && self.merged.is_none() && self.activation == Activation::Identity {
            let weight = (self.weight, &*pieces, shape);
            with_float!(x.dtype(), T => cpu::forward_steps::<T>(weight, x, bias, out.write()));
            return self.saved(vec![x.clone(), pieces[0].clone()], inputs);
        }
        if self.merged.is_some() || transposes(x.rows(), shape) {
            let w = self.expanded(x, &pieces);
            return self.saved(self.linear().forward(&self.dense(inputs, &w), out), inputs);
        }
        let slope = with_float!(x.dtype(), T => {
            let part = |start, out: &mut [T]| cpu::part(self.weight, &pieces, start, out);
            self.linear().compute(x, (Weight::Parts(&part), shape[0]), bias, out)
        });
        let own = [Some(x.clone()), Some(pieces[0].clone()), slope];
        self.saved(own.into_iter().flatten().collect(), inputs)
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        self.linear().backward(&self.restored(saved), dy, grads);
    }
}

/// Returns test cases: every form of storage, with and without bias and activation, odd sizes, a last block that is not
/// whole, blocks that cross rows, few rows, many blocks of scales, the shapes of a transformer, merged updates of low rank.
pub fn cases() -> Vec<Case> {
    use Activation::{Gelu, Identity, Silu};
    let case = |weight: Storage, bias: bool, activation, rows: &[usize], [n, k]: [usize; 2]| {
        let op = FrozenLinear { weight, bias, activation, merged: None };
        let weight = match weight {
            Storage::Dense(_) => vec![(vec![n, k], Dtype::F32)],
            Storage::Nf4(layout) => layout.pieces(),
        };
        let mut case = Case::new(op, &[&[rows, &[k]].concat()])
            .flops(2 * rows.iter().product::<usize>() * n * k);
        for (i, (shape, dtype)) in weight.into_iter().enumerate() {
            let draw = if dtype == Dtype::U8 { Draw::RandInt(256) } else { Draw::Constant };
            case.inputs.push((shape, draw));
            if i == 0 && bias {
                case.inputs.push((vec![n], Draw::Normal));
            }
        }
        case
    };
    let merged =
        |weight: Storage, bias, activation, rows: &[usize], [n, k]: [usize; 2], r: usize| {
            let mut case = case(weight, bias, activation, rows, [n, k]);
            let merged = Some(0.5 / (r as f64).sqrt());
            case.op = Box::new(FrozenLinear { weight, bias, activation, merged });
            case.inputs.extend([(vec![r, k], Draw::Constant), (vec![n, r], Draw::Constant)]);
            case
        };
    let nf4 = |shape, dtype, offset| Storage::Nf4(Nf4 { shape, dtype, offset });
    let (bf16, f16, f32) = (Dtype::Bf16, Dtype::F16, Dtype::F32);
    let of = |dtype, offset: Option<f32>, bias, activation, rows: &[usize], shape| {
        case(nf4(shape, dtype, offset), bias, activation, rows, shape)
    };
    vec![
        of(bf16, None, false, Identity, &[1], [1, 1]),
        of(bf16, Some(0.5), true, Identity, &[3, 5], [7, 11]),
        of(bf16, Some(-0.25), true, Gelu, &[2, 2], [65, 8]),
        of(f32, None, false, Silu, &[8], [33, 72]),
        of(f16, None, true, Identity, &[9], [5, 64]),
        of(bf16, None, true, Silu, &[1], [130, 200]),
        of(bf16, Some(0.5), false, Identity, &[130], [70, 256]),
        of(bf16, Some(0.5), true, Gelu, &[5, 120], [410, 1280]),
        of(bf16, Some(0.5), true, Gelu, &[32, 128], [512, 128]),
        case(Storage::Dense(bf16), true, Gelu, &[3, 5], [7, 11]),
        case(Storage::Dense(f16), false, Identity, &[130], [70, 33]),
        case(Storage::Dense(f32), true, Silu, &[2], [5, 64]),
        merged(Storage::Dense(f32), false, Identity, &[3], [5, 7], 2),
        merged(Storage::Dense(bf16), true, Gelu, &[130], [70, 33], 5),
        merged(nf4([72, 136], bf16, Some(0.5)), true, Identity, &[530], [72, 136], 16),
    ]
}

#[cfg(test)]
mod tests;
