//! The batches: which samples are trained in which direction, at which times, with which masks and noise.

use super::config::{CycleVaeLoss, TextWeighting};
use super::mode::Mode;
use super::model::Network;
use super::sets::Record;
use crate::common::normalisation::Normalisation;
use learn::task::{Batch, Part};
use tensor::Tensor;
use tensor::random::{Philox, Purpose};

/// The parts of the loss: texts of latents, and latents of texts.
pub(super) const L2T: &str = "l2t";
pub(super) const T2L: &str = "t2l";

/// Draws the directions, times, masks and noise of training samples.
///
/// Every draw is a function of the seed, the micro-batch and the place of the sample in it.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Seed of the run.
    pub seed: u64,
    /// Samples of a micro-batch over all ranks.
    pub batch_size: u64,
    /// Micro-batches of an update.
    pub accumulation: u64,
    /// Updates between records of the log.
    pub log_every: u64,
    /// Whether some texts, and whether some vectors, have no partner.
    pub has_unpaired: [bool; 2],
    /// Objective and noise.
    pub loss: CycleVaeLoss,
    /// From records to the inputs of the network.
    pub preparation: Preparation,
}

/// Converts records to the inputs of the network.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// Tokens of a text, with its padding.
    pub length: usize,
    /// The id that pads texts.
    pub padding: i32,
    /// Mean and deviation of the vectors.
    pub normalisation: Normalisation,
}

impl Preparation {
    /// Returns the token ids of a text with its padding, [S].
    pub fn padded(&self, ids: &[i32]) -> Vec<i32> {
        let mut padded = vec![self.padding; self.length];
        padded.iter_mut().zip(ids).for_each(|(to, id)| *to = *id);
        padded
    }

    /// Returns the token ids of the texts of records with their padding, [n, S]; those of a missing text are padding.
    pub fn texts(&self, records: &[Record]) -> Vec<i32> {
        records.iter().flat_map(|own| self.padded(own.ids.unwrap_or_default())).collect()
    }

    /// Returns the vectors of records in units of their deviations, [n, D]; a missing one is 0.
    pub fn vectors(&self, records: &[Record]) -> Vec<f32> {
        let width = self.normalisation.channels();
        let mut all = vec![0.0; records.len() * width];
        for (record, out) in records.iter().zip(all.chunks_exact_mut(width)) {
            record.vector.iter().for_each(|vector| self.normalisation.apply(vector, out));
        }
        all
    }
}

/// The samples of a batch, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns {
    pub ids: Vec<i32>,
    pub latents: Vec<f32>,
    pub times: Vec<[f64; 2]>,
    /// Tokens to predict, and the weight of each.
    targets: Vec<i32>,
    weights: Vec<f32>,
    pub latent_targets: Vec<f32>,
    pub latent_weights: Vec<f32>,
}

impl Drawing {
    /// Whether the sample at `place` is trained from latent to text: of consecutive places, this share.
    fn learns_text(share: f64, place: u64) -> bool {
        let count = |places: u64| (places as f64 * share).floor();
        count(place + 1) > count(place)
    }

    /// The time of the sample at `place`, uniform in [low, 1]: places divide the interval evenly, with a common random
    /// offset (Kingma et al. 2021, appendix I.1).
    fn time(&self, low: f64, offset: f32, place: u64) -> f64 {
        let u = (f64::from(offset) + place as f64 / self.batch_size as f64).fract();
        low + (1.0 - low) * u
    }

    /// The draws of a micro-batch, for samples (0) or for one of the cycles.
    pub(super) fn draws(&self, micro_batch: u64, cycle: u64) -> Draws {
        let of = |purpose| {
            let random = Philox::new(self.seed, purpose).at_update(micro_batch);
            if cycle == 0 { random } else { random.at_source(1 + cycle) }
        };
        let [times, masks, noises] = [Purpose::Loss, Purpose::Mask, Purpose::Noise].map(of);
        let offsets = [0, 1].map(|i| times.at_source(1).uniform(0, i));
        Draws { times, masks, noises, offsets }
    }

