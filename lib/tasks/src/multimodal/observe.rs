//! What the log says about an update besides its losses, and the check that latents are learned from texts.

use super::batch::{Columns, Drawing, T2L};
use super::cycle::{L2T2L, T2L2T};
use super::model::{Inputs, Network};
use learn::forward::Forward;
use learn::task::{Batch, Term};
use std::collections::BTreeMap;
use tensor::ops::binary::Binary;
use tensor::ops::narrow::Narrow;
use tensor::ops::normalization::{NormKind, Normalization};
use tensor::ops::reduce::Reduce;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::vector_norm::VectorNorm;
use tensor::{Tensor, Var, constant};
use unix::Result;

/// Terms that are known with the batch: the mean times of learned texts and latents, the masked fraction of learned
/// texts, the error of latents if all are predicted as 0, and the present weights of the cycles.
const KNOWN: [&str; 6] =
    ["text_time", "latent_time", "masked", "t2l_zero", "t2l2t_weight", "l2t2l_weight"];
/// Sums and weights of [`KNOWN`].
const SUMS: &str = "observed";
/// The mean norm of the predictions for latents, and of the latents estimated from them.
const NORMS: [&str; 2] = ["latent_prediction_norm", "latent_norm"];
/// Factors of noisy latents and of predictions in these estimates, [B, 1] each.
const ESTIMATE: [&str; 2] = ["of_noisy", "of_prediction"];
/// The error of latents given the texts of others.
const OTHER: &str = "t2l_other_text";
/// The texts of others, i32 [B, S], and the weights of the latents that have one, [B].
const OTHERS: [&str; 2] = ["other.ids", "other.weights"];
/// Bit of a batch's variant.
pub(super) const HAS_OTHER_TEXTS: u32 = 4;
/// Updates between checks of the first [`EARLY`] updates, and later.
const EVERY: [u64; 2] = [50, 500];
const EARLY: u64 = 200;
/// Latents count as learned below this fraction of the error of a constant, and as learned without texts if the text
/// of another raises the error by less than this factor.
const LEARNED: f64 = 0.2;
const READS: f64 = 1.1;

impl Drawing {
    /// Names of all terms of the log.
    pub(super) fn terms(&self) -> Vec<String> {
        let parts = [super::batch::L2T, T2L, T2L2T, L2T2L, OTHER];
        parts.iter().chain(&KNOWN).chain(&NORMS).map(ToString::to_string).collect()
    }

    /// Whether the error of latents given the texts of others is measured in an update.
    fn compares_texts(&self, update: u64) -> bool {
        let every = EVERY[usize::from(update >= EARLY)].next_multiple_of(self.log_every.max(1));
        (update + 1).is_multiple_of(every)
    }

    /// Adds the tensors that the terms of the log need.
    pub(super) fn observed(
        &self,
        batch: Batch,
        network: &Network,
        update: u64,
        columns: &Columns,
    ) -> Batch {
        let sizes = network.sizes();
        let rows = columns.times.len();
        let mut sums = [[0.0; KNOWN.len()]; 2];
        let mut add = |at: usize, sum: f64, weight: f64| {
            sums[0][at] += sum;
            sums[1][at] += weight;
        };
        let texts = columns.ids.chunks_exact(sizes.length);
        let targets = columns.latent_targets.chunks_exact(sizes.vector);
        let all = columns.times.iter().zip(&columns.latent_weights).zip(texts.zip(targets));
        for (([text, latent], weight), (ids, target)) in all {
            if *weight == 0.0 {
                let masked = ids.iter().filter(|id| **id == sizes.mask).count();
                add(0, *text, 1.0);
                add(2, masked as f64, ids.len() as f64);
            } else {
                let squares: f64 = target.iter().map(|x| f64::from(*x).powi(2)).sum();
                add(1, *latent, 1.0);
                add(3, squares / sizes.vector as f64, 1.0);
            }
        }
        let (rows_f64, loss) = (rows as f64, &self.loss);
        for (at, ramp) in [(4, loss.cycle_text), (5, loss.cycle_latent.ramp())] {
            if ramp.weight > 0.0 {
                add(at, ramp.at(update) * rows_f64, rows_f64);
            }
        }
        let sums = sums.concat().iter().map(|sum| *sum as f32).collect::<Vec<f32>>();
        let mut batch = batch.with(SUMS, Tensor::from_slice(&sums, &[sums.len()]));
        let estimate = |t: &[f64; 2]| loss.latent_target.estimate(loss.latent_schedule.at(t[1]));
        let factors: Vec<[f64; 2]> = columns.times.iter().map(estimate).collect();
        for (i, name) in ESTIMATE.iter().enumerate() {
            let own: Vec<f32> = factors.iter().map(|factors| factors[i] as f32).collect();
            batch = batch.with(*name, Tensor::from_slice(&own, &[rows, 1]));
        }
        if !self.compares_texts(update) {
            return batch;
        }
        let (ids, weights) = columns.texts_of_others(sizes.length);
        let variant = batch.variant() | HAS_OTHER_TEXTS;
        batch
            .with_variant(variant)
            .with(OTHERS[0], Tensor::from_slice(&ids, &[rows, sizes.length]))
            .with(OTHERS[1], Tensor::from_slice(&weights, &[rows]))
    }

