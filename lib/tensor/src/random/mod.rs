//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC11), and a keyed permutation built on it.
//!
//! A number depends only on (seed, purpose, update, sample, element), not on the rank, the thread or the number of
//! earlier draws. A resumed run therefore draws the same numbers, even with a different number of workers.

mod permutation;

pub use permutation::Permutation;

/// The purpose of random numbers. Each purpose has its own key, so no two purposes share numbers.
///
/// Changing a value would change the numbers of existing seeds: a new purpose gets a new value, and values are never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Initial weights; sample = parameter tensor, element = position in it.
    Weights = 1,
    /// Order of the training samples, one permutation per epoch.
    Order = 2,
    /// Dropout and stochastic depth.
    Dropout = 3,
    /// Noise added to inputs or latents.
    Noise = 4,
    /// Random choices of data augmentation.
    Augmentation = 5,
    /// Initial states of PDE solvers; sample = trajectory.
    InitialState = 6,
    /// Assignment of trajectories to splits.
    Split = 7,
    /// Diffusion times and other per-sample draws of a loss.
    Loss = 8,
    /// Test-time search candidates, sampled tokens, sampled latents.
    Sampling = 9,
    /// Masked positions.
    Mask = 10,
    /// Inputs of tests and benchmarks.
    Test = 11,
    /// Hyperparameter search.
    Search = 12,
    /// Choice of the mixture source for each sample.
    Mixture = 13,
    /// Bootstrap resampling of evaluation samples.
    Bootstrap = 14,
    /// Synthetic texts; sample = post.
    Texts = 15,
    /// Order of batches that are bucketed by sample length.
    Buckets = 16,
    /// Tokens of generated texts; sample = number of the prompt, element = position of the token in the sequence.
    Tokens = 17,
    /// Synthetic images; sample = image.
    Images = 18,
}

/// Philox4x32-10 with a fixed key.
///
/// Use only one kind of draw (`uniform`, `uniform64` or `normal`) per key: all use the same blocks, so different kinds
/// at the same (sample, element) are not independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
}

const ROUNDS: usize = 10;
const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Number of words that [`Philox::words`] computes at once.
pub(crate) const WORDS: usize = 64;

/// 2⁻²⁴, the spacing of [`Philox::uniform`] values.
const TWO_POW_MINUS_24: f32 = 1.0 / (1u32 << 24) as f32;

