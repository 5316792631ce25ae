use crate::dtype::Float;
use crate::op::GradBuffer;

/// X_0 and, for an even number of tokens, X_{T/2} of every channel of a sample.
fn ends<T: Float>(x: &[T], tokens: usize, c: usize) -> Vec<(f64, f64)> {
    let mut ends = vec![(0.0, 0.0); c];
    for (t, row) in x.chunks_exact(c).enumerate() {
        let sign = if t % 2 == 0 { 1.0 } else { -1.0 };
        for (end, x) in ends.iter_mut().zip(row) {
            end.0 += x.f64();
            end.1 += sign * x.f64();
        }
    }
    if tokens % 2 == 1 {
        ends.iter_mut().for_each(|end| end.1 = 0.0);
    }
    ends
}

/// Of each sample Σ over frequencies and channels of |rFFT|².
pub(super) fn energies<T: Float>(shape: &[usize], x: &[T]) -> impl Iterator<Item = f64> {
    let (tokens, c) = (shape[1], shape[2]);
    x.chunks_exact((tokens * c).max(1)).map(move |sample| {
        let squares: f64 = sample.iter().map(|x| x.f64() * x.f64()).sum();
        let ends: f64 = ends(sample, tokens, c).iter().map(|(a, b)| a * a + b * b).sum();
        (tokens as f64 * squares + ends) / 2.0
    })
}

/// dx (+)= factor·(T·x_t + X_0 + (-1)^t·X_{T/2}), with a factor for each sample.
pub(super) fn backward<T: Float>(factors: &[f64], shape: &[usize], x: &[T], grad: &mut GradBuffer) {
    let (tokens, c) = (shape[1], shape[2]);
    let dx = grad.zeroed::<T>();
    let size = (tokens * c).max(1);
    for ((x, dx), factor) in x.chunks_exact(size).zip(dx.chunks_exact_mut(size)).zip(factors) {
        let (factor, ends) = (T::of(*factor), ends(x, tokens, c));
        for t in 0..tokens {
            let sign = if t % 2 == 0 { 1.0 } else { -1.0 };
            for (i, (zero, half)) in ends.iter().enumerate() {
                let at = t * c + i;
                dx[at] += factor * T::of(tokens as f64 * x[at].f64() + zero + sign * half);
            }
        }
    }
}
