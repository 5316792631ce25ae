use super::{Categorical, Choice, SITE};
use crate::dtype::Float;
use crate::for_rows;
use crate::functions::choice::{first, log_sum};
use crate::random::{Philox, WORDS};
use crate::simd::LANES;
use crate::tensor::Tensor;

/// Cephes' logf for positive normal numbers: range reduction by powers of two and a polynomial; within 2 ulp.
#[inline(always)]
fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // x = m·2^e with m in [√½, √2).
    let shift = bits.wrapping_sub(0x3f35_04f3) & 0xff80_0000;
    let e = (shift.cast_signed() >> 23) as f32;
    let m = f32::from_bits(bits.wrapping_sub(shift)) - 1.0;
    let mut p = 7.037_683_6e-2;
    for c in [
        -1.151_461_e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = f32::mul_add(p, m, c);
    }
    let square = m * m;
    let y = f32::mul_add(e, -2.121_944_4e-4, p * m * square);
    f32::mul_add(e, 0.693_359_4, m + f32::mul_add(-0.5, square, y))
}

/// Standard Gumbel noise of a random word.
#[inline(always)]
pub(super) fn gumbel(word: u32) -> f32 {
    let v = (word as f32 + 0.5) * (1.0 / (1u64 << 32) as f32);
    let v = if v < 0.999_999_94 { v } else { 0.999_999_94 };
    // -log(1 - v) by its series where 1 - v would lose digits.
    let series = 0.2 + v * 0.166_666_67;
    let series = v * (1.0 + v * (0.5 + v * (0.333_333_33 + v * (0.25 + v * series))));
    let large = -ln(1.0 - v);
    -ln(if v < 0.0625 { series } else { large })
}

/// Samples a candidate of each row of x.
pub(super) fn choose<T: Float>(by: &Categorical, x: &Tensor, counter: &[i32], choice: &mut Choice) {
    let (width, x, candidates) = (x.width(), x.read::<T>(), by.candidates);
    let [low, high, step, start] = [0, 1, 2, 3].map(|i| counter[i].cast_unsigned());
    let (philox, inverse) = (Philox::from_key([low, high]), T::of(1.0 / by.temperature));
    let hidden = usize::try_from(candidates.hidden()).unwrap_or(usize::MAX);
    let out = ((choice.index.write::<i32>(), 1), (choice.log_p.write::<T>(), 1));
    // A column costs about twenty times as much as an addition.
    for_rows!(out, 20 * width, |row, (index, log_p)| {
        let x = &x[row * width..][..width];
        let parts = candidates.of(x);
        let sums = log_sum(parts);
        let rest = [start.wrapping_add(row as u32), step, by.site | SITE];
        // The best of each lane, so that comparisons are vectorized.
        let lowest = T::of(f64::NEG_INFINITY);
        let (mut best, mut at) = ([lowest; LANES], [u32::MAX; LANES]);
        for from in (0..candidates.columns).step_by(WORDS) {
            let noise = philox.words((from / 4) as u32, rest).map(gumbel);
            let mut y = [lowest; WORDS];
            let own = &x[from..candidates.columns.min(from + WORDS)];
            for ((y, x), g) in y.iter_mut().zip(own).zip(noise) {
                *y = x.mul_add(inverse, T::of(f64::from(g)));
            }
            if let Some(y) = y.get_mut(hidden.wrapping_sub(from)) {
                *y = lowest;
            }
            for (group, y) in y.as_chunks::<LANES>().0.iter().enumerate() {
                for lane in 0..LANES {
                    let is_better = y[lane] > best[lane];
                    best[lane] = if is_better { y[lane] } else { best[lane] };
                    let column = (from + group * LANES + lane) as u32;
                    at[lane] = if is_better { column } else { at[lane] };
                }
            }
        }
        let top = best.iter().fold(lowest, |top, y| top.maximum(*y));
        let found = (0..LANES).filter(|lane| best[*lane] == top).map(|lane| at[lane]).min();
        let has_nan = sums.log.f64().is_nan()
            && parts.iter().any(|(_, x)| x.iter().any(|x| x.f64().is_nan()));
        let found = match found.filter(|at| *at != u32::MAX && !has_nan) {
            Some(at) => at as usize,
            None => first(parts, lowest, has_nan),
        };
        index[0] = found as i32;
        log_p[0] = x[found] - sums.top - sums.log;
    });
}
