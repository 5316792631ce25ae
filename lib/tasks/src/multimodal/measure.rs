//! Measurements of a network on records: the bound of the likelihood of a text, and the cosine of a latent.

use super::batch::Preparation;
use super::draft::log_sum_exp;
use super::metrics::{paired_cosines, weighted_sum};
use super::sample::{LatentSampler, Runner};
use super::sets::Record;
use rayon::prelude::*;
use tensor::random::{Philox, Purpose};
use unix::Result;

/// Numbers of masked tokens that the bound of a text is measured at.
const LEVELS: usize = 8;
/// Seed of the masks and the noise of measurements, so that all runs are measured alike.
const SEED: u64 = 0;

/// Measures records.
#[derive(Clone, Copy)]
pub(super) struct Measure<'a> {
    pub runner: Runner<'a>,
    pub preparation: &'a Preparation,
}

impl Measure<'_> {
    /// Returns the upper bound of the negative log likelihood of each text given its vector, in nats, padding
    /// included: the mean over numbers of masked tokens l, from 1 to S, of S/l times the cross entropy of the masked
    /// tokens. It is the bound of masked diffusion in continuous time (Sahoo et al. 2024, equation 10) with its
    /// integral over the time in closed form (Hoogeboom et al. 2022, equation 3), estimated at 8 evenly spaced l.
    /// `keys` identify the records, whose masks depend on nothing else.
    pub fn bounds(&self, records: &[Record], keys: &[u64]) -> Result<Vec<f64>> {
        let sizes = self.runner.network.sizes();
        let (length, random) = (sizes.length, Philox::new(SEED, Purpose::Mask));
        let mut bounds = Vec::with_capacity(records.len());
        let count = (self.runner.rows() / LEVELS).max(1);
        for (records, keys) in records.chunks(count).zip(keys.chunks(count)) {
            let targets = self.preparation.texts(records);
            let vectors = self.preparation.vectors(records);
            let (mut ids, mut latents, mut times) = (Vec::new(), Vec::new(), Vec::new());
            let rows = targets.chunks_exact(length).zip(vectors.chunks_exact(sizes.vector));
            for ((text, vector), key) in rows.clone().zip(keys) {
                for level in 0..LEVELS {
                    let random = random.at_source(level as u64);
                    let u = (level as f64 + f64::from(random.uniform(*key, length as u64)))
                        / LEVELS as f64;
                    let masked = ((u * length as f64).ceil() as usize).clamp(1, length);
                    let mut order: Vec<usize> = (0..length).collect();
                    order.sort_by_cached_key(|place| random.uniform(*key, *place as u64).to_bits());
                    let mut own = text.to_vec();
                    order[..masked].iter().for_each(|place| own[*place] = sizes.mask);
                    ids.extend(own);
                    latents.extend_from_slice(vector);
                    times.push([masked as f64 / length as f64, 0.0]);
                }
            }
            let logits = self.runner.logits(&ids, &latents, &times, 0.0)?;
            let of_record = |(i, text): (usize, &[i32])| {
                let of_level = |level: usize| {
                    let row = i * LEVELS + level;
                    let own = &ids[row * length..][..length];
                    let masked = (0..length).filter(|place| own[*place] == sizes.mask);
                    let loss = |place: usize| {
                        let at = (row * length + place) * sizes.vocabulary;
                        let logits = &logits[at..][..sizes.vocabulary];
                        log_sum_exp(logits) - logits[text[place] as usize]
                    };
                    weighted_sum(&masked.map(loss).collect::<Vec<f32>>(), times[row][0])
                };
                (0..LEVELS).map(of_level).sum::<f64>() / LEVELS as f64
            };
            bounds.par_extend(targets.par_chunks_exact(length).enumerate().map(of_record));
        }
        Ok(bounds)
    }

    /// Returns the latents of the texts of records in one evaluation, [n, D].
    pub fn latents(&self, records: &[Record], keys: &[u64]) -> Result<Vec<f32>> {
        let ids = self.preparation.texts(records);
        self.runner.latents(Some(&ids), keys, &LatentSampler::default(), SEED)
    }

    /// Returns the cosine of each of these latents with the normalised vector of its record.
    pub fn cosines(&self, records: &[Record], latents: &[f32]) -> Vec<f64> {
        let truth = self.preparation.vectors(records);
        paired_cosines(latents, &truth, self.runner.network.sizes().vector)
    }
}