    /// Makes a batch of records, the first of which has place `first` in micro-batch `micro_batch`.
    ///
    /// Tensors: those of [`Network::add_inputs`]; `targets`, i32 [B·S], and `weights`, [B·S], 0 where a token is not
    /// masked or a sample has no text to learn; `latent_targets`, [B, D], and `latent_weights`, [B]; and those of the
    /// cycles.
    pub fn batch(
        &self,
        network: &Network,
        micro_batch: u64,
        first: u64,
        records: &[Record],
    ) -> Batch {
        let draws = self.draws(micro_batch, 0);
        let update = micro_batch / self.accumulation;
        let mode = self.mode(update);
        let share = match mode {
            Mode::L2t => 1.0,
            Mode::T2l => 0.0,
            Mode::Joint | Mode::Unconditional => self.loss.text_share,
        };
        let mut columns = Columns::default();
        for (place, record) in (first..).zip(records) {
            let learns_text = match (record.ids, record.vector) {
                (Some(_), Some(_)) => Self::learns_text(share, place),
                (ids, _) => ids.is_some(),
            };
            let is_paired = record.ids.is_some() && record.vector.is_some();
            let drops = mode == Mode::Unconditional
                || f64::from(draws.times.uniform(place, 0)) < self.loss.unconditional;
            let condition = if is_paired && !drops { 0.0 } else { 1.0 };
            let t = match learns_text {
                true => [self.text_time(&draws, place), condition],
                false => [condition, self.latent_time(&draws, place)],
            };
            let learns = [learns_text, !learns_text];
            columns.add(self, network, &draws, Sample { place, record, times: t, learns });
        }
        let [texts, latents] = columns.totals(self);
        let mut parts = vec![
            Part::new(L2T, texts).times(self.loss.text_weight),
            Part::new(T2L, latents).times(self.loss.latent_weight),
        ];
        let batch = columns.finish(network, Batch::new(records.len() as f64), "");
        let at = Position { micro_batch, first };
        let (batch, more) = self.with_cycles(batch, network, at, records);
        parts.extend(more);
        self.observed(batch, network, update, &columns).with_parts(parts)
    }

    /// The time of the text at `place`.
    pub(super) fn text_time(&self, draws: &Draws, place: u64) -> f64 {
        self.time(self.loss.min_time, draws.offsets[0], place)
    }

    /// The time of the latent at `place`.
    pub(super) fn latent_time(&self, draws: &Draws, place: u64) -> f64 {
        let [low, high] = self.loss.latent_times;
        low + (high - low) * self.time(0.0, draws.offsets[1], place)
    }
}

/// The micro-batch of a batch, and the place of its first sample in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub micro_batch: u64,
    pub first: u64,
}

/// The random numbers of a micro-batch.
pub(super) struct Draws {
    pub times: Philox,
    pub masks: Philox,
    pub noises: Philox,
    /// Common offsets of the times of texts and of latents.
    pub offsets: [f32; 2],
}

/// A record as a training sample.
pub(super) struct Sample<'a> {
    /// Its place in the micro-batch.
    pub place: u64,
    pub record: &'a Record<'a>,
    /// Times of text and latent.
    pub times: [f64; 2],
    /// Whether the text, and whether the latent is learned.
    pub learns: [bool; 2],
}

impl Columns {
    /// Adds a sample.
    pub fn add(&mut self, drawing: &Drawing, network: &Network, draws: &Draws, sample: Sample) {
        let Sample { place, times, .. } = sample;
        let mut noise = vec![0.0; network.sizes().vector];
        draws.noises.fill_normal(place, &mut noise);
        self.times.push(times);
        self.add_text(drawing, &sample, network.sizes().mask, |element| {
            f64::from(draws.masks.uniform(place, element))
        });
        self.add_latent(drawing, &sample, &noise);
    }

