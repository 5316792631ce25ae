//! Vectors of meanings: a non-linear function of the sum of a vector for each slot.

use super::{Draw, Language, Meaning, SLOT_WEIGHTS};
use std::sync::LazyLock;
use tensor::random::{Philox, Purpose};

/// Number of dimensions in which the slots are added.
const INNER: usize = 192;
/// Variance of the sums. The larger it is, the less linear are the vectors in the slots: with 2, ridge regression on the
/// words of 20,000 sentences has a cosine of about 0.86.
const VARIANCE: f64 = 2.0;
/// Seed of the slot vectors and the projection, which are the same for every data set.
const FROZEN: u64 = 20_260_107;
/// Number of meanings from which mean and deviation of each dimension are estimated.
const SCALED_BY: u64 = 4096;
/// Standard deviation of the noise that stands for the surface.
pub(super) const NOISE: f32 = 0.1;

/// The frozen part of a language's vectors.
struct Table {
    /// Slot vectors times their weight, scaled so that their sum has a variance of [`VARIANCE`]; [INNER] for each value
    /// of each slot.
    slots: Vec<Vec<Vec<f32>>>,
    /// [D, INNER].
    projection: Vec<Vec<f32>>,
    /// Mean of each dimension, and the inverse of its deviation.
    scale: Vec<[f32; 2]>,
}

impl Table {
    fn new(language: Language) -> Self {
        let random = Philox::new(FROZEN, Purpose::Texts).at_source(language as u64);
        let row = |number: u64| {
            let mut row = vec![0.0; INNER];
            random.fill_normal(number, &mut row);
            row
        };
        let squares = SLOT_WEIGHTS.iter().map(|weight| weight * weight).sum::<f64>();
        let norm = (squares / VARIANCE).sqrt();
        let of_slot = |(slot, size): (usize, usize)| -> Vec<Vec<f32>> {
            let weighted = |value: usize| {
                let weight = (SLOT_WEIGHTS[slot] / norm) as f32;
                row((slot << 8 | value) as u64).into_iter().map(|x| x * weight).collect()
            };
            (0..size).map(weighted).collect()
        };
        let slots = language.slot_sizes().into_iter().enumerate().map(of_slot).collect();
        let projection = (0..language.latent_len()).map(|d| row(1 << 16 | d as u64)).collect();
        let scale = vec![[0.0, 1.0]; language.latent_len()];
        let mut table = Self { slots, projection, scale };
        let mut sums = vec![[0.0_f64; 2]; language.latent_len()];
        for number in 0..SCALED_BY {
            let meaning = language.draw_meaning(&mut Draw::new(random.at_source(1), number));
            for ([sum, squares], x) in sums.iter_mut().zip(table.latent(&meaning)) {
                *sum += f64::from(x);
                *squares += f64::from(x).powi(2);
            }
        }
        table.scale = sums
            .into_iter()
            .map(|sums| {
                let [mean, square] = sums.map(|sum| sum / SCALED_BY as f64);
                [mean as f32, (1.0 / (square - mean * mean).sqrt()) as f32]
            })
            .collect();
        table
    }

    fn latent(&self, meaning: &Meaning) -> Vec<f32> {
        let mut inner = vec![0.0_f32; INNER];
        for (values, value) in self.slots.iter().zip(meaning) {
            let row = &values[usize::from(*value)];
            inner.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        inner.iter_mut().for_each(|x| *x = x.tanh());
        let project = |(row, [mean, inverse]): (&Vec<f32>, &[f32; 2])| {
            let sum: f32 = row.iter().zip(&inner).map(|(a, b)| a * b).sum();
            (sum - mean) * inverse
        };
        self.projection.iter().zip(&self.scale).map(project).collect()
    }
}

impl Language {
    /// Returns the vector of a meaning, [D] with D = [`latent_len`](Self::latent_len), each dimension with a mean of about
    /// 0 and a variance of about 1; `noise`, a seed and a number, adds normal noise with a standard deviation of 0.1.
    /// Slot vectors of normal numbers, in proportion to [`SLOT_WEIGHTS`], add to a variance of 2 in 192 dimensions; the
    /// hyperbolic tangents of the sum are projected to D dimensions at random.
    pub fn latent(self, meaning: &Meaning, noise: Option<[u64; 2]>) -> Vec<f32> {
        static TABLES: [LazyLock<Table>; 2] = [
            LazyLock::new(|| Table::new(Language::Small)),
            LazyLock::new(|| Table::new(Language::Large)),
        ];
        let mut vector = TABLES[self as usize].latent(meaning);
        if let Some([seed, number]) = noise {
            let random = Philox::new(seed, Purpose::Noise);
            let add = |(d, x): (usize, &mut f32)| *x += NOISE * random.normal(number, d as u64);
            vector.iter_mut().enumerate().for_each(add);
        }
        vector
    }
}
