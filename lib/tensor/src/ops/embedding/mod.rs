//! Embedding lookup: y[.., :] = table[index[..], :]. table [V, H], index [..] (I32), y [.., H].
//!
//! dtable[v] = Σ of dy over the positions with index v, in order; on a GPU, sums over many positions are split into
//! parts of 64. The order of summation depends only on the indices, so results are bit-identical on every run. Shape
//! checks cannot validate indices: one outside 0..V gives a row of NaN, which makes the loss NaN, and receives no
//! gradient.

pub(crate) mod cpu;
pub(crate) mod cuda;

pub use cuda::SOURCE;

use crate::dtype::{Dtype, Element, bf16, f16};
use crate::op::{Case, Draw, Grads, Op, Saved};
use crate::tensor::Tensor;
use crate::with_float;

/// Embedding lookup; inputs table, index.
#[derive(Clone, Copy, Debug)]
pub struct Embedding;

impl Op for Embedding {
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        match inputs {
            [[_, h], index] => Ok([index, &[*h][..]].concat()),
            _ => Err("takes table [V, H] and index [..]".into()),
        }
    }

    fn constants(&self) -> &'static [usize] {
        &[1]
    }

    fn kept(&self, inputs: &[&Tensor], _out: &Tensor) -> Saved {
        inputs[1..].iter().map(|x| (*x).clone()).collect()
    }

    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        let [table, index] = [inputs[0], inputs[1]];
        match out.dtype() {
            Dtype::Bf16 => cpu::rows::<bf16>(table, index.read(), out.write()),
            Dtype::F16 => cpu::rows::<f16>(table, index.read(), out.write()),
            dtype => with_float!(dtype, T => {
                cpu::gather::<T>(table, index.read(), out.write(), T::of(f64::NAN), false);
            }),
        }
        vec![index.clone()]
    }

    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        if i == 1 { Dtype::I32 } else { compute }
    }

    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        if let Some(grad) = grads.buffer(0) {
            let (dtable, index) = (&mut grad.tensor, saved[0].read());
            with_float!(dy.dtype(), T => {
                cpu::scatter_add::<T>(index, dy.read(), dtable, grad.accumulate);
            });
        }
    }
}

/// Returns test cases: a table of one row, unused rows, rows used many or thousands of times, odd widths.
pub fn cases() -> Vec<Case> {
    let case = |v: usize, h: usize, index: &[usize]| {
        Case::new(Embedding, &[&[v, h], index]).draw(1, Draw::RandInt(v as u64))
    };
    vec![
        case(1, 1, &[1]),
        case(1, 5, &[37]),
        case(40, 7, &[3, 5]),
        case(300, 24, &[5, 131]),
        case(70_000, 3, &[1500]),
        case(257, 520, &[9, 33]),
        case(1, 7, &[2500]),
        case(2, 40, &[3, 1100]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::{Tape, constant};

    #[test]
    fn an_index_outside_the_table_is_not_a_number_and_has_no_gradient() {
        let tape = Tape::new();
        let table = tape.leaf(Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]));
        let index = constant(Tensor::from_slice(&[2, -1, 0, 3, i32::MIN, 2], &[2, 3]));
        let y = tape.apply(Embedding, &[&table, &index]).unwrap();
        assert_eq!(y.shape(), [2, 3, 2]);
        let known: Vec<bool> = y.value().read::<f64>().iter().map(|y| !y.is_nan()).collect();
        let expected = [true, false, true, false, false, true];
        assert_eq!(known, expected.map(|k| [k, k]).concat());
        let dy = Tensor::from_slice(&(1..=12).map(f64::from).collect::<Vec<_>>(), &[2, 3, 2]);
        let dtable = tape.backward_from(&y, dy).unwrap().take(&table).unwrap();
        assert_eq!(dtable.read::<f64>(), [5.0, 6.0, 0.0, 0.0, 1.0 + 11.0, 2.0 + 12.0]);
    }
}