impl Philox {
    /// Creates the generator for (seed, purpose).
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        Self::from_key(split(seed)).derive(purpose as u32, 0)
    }

    /// Creates the generator with exactly this key, for comparison with other implementations.
    pub fn from_key(key: [u32; 2]) -> Self {
        Self { key }
    }

    /// The key, for kernels that draw the same numbers on a device.
    pub fn key(&self) -> [u32; 2] {
        self.key
    }

    /// Derives the generator for one update (or epoch), with its own key.
    pub fn at_update(&self, update: u64) -> Self {
        self.derive(0x5550_4454, update)
    }

    /// Derives the generator for one of several sources, with its own key.
    pub fn at_source(&self, source: u64) -> Self {
        self.derive(0x534f_5552, source)
    }

    /// Derives a key: the image of (tag, number) under this one. Distinct arguments collide with probability 2⁻⁶⁴.
    fn derive(&self, tag: u32, number: u64) -> Self {
        let [low, high] = split(number);
        let [a, b, _, _] = self.block([low, high, tag, 0x4b45_5920]);
        Self { key: [a, b] }
    }

    /// Returns four random words: ten rounds of Philox applied to the counter.
    #[inline]
    pub fn block(&self, counter: [u32; 4]) -> [u32; 4] {
        let [mut x0, mut x1, mut x2, mut x3] = counter;
        let [mut k0, mut k1] = self.key;
        for _ in 0..ROUNDS {
            let a = u64::from(MULTIPLIER[0]) * u64::from(x0);
            let b = u64::from(MULTIPLIER[1]) * u64::from(x2);
            (x0, x1, x2, x3) =
                ((b >> 32) as u32 ^ x1 ^ k0, b as u32, (a >> 32) as u32 ^ x3 ^ k1, a as u32);
            k0 = k0.wrapping_add(WEYL[0]);
            k1 = k1.wrapping_add(WEYL[1]);
        }
        [x0, x1, x2, x3]
    }

    /// Like [`block`](Self::block), for several counters at once. Words are stored in 64 bits because vector
    /// instructions multiply the lower halves; the upper halves of the results are undefined.
    #[inline(always)]
    fn blocks<const L: usize>(&self, counter: [[u64; L]; 4]) -> [[u64; L]; 4] {
        const LOW: u64 = u32::MAX as u64;
        let [mut x0, mut x1, mut x2, mut x3] = counter;
        let [mut k0, mut k1] = self.key;
        let (mut a, mut b) = ([0; L], [0; L]);
        for _ in 0..ROUNDS {
            for lane in 0..L {
                a[lane] = u64::from(MULTIPLIER[0]) * (x0[lane] & LOW);
                b[lane] = u64::from(MULTIPLIER[1]) * (x2[lane] & LOW);
            }
            for lane in 0..L {
                x0[lane] = (b[lane] >> 32) ^ x1[lane] ^ u64::from(k0);
                x2[lane] = (a[lane] >> 32) ^ x3[lane] ^ u64::from(k1);
            }
            (x1, x3) = (b, a);
            k0 = k0.wrapping_add(WEYL[0]);
            k1 = k1.wrapping_add(WEYL[1]);
        }
        [x0, x1, x2, x3]
    }

    /// Returns the words of consecutive blocks in order, starting at counter word `first`. `rest` holds the other
    /// counter words.
    #[inline(always)]
    pub(crate) fn words(&self, first: u32, rest: [u32; 3]) -> [u32; WORDS] {
        let first = std::array::from_fn(|lane| u64::from(first.wrapping_add(lane as u32)));
        let [a, b, c] = rest.map(|word| [u64::from(word); WORDS / 4]);
        let [x0, x1, x2, x3] = self.blocks([first, a, b, c]);
        let mut words = [0; WORDS];
        for (lane, four) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *four = [x0[lane], x1[lane], x2[lane], x3[lane]].map(|word| word as u32);
        }
        words
    }

    #[inline]
    fn block_at(&self, sample: u64, block: u64) -> [u32; 4] {
        let ([e0, e1], [s0, s1]) = (split(block), split(sample));
        self.block([e0, e1, s0, s1])
    }

    /// Draws a uniform number in [0, 1), a multiple of 2⁻²⁴: the top 24 bits of word `element % 4` of block `element /
    /// 4`.
    #[inline]
    pub fn uniform(&self, sample: u64, element: u64) -> f32 {
        unit(self.block_at(sample, element / 4)[(element % 4) as usize])
    }

    /// Draws a uniform number in [0, 1), a multiple of 2⁻⁵³: two words of block `element / 2`.
    #[inline]
    pub fn uniform64(&self, sample: u64, element: u64) -> f64 {
        let words = self.block_at(sample, element / 2);
        let at = (element % 2) as usize * 2;
        let bits = u64::from(words[at]) << 32 | u64::from(words[at + 1]);
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Draws a uniform integer in 0..n, with a negligible bias (2⁻⁶⁴ n).
    #[inline]
    pub fn below(&self, sample: u64, element: u64, n: u64) -> u64 {
        let words = self.block_at(sample, element / 2);
        let at = (element % 2) as usize * 2;
        let bits = u64::from(words[at]) << 32 | u64::from(words[at + 1]);
        ((u128::from(bits) * u128::from(n)) >> 64) as u64
    }

    /// Draws a standard normal number by Box-Muller: words (0, 1) of a block give elements 0 and 1, words (2, 3) give
    /// elements 2 and 3.
    #[inline]
    pub fn normal(&self, sample: u64, element: u64) -> f32 {
        normals(self.block_at(sample, element / 4))[(element % 4) as usize]
    }

    /// Fills `out[i] = uniform(sample, i)`.
    pub fn fill_uniform(&self, sample: u64, out: &mut [f32]) {
        self.fill(sample, out, |words| words.map(unit));
    }

    /// Fills `out[i] = normal(sample, i)`.
    pub fn fill_normal(&self, sample: u64, out: &mut [f32]) {
        self.fill(sample, out, normals);
    }

    fn fill(&self, sample: u64, out: &mut [f32], numbers: impl Fn([u32; 4]) -> [f32; 4]) {
        for (block, chunk) in out.chunks_mut(4).enumerate() {
            let four = numbers(self.block_at(sample, block as u64));
            chunk.copy_from_slice(&four[..chunk.len()]);
        }
    }
}

#[inline]
fn split(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

#[inline]
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * TWO_POW_MINUS_24
}

