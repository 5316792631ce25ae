use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::parallel::{BLOCK_ELEMENTS, Shared, blocks};
use crate::product::{View, product};
use crate::tensor::Tensor;

pub(super) fn forward<T: Float>(m: &Tensor, x: &Tensor, out: &mut [T]) {
    let (s, t, c) = (m.rows(), m.width(), x.width());
    let (m, x) = (m.read::<T>(), x.read::<T>());
    let out = Shared::new(out);
    let batch = x.len() / (t * c).max(1);
    blocks(batch, BLOCK_ELEMENTS / (s * c).max(1), |range| {
        for b in range {
            // SAFETY: samples are disjoint.
            let out = unsafe { out.slice(b * s * c..(b + 1) * s * c) };
            let (m, x) = (View::new(m, s, t, t), View::new(&x[b * t * c..], t, c, c));
            product(out, c, false, T::ONE, m, x);
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
    let (m, x) = (m.read::<T>(), x.read::<T>());
    let batch = x.len() / (t * c).max(1);
    if let Some(grad) = dx {
        let add = grad.accumulate;
        let dx = Shared::new(grad.tensor.write::<T>());
        blocks(batch, BLOCK_ELEMENTS / (t * c).max(1), |range| {
            for b in range {
                // SAFETY: samples are disjoint.
                let dx = unsafe { dx.slice(b * t * c..(b + 1) * t * c) };
                let dy = View::new(&dy[b * s * c..], s, c, c);
                product(dx, c, add, T::ONE, View::new(m, s, t, t).transposed(), dy);
            }
        });
    }
    if let Some(grad) = dm {
        let mut add = grad.accumulate;
        let dm = grad.tensor.write::<T>();
        for b in 0..batch {
            let dy = View::new(&dy[b * s * c..], s, c, c);
            let x = View::new(&x[b * t * c..], t, c, c).transposed();
            product(dm, t, add, T::ONE, dy, x);
            add = true;
        }
    }
}
