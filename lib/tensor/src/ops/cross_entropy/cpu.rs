use super::{CrossEntropy, weights};
use crate::dtype::Float;
use crate::op::GradBuffer;
use crate::simd::{max, sum};
use crate::{Scratch, Tensor, for_rows};

/// Returns the loss; writes the maximum m and log Σ exp(x - m) of every row to `stats`.
pub(super) fn forward<T: Float>(op: &CrossEntropy, inputs: &[&Tensor], stats: &mut [T]) -> T {
    let (rows, v) = (inputs[0].rows(), inputs[0].width());
    let (x, targets, weights) =
        (inputs[0].read::<T>(), inputs[1].read::<i32>(), weights::<T>(inputs));
    let mut losses = Scratch::<T>::uninit(rows);
    for_rows!(((stats, 2), (&mut *losses, 1)), v, |row, (stats, each)| {
        let x = &x[row * v..][..v];
        let top = max(x);
        let log = T::of(sum([x], |[x]| (x - top).exp()).f64().ln());
        stats.copy_from_slice(&[top, log]);
        each[0] = loss(op, x, targets[row], top, log);
        if let Some(weights) = weights
            && targets[row] != op.ignore
        {
            each[0] *= weights[row];
        }
    });
    T::of(losses.iter().map(|loss| loss.f64()).sum())
}

/// Returns the loss of one row.
#[inline(always)]
fn loss<T: Float>(op: &CrossEntropy, x: &[T], target: i32, top: T, log: T) -> T {
    if target == op.ignore {
        return T::ZERO;
    }
    let Some(at) = usize::try_from(target).ok().filter(|t| *t < x.len()) else {
        return T::of(f64::NAN);
    };
    if op.gamma != 0.0 {
        let log_p = (x[at] - top - log).f64();
        return T::of(-log_p * (-log_p.exp_m1()).powf(op.gamma));
    }
    let hit = T::of(1.0 - op.smoothing) * (log - (x[at] - top));
    if op.smoothing == 0.0 {
        return hit;
    }
    let each = T::of(op.smoothing / x.len() as f64);
    each.mul_add(sum([x], |[x]| log - (x - top)), hit)
}

/// Returns the factor of the focal loss gradient, given log p of the target.
fn focal_slope(gamma: f64, log_p: f64) -> f64 {
    let rest = -log_p.exp_m1();
    if rest == 0.0 {
        return 0.0;
    }
    rest.powf(gamma) - gamma * log_p.exp() * rest.powf(gamma - 1.0) * log_p
}

pub(super) fn backward<T: Float>(
    op: &CrossEntropy,
    inputs: &[&Tensor],
    stats: &[T],
    dy: T,
    grad: &mut GradBuffer,
) {
    let (v, add) = (inputs[0].width(), grad.accumulate);
    let (x, targets, weights) =
        (inputs[0].read::<T>(), inputs[1].read::<i32>(), weights::<T>(inputs));
    let each = T::of(op.smoothing / v as f64);
    for_rows!((grad.tensor.write::<T>(), v), v, |row, dx| {
        let (x, dx) = (&x[row * v..][..v], &mut dx[..v]);
        // Ignored rows have zero gradient even if their logits are not finite.
        if targets[row] == op.ignore {
            if !add {
                dx.fill(T::ZERO);
            }
            return;
        }
        let scale = match weights {
            Some(weights) => dy * weights[row],
            None => dy,
        };
        let (top, log) = (stats[2 * row], stats[2 * row + 1]);
        let at = usize::try_from(targets[row]).ok().filter(|_| op.gamma != 0.0);
        let scale = match at.and_then(|at| x.get(at)) {
            Some(hit) => scale * T::of(focal_slope(op.gamma, (*hit - top - log).f64())),
            None => scale,
        };
        for i in 0..v {
            let d = scale * ((x[i] - top - log).exp() - each);
            dx[i] = if add { dx[i] + d } else { d };
        }
        if let Some(hit) = usize::try_from(targets[row]).ok().and_then(|t| dx.get_mut(t)) {
            *hit += -(scale * T::of(1.0 - op.smoothing));
        }
    });
}
