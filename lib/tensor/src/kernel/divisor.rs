//! Kernel arguments for integer division by multiplication and shift (`include/divide.cuh`).

use super::Arg;

/// Returns the arguments for a divisor `d` from 1 to 2³¹ - 1: d, ⌈2^(31 + s) / d⌉ and s = ⌈log₂ d⌉. A larger `d` makes
/// the launch fail; 0 is only passed if the kernel does not divide by it.
pub(crate) fn divisor(d: usize) -> [Arg<'static>; 3] {
    let shift = d.max(1).next_power_of_two().trailing_zeros().min(31);
    let factor = (1u64 << (31 + shift)).div_ceil(d.max(1) as u64);
    [Arg::from(d), Arg::from(u32::try_from(factor).unwrap_or(u32::MAX)), Arg::from(shift as i32)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact() {
        let most = u64::from(i32::MAX as u32);
        let near = |n: u64| n.saturating_sub(2)..=n + 2;
        let powers = (0..31).flat_map(|s| near(1 << s));
        for d in powers
            .chain([3, 7, 10, 641, 30_522, 1_000_003, most - 1, most])
            .filter(|d| (1..=most).contains(d))
        {
            let [_, factor, shift] = divisor(d as usize).map(|arg| arg.value().bits());
            let multiples =
                [1, 2, 3, 1000, most / d].into_iter().flat_map(|q| near(q.saturating_mul(d)));
            for n in multiples.chain([0, 1, most / 2, most]).filter(|n| *n <= most) {
                let high = (2 * n * factor) >> 32;
                assert_eq!(high >> shift, n / d, "{n} / {d}");
            }
        }
    }
}