#[inline]
fn normals(words: [u32; 4]) -> [f32; 4] {
    let pair = |a: u32, b: u32| {
        // 1 - u is in (0, 1], so the logarithm is finite.
        let radius = (-2.0 * (1.0 - unit(a)).ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * unit(b)).sin_cos();
        (radius * cos, radius * sin)
    };
    let ((a, b), (c, d)) = (pair(words[0], words[1]), pair(words[2], words[3]));
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns lower and upper bounds of a chi-square variable with `freedom` degrees of freedom, each violated with
    /// probability at most 1e-9 (Laurent and Massart 2000, lemma 1).
    pub(super) fn chi_square_bounds(freedom: f64) -> [f64; 2] {
        let x = 21.0;
        [freedom - 2.0 * (freedom * x).sqrt(), freedom + 2.0 * (freedom * x).sqrt() + 2.0 * x]
    }

    /// `kat_vectors` of Random123, philox4x32 with 10 rounds.
    #[test]
    fn known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([0xffffffff; 4], [0xffffffff; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(Philox::from_key(key).block(counter), expected);
        }
    }

    #[test]
    fn fills_are_the_single_draws() {
        let philox = Philox::new(test_support::seed(), Purpose::Test).at_update(3);
        let (mut uniform, mut normal) = ([0.0; 103], [0.0; 103]);
        philox.fill_uniform(7, &mut uniform);
        philox.fill_normal(7, &mut normal);
        for i in 0..103 {
            assert_eq!(uniform[i], philox.uniform(7, i as u64));
            assert_eq!(normal[i], philox.normal(7, i as u64));
        }
    }

    #[test]
    fn words_are_those_of_consecutive_blocks() {
        let philox = Philox::new(test_support::seed(), Purpose::Test);
        for first in [0, 1, 1 << 20, u32::MAX - 3] {
            let block = |at: u32| philox.block([first.wrapping_add(at), 7, 8, u32::MAX]);
            let expected: Vec<u32> = (0..WORDS as u32 / 4).flat_map(block).collect();
            assert_eq!(philox.words(first, [7, 8, u32::MAX]).to_vec(), expected);
        }
    }

    #[test]
    fn seed_purpose_update_sample_and_element_all_count() {
        let draw = |seed, purpose, update, sample, element| {
            Philox::new(seed, purpose).at_update(update).uniform64(sample, element)
        };
        let all = [
            draw(1, Purpose::Noise, 0, 0, 0),
            draw(1 << 40, Purpose::Noise, 0, 0, 0),
            draw(1, Purpose::Dropout, 0, 0, 0),
            draw(1, Purpose::Noise, 1, 0, 0),
            draw(1, Purpose::Noise, 1 << 40, 0, 0),
            draw(1, Purpose::Noise, 0, 1, 0),
            draw(1, Purpose::Noise, 0, 1 << 40, 0),
            draw(1, Purpose::Noise, 0, 0, 1),
            draw(1, Purpose::Noise, 0, 0, 1 << 40),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "draw {i} repeats: {all:?}");
        }
    }

    /// Checks the chi-square statistic over 256 bins, and the first four moments within seven standard deviations.
    #[test]
    fn uniform_is_uniform_and_normal_is_normal() {
        let philox = Philox::new(test_support::seed(), Purpose::Test);
        let n = 1 << 18;
        let mut x = vec![0.0f32; n];
        philox.fill_uniform(0, &mut x);
        let mut bins = [0usize; 256];
        for &u in &x {
            assert!((0.0..1.0).contains(&u));
            bins[(u * 256.0) as usize] += 1;
        }
        let expected = n as f64 / 256.0;
        let chi: f64 = bins.iter().map(|&b| (b as f64 - expected).powi(2) / expected).sum();
        let [least, most] = chi_square_bounds(255.0);
        assert!((least..most).contains(&chi), "chi-square {chi}");

        philox.fill_normal(1, &mut x);
        let moment = |p| x.iter().map(|&v| f64::from(v).powi(p)).sum::<f64>() / n as f64;
        // Standard deviations of the sample moments of a normal: 1, √2, √15, √96.
        for (p, mean, deviation) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let bound = 7.0 * f64::sqrt(deviation / n as f64);
            assert!((moment(p) - mean).abs() < bound, "moment {p} is {}", moment(p));
        }
    }

    #[test]
    fn uniform64_and_below_fill_their_range() {
        let philox = Philox::new(test_support::seed(), Purpose::Test);
        let mut counts = [0usize; 7];
        let mut mean = 0.0;
        for i in 0..70_000 {
            counts[philox.below(2, i, 7) as usize] += 1;
            let u = philox.uniform64(3, i);
            assert!((0.0..1.0).contains(&u));
            mean += u / 70_000.0;
        }
        // Seven standard deviations.
        assert!((mean - 0.5).abs() < 7.0 * (1.0f64 / 12.0 / 70_000.0).sqrt(), "mean {mean}");
        assert!(counts.iter().all(|&c| (9_352..10_648).contains(&c)), "{counts:?}");
    }
}