    /// Returns the terms of a batch with these inputs and predictions for its latents.
    pub(super) fn observations(
        &self,
        network: &Network,
        forward: &Forward,
        batch: &Batch,
        (inputs, found): (&Inputs, &Var),
    ) -> Result<Vec<Term>> {
        let forward = &forward.without_gradients();
        let input = |name: &str| batch.input(forward, name);
        let known = input(SUMS)?;
        let number = |start: usize| -> Result<Tensor> {
            let narrow = Narrow { axis: 0, start, length: 1 };
            Ok(forward.apply(narrow, &[&known])?.value().clone())
        };
        let mut terms = Vec::new();
        for (i, name) in KNOWN.iter().enumerate() {
            let (sum, weight) = (number(i)?, Some(number(KNOWN.len() + i)?));
            terms.push(Term { name: (*name).into(), sum, weight });
        }
        let (found, weights) = (constant(found.value().clone()), input("latent_weights")?);
        let sum = |x: &Var| forward.apply(Reduce::Sum(0), &[x]);
        let count = sum(&weights)?.value().clone();
        let noisy = forward.to_param_dtype(&inputs.latents.reshape(found.shape()))?;
        let [of_noisy, of_found] = [input(ESTIMATE[0])?, input(ESTIMATE[1])?];
        let product = |a: &Var, b: &Var| forward.apply(Binary::Multiply, &[a, b]);
        let latents = [&product(&noisy, &of_noisy)?, &product(&found, &of_found)?];
        let latents = forward.apply(Binary::Add, &latents)?;
        for (name, x) in NORMS.iter().zip([&found, &latents]) {
            let norms = forward.apply(VectorNorm::Root { epsilon: 0.0 }, &[x])?;
            let sum = sum(&product(&norms, &weights)?)?.value().clone();
            terms.push(Term { name: (*name).into(), sum, weight: Some(count.clone()) });
        }
        if batch.variant() & HAS_OTHER_TEXTS != 0 {
            let others = Inputs { ids: input(OTHERS[0])?, ..inputs.clone() };
            let [_, latent] = network.forward(forward, &others)?;
            let (found, weights) = (network.latents(forward, &latent)?, input(OTHERS[1])?);
            let error = self.latent_error(forward, &found, &input("latent_targets")?, &weights)?;
            let weight = Some(sum(&weights)?.value().clone());
            terms.push(Term { name: OTHER.into(), sum: error.value().clone(), weight });
        }
        Ok(terms)
    }

    /// The sum of the errors of predictions for latents, [1]: the mean square over the dimensions, or with
    /// `loss.compat: upstream` that of unit vectors.
    pub(super) fn latent_error(
        &self,
        forward: &Forward,
        found: &Var,
        targets: &Var,
        weights: &Var,
    ) -> Result<Var> {
        let width = found.shape()[1];
        let mut found = found.clone();
        if self.loss.compares_directions() {
            let unit = forward.full(&[width], 1.0 / (width as f64).sqrt())?;
            let op = Normalization { kind: NormKind::Rms, epsilon: 1e-12 };
            found = forward.apply(op, &[&found, &unit])?;
        }
        let ones = forward.full(&[width], 1.0)?;
        forward.apply(SquaredError, &[&found, targets, weights, &ones])
    }

    /// What the terms of an update say about the training.
    pub(super) fn warning(&self, terms: &BTreeMap<String, f64>) -> Option<String> {
        let found = [OTHER, T2L, KNOWN[3]].map(|name| terms.get(name).copied());
        if let [Some(other), Some(own), Some(zero)] = found
            && own < LEARNED * zero
            && other < READS * own
        {
            let text = "the vectors are learned without reading the texts: their error is small, and no larger with the \
                        texts of other pairs; the objective gives the answer away, see loss.latent_target and \
                        loss.latent_times";
            return Some(text.into());
        }
        self.loss.compat.map(|compat| compat.warning().into())
    }
}

impl Columns {
    /// Returns the texts with each learned latent's whole text replaced by the next one's, and the weights of these
    /// latents, all 0 if there is only one.
    fn texts_of_others(&self, length: usize) -> (Vec<i32>, Vec<f32>) {
        let is_whole = |row: &usize| self.latent_weights[*row] > 0.0 && self.times[*row][0] == 0.0;
        let rows: Vec<usize> = (0..self.times.len()).filter(is_whole).collect();
        let (mut ids, mut weights) = (self.ids.clone(), vec![0.0; self.times.len()]);
        let following = rows.iter().cycle().skip(1);
        for (row, next) in rows.iter().zip(following).filter(|(row, next)| row != next) {
            ids[row * length..][..length].copy_from_slice(&self.ids[next * length..][..length]);
            weights[*row] = 1.0;
        }
        (ids, weights)
    }
}