    /// Adds a text, each token of which is masked if its random number is below `t`.
    fn add_text(
        &mut self,
        drawing: &Drawing,
        sample: &Sample,
        mask: i32,
        uniform: impl Fn(u64) -> f64,
    ) {
        let (t, is_learned) = (sample.times[0], sample.learns[0]);
        let Drawing { loss, preparation, .. } = drawing;
        let targets = preparation.padded(sample.record.ids.unwrap_or_default());
        let factor = match loss.text_weighting {
            TextWeighting::Mean => 1.0,
            TextWeighting::Elbo => 1.0 / t,
        };
        for (element, id) in (0..).zip(&targets) {
            let is_masked = t > 0.0 && uniform(element) < t;
            self.ids.push(if is_masked { mask } else { *id });
            let weight = if *id == preparation.padding { loss.padding_weight } else { 1.0 };
            let weight = if is_masked && is_learned { factor * weight } else { 0.0 };
            self.weights.push(weight as f32);
        }
        self.targets.extend(targets);
    }

    /// Adds a latent with the noise of its time, and its target.
    fn add_latent(&mut self, drawing: &Drawing, sample: &Sample, noise: &[f32]) {
        let (t, is_learned) = (sample.times[1], sample.learns[1]);
        let z = drawing.preparation.vectors(std::slice::from_ref(sample.record));
        // A time of 0 means the clean latent in every schedule, one of 1 without a vector pure noise.
        let levels = match (sample.record.vector, t) {
            (None, _) => [0.0, 1.0],
            (_, 0.0) if !is_learned => [1.0, 0.0],
            (_, 1.0) if !is_learned => [0.0, 1.0],
            _ => drawing.loss.latent_schedule.at(t),
        };
        let combined = |[of_z, of_noise]: [f64; 2]| {
            let [of_z, of_noise] = [of_z as f32, of_noise as f32];
            z.iter().zip(noise).map(move |(z, noise)| of_z * z + of_noise * noise)
        };
        self.latents.extend(combined(levels));
        let mut target: Vec<f32> = combined(drawing.loss.latent_target.factors(levels)).collect();
        if drawing.loss.compares_directions() {
            let norm = target.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            target.iter_mut().for_each(|x| *x = (f64::from(*x) / norm.max(1e-8)) as f32);
        }
        self.latent_targets.extend(target);
        self.latent_weights.push(f32::from(u8::from(is_learned)));
    }

    /// The denominators of texts and of latents: masked tokens, or all of them for the bound; and samples.
    pub fn totals(&self, drawing: &Drawing) -> [f64; 2] {
        let latents = self.latent_weights.iter().filter(|weight| **weight > 0.0).count();
        let texts = match drawing.loss.text_weighting {
            TextWeighting::Mean => self.weights.iter().map(|weight| f64::from(*weight)).sum(),
            TextWeighting::Elbo => {
                ((self.times.len() - latents) * drawing.preparation.length) as f64
            }
        };
        [texts, latents as f64]
    }

    /// Adds inputs and targets of all samples to a batch, with names that begin with `prefix`.
    fn finish(&self, network: &Network, batch: Batch, prefix: &str) -> Batch {
        let batch = network.add_inputs(batch, prefix, &self.ids, &self.latents, &self.times);
        self.add_latent_targets(self.add_text_targets(batch, prefix), prefix)
    }

    /// Adds the tokens to predict and their weights.
    pub fn add_text_targets(&self, batch: Batch, prefix: &str) -> Batch {
        let tokens = [self.targets.len()];
        batch
            .with(format!("{prefix}targets"), Tensor::from_slice(&self.targets, &tokens))
            .with(format!("{prefix}weights"), Tensor::from_slice(&self.weights, &tokens))
    }

    /// Adds the targets of latents and their weights.
    pub fn add_latent_targets(&self, batch: Batch, prefix: &str) -> Batch {
        let rows = self.times.len();
        let shape = [rows, self.latent_targets.len() / rows.max(1)];
        let targets = Tensor::from_slice(&self.latent_targets, &shape);
        batch.with(format!("{prefix}latent_targets"), targets).with(
            format!("{prefix}latent_weights"),
            Tensor::from_slice(&self.latent_weights, &[rows]),
        )
    }
}
