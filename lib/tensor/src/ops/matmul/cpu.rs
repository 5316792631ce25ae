use super::Sizes;
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{row_blocks, rows_per_block};
use crate::product::{View, product};
use crate::tensor::Tensor;

pub(super) fn forward<T: Float>(a: &Tensor, x: &Tensor, out: &mut [T]) {
    let Sizes { s, t, c, step, .. } = Sizes::of(a, x);
    let (a, x) = (a.read::<T>(), x.read::<T>());
    row_blocks((out, s * c), rows_per_block(s * c), |range, out| {
        for (b, out) in range.zip(out.chunks_exact_mut(s * c)) {
            let a = View::new(&a[b * step..], s, t, t);
            product(out, c, false, T::ONE, a, View::new(&x[b * t * c..], t, c, c));
        }
    });
}

pub(super) fn backward<T: Float>(
    a: &Tensor,
    x: &Tensor,
    dy: &[T],
    da: Option<&mut GradBuffer>,
    dx: Option<&mut GradBuffer>,
) {
    let Sizes { batch, s, t, c, step } = Sizes::of(a, x);
    let (a, x) = (a.read::<T>(), x.read::<T>());
    let dy = |b: usize| View::new(&dy[b * s * c..], s, c, c);
    if let Some(grad) = dx {
        let (add, dx) = (grad.accumulate, grad.tensor.write::<T>());
        row_blocks((dx, t * c), rows_per_block(t * c), |range, dx| {
            for (b, dx) in range.zip(dx.chunks_exact_mut(t * c)) {
                product(dx, c, add, T::ONE, View::new(&a[b * step..], s, t, t).transposed(), dy(b));
            }
        });
    }
    let Some(grad) = da else { return };
    let x = |b: usize| View::new(&x[b * t * c..], t, c, c).transposed();
    let (add, da) = (grad.accumulate, grad.tensor.write::<T>());
    if step == 0 {
        for b in 0..batch {
            product(da, t, add || b > 0, T::ONE, dy(b), x(b));
        }
    } else {
        row_blocks((da, step), rows_per_block(step), |range, da| {
            for (b, da) in range.zip(da.chunks_exact_mut(step)) {
                product(da, t, add, T::ONE, dy(b), x(b));
            }
        });
    }
}
