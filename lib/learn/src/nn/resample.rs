//! Fixed linear maps along the axes of a token grid: pooling and interpolation.

use crate::forward::Forward;
use tensor::ops::matmul::MatMul;
use tensor::{Tensor, Var};
use unix::Result;

/// Applies the matrix M [S, T] to the tokens of x [B, T, C].
fn map_tokens(forward: &Forward, m: &Tensor, x: &Var) -> Result<Var> {
    let m = forward.to_compute_dtype(&forward.constant(m)?)?;
    forward.apply(MatMul, &[&m, x])
}

/// Applies the matrices `maps` to the rows [R', R] and columns [C', C] of the token grid of x [B, R·C, F]. An axis with
/// one token before and after is skipped.
pub fn map_axes(forward: &Forward, maps: &[Tensor; 2], x: &Var) -> Result<Var> {
    let [rows, columns] = [0, 1].map(|axis| [maps[axis].shape()[0], maps[axis].shape()[1]]);
    let [batch, width] = [0, 2].map(|i| x.shape()[i]);
    let mut x = x.clone();
    if columns != [1, 1] {
        let lines = x.reshape(&[batch * rows[1], columns[1], width]);
        x = map_tokens(forward, &maps[1], &lines)?;
    }
    if rows != [1, 1] {
        x = map_tokens(forward, &maps[0], &x.reshape(&[batch, rows[1], columns[0] * width]))?;
    }
    Ok(x.reshape(&[batch, rows[0] * columns[0], width]))
}

/// Pooling matrix M [⌈T/2⌉, T]: averages neighbouring pairs; the last token of an odd number is copied.
pub fn pair_means(tokens: usize) -> Tensor {
    let out = tokens.div_ceil(2);
    let mut m = vec![0.0_f32; out * tokens];
    for s in 0..out {
        m[s * tokens + 2 * s] += 0.5;
        m[s * tokens + (2 * s + 1).min(tokens - 1)] += 0.5;
    }
    Tensor::from_slice(&m, &[out, tokens])
}

/// Interpolation matrix M [to, from]: linear between token centres, constant beyond the outermost ones (PyTorch's
/// `interpolate` with `align_corners=False`).
pub fn interpolation(from: usize, to: usize) -> Tensor {
    let mut m = vec![0.0_f32; to * from];
    for s in 0..to {
        let at = (s as f64 + 0.5) * from as f64 / to as f64 - 0.5;
        let at = at.clamp(0.0, (from - 1) as f64);
        let left = at.floor();
        let right = (left as usize + 1).min(from - 1);
        m[s * from + left as usize] += (1.0 - (at - left)) as f32;
        m[s * from + right] += (at - left) as f32;
    }
    Tensor::from_slice(&m, &[to, from])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_interpolation_are_what_pytorch_does() {
        let pairs = pair_means(5);
        assert_eq!(pairs.shape(), [3, 5]);
        assert_eq!(pairs.read::<f32>()[10..], [0.0, 0.0, 0.0, 0.0, 1.0]);
        // torch.nn.functional.interpolate([0, 1, 2], size=6, mode="linear"):
        let m = interpolation(3, 6);
        let y: Vec<f32> = m.read::<f32>().chunks(3).map(|r| r[1] + 2.0 * r[2]).collect();
        assert_eq!(y, [0.0, 0.25, 0.75, 1.25, 1.75, 2.0]);
    }
}
