use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{row_blocks, rows_per_block};
use crate::product::{View, product};
use crate::tensor::Tensor;

pub(super) fn forward<T: Float>(m: &Tensor, x: &Tensor, out: &mut [T]) {
    let (s, t, c) = (m.rows(), m.width(), x.width());
    let (m, x) = (View::new(m.read::<T>(), s, t, t), x.read::<T>());
    row_blocks((out, s * c), rows_per_block(s * c), |range, out| {
        for (b, out) in range.zip(out.chunks_exact_mut(s * c)) {
            product(out, c, false, T::ONE, m, View::new(&x[b * t * c..], t, c, c));
        }
    });
}

pub(super) fn backward<T: Float>(
    m: &Tensor,
    x: &Tensor,
    dy: &[T],
    dm: Option<&mut GradBuffer>,
    dx: Option<&mut GradBuffer>,
) {
    let (s, t, c) = (m.rows(), m.width(), x.width());
    let (m, x) = (View::new(m.read::<T>(), s, t, t).transposed(), x.read::<T>());
    let dy = |b: usize| View::new(&dy[b * s * c..], s, c, c);
    if let Some(grad) = dx {
        let (add, dx) = (grad.accumulate, grad.tensor.write::<T>());
        row_blocks((dx, t * c), rows_per_block(t * c), |range, dx| {
            for (b, dx) in range.zip(dx.chunks_exact_mut(t * c)) {
                product(dx, c, add, T::ONE, m, dy(b));
            }
        });
    }
    if let Some(grad) = dm {
        let mut add = grad.accumulate;
        let dm = grad.tensor.write::<T>();
        for b in 0..x.len() / (t * c).max(1) {
            let x = View::new(&x[b * t * c..], t, c, c).transposed();
            product(dm, t, add, T::ONE, dy(b), x);
            add = true;
        }
    }
}
