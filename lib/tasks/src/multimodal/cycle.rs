//! The cycles: a text through its latent (T2L2T), which is back-translation (Sennrich et al. 2016) with latents in place
//! of the other language, and a latent through its text (L2T2L).

use super::batch::{Columns, Drawing, Position, Sample};
use super::config::PseudoText;
use super::model::{Inputs, Network};
use super::sets::Record;
use crate::diffusion::combine;
use learn::forward::Forward;
use learn::task::{Batch, Part};
use tensor::functions::Candidates;
use tensor::functions::argmax::argmax;
use tensor::functions::categorical::{Categorical, categorical};
use tensor::ops::cross_entropy::CrossEntropy;
use tensor::random::{Philox, Purpose};
use tensor::{Tensor, Var, constant};
use unix::Result;

/// The parts of the loss.
pub(super) const T2L2T: &str = "t2l2t";
pub(super) const L2T2L: &str = "l2t2l";
/// Prefixes of the tensors of the first and of the second pass of each cycle.
const TEXT: [&str; 2] = ["text_cycle.first.", "text_cycle."];
const LATENT: [&str; 2] = ["latent_cycle.first.", "latent_cycle."];
/// The counter of the random numbers that choose the tokens of texts.
const COUNTER: &str = "latent_cycle.counter";
/// The number of samples of a cycle is rounded up to a multiple of this, so that there are few shapes.
const MULTIPLE: usize = 8;
/// Bits of a batch's variant.
const HAS_TEXT_CYCLE: u32 = 1;
const HAS_LATENT_CYCLE: u32 = 2;

impl Drawing {
    /// Records of a cycle (0: T2L2T, 1: L2T2L), and their places in the micro-batch; the last ones may be copies that are
    /// not learned. Where some have no partner, those of pairs are left out: their true partner is known.
    fn of_cycle<'a>(
        &self,
        cycle: usize,
        first: u64,
        records: &'a [Record],
    ) -> Vec<(u64, &'a Record<'a>, bool)> {
        let own = (first..).zip(records).filter(|(_, record)| {
            let has = [record.ids.is_some(), record.vector.is_some()];
            has[cycle] && !(has[1 - cycle] && self.has_unpaired[cycle])
        });
        let mut found: Vec<_> = own.map(|(place, record)| (place, record, true)).collect();
        if let Some((place, record, _)) = found.last().copied() {
            found.resize(found.len().next_multiple_of(MULTIPLE), (place, record, false));
        }
        found
    }

    /// Adds the tensors of the cycles that have a weight in the update of this micro-batch, and returns their parts of
    /// the loss. Parts are the same for all batches of a run.
    pub(super) fn with_cycles(
        &self,
        batch: Batch,
        network: &Network,
        at: Position,
        records: &[Record],
    ) -> (Batch, Vec<Part>) {
        let update = at.micro_batch / self.accumulation;
        let (text, latent) = (self.loss.cycle_text, self.loss.cycle_latent.ramp());
        let (mut batch, mut parts, mut variant) = (batch, Vec::new(), 0);
        if text.weight > 0.0 {
            let (weight, mut total) = (text.at(update), 0.0);
            if weight > 0.0 {
                (batch, total) = self.with_text_cycle(batch, network, at, records);
            }
            variant |= if total > 0.0 { HAS_TEXT_CYCLE } else { 0 };
            parts.push(Part::new(T2L2T, total).times(weight));
        }
        if latent.weight > 0.0 {
            let (weight, mut total) = (latent.at(update), 0.0);
            if weight > 0.0 {
                (batch, total) = self.with_latent_cycle(batch, network, at, records);
            }
            variant |= if total > 0.0 { HAS_LATENT_CYCLE } else { 0 };
            parts.push(Part::new(L2T2L, total).times(weight));
        }
        (batch.with_variant(variant), parts)
    }

    /// Adds whole texts with noise, and the same texts with masks; returns the weight of the masked tokens.
    fn with_text_cycle(
        &self,
        batch: Batch,
        network: &Network,
        at: Position,
        records: &[Record],
    ) -> (Batch, f64) {
        let draws = self.draws(at.micro_batch, 1);
        let (mut whole, mut masked) = (Columns::default(), Columns::default());
        for (place, record, is_own) in self.of_cycle(0, at.first, records) {
            let text = Record { vector: None, ..record.clone() };
            let of =
                |times, learns| Sample { place, record: &text, times, learns: [learns, false] };
            whole.add(self, network, &draws, of([0.0, 1.0], false));
            masked.add(self, network, &draws, of([self.text_time(&draws, place), 0.0], is_own));
        }
        if whole.times.is_empty() {
            return (batch, 0.0);
        }
        let batch = network.add_inputs(batch, TEXT[0], &whole.ids, &whole.latents, &whole.times);
        let batch = network.add_times(batch, TEXT[1], &masked.times);
        let batch = network.add_texts(batch, TEXT[1], &masked.ids);
        (masked.add_text_targets(batch, TEXT[1]), masked.totals(self)[0])
    }

    /// Adds clean latents with masks alone as texts, and the same latents with noise; returns their number.
    fn with_latent_cycle(
        &self,
        batch: Batch,
        network: &Network,
        at: Position,
        records: &[Record],
    ) -> (Batch, f64) {
        let draws = self.draws(at.micro_batch, 2);
        let (mut clean, mut noisy) = (Columns::default(), Columns::default());
        for (place, record, is_own) in self.of_cycle(1, at.first, records) {
            let latent = Record { ids: None, ..record.clone() };
            let of =
                |times, learns| Sample { place, record: &latent, times, learns: [false, learns] };
            clean.add(self, network, &draws, of([1.0, 0.0], false));
            noisy.add(self, network, &draws, of([0.0, self.latent_time(&draws, place)], is_own));
        }
        if clean.times.is_empty() {
            return (batch, 0.0);
        }
        let batch = network.add_inputs(batch, LATENT[0], &clean.ids, &clean.latents, &clean.times);
        let batch = network.add_times(batch, LATENT[1], &noisy.times);
        let latents = network.latent_tensor(&noisy.latents);
        let key = Philox::new(self.seed, Purpose::Sampling).key();
        let row = at.first * network.sizes().length as u64;
        let counter = [key[0], key[1], at.micro_batch as u32, row as u32].map(u32::cast_signed);
        let batch = batch.with(COUNTER, Tensor::from_slice(&counter, &[4]));
        let batch = batch.with(format!("{}latents", LATENT[1]), latents);
        (noisy.add_latent_targets(batch, LATENT[1]), noisy.totals(self)[1])
    }

    /// Whether a batch has the tensors of each cycle.
    pub(super) fn cycles_of(batch: &Batch) -> [bool; 2] {
        [HAS_TEXT_CYCLE, HAS_LATENT_CYCLE].map(|bit| batch.variant() & bit != 0)
    }

    /// The cross entropy of texts given the latents that the network computes from them in one evaluation.
    pub(super) fn text_cycle(
        &self,
        network: &Network,
        forward: &Forward,
        batch: &Batch,
    ) -> Result<Var> {
        let whole = Inputs::of(forward, batch, TEXT[0])?;
        let latents = match self.loss.stop_gradient {
            true => self.estimate(network, &forward.without_gradients(), &whole)?,
            false => self.estimate(network, forward, &whole)?,
        };
        let input = |name: &str| batch.input(forward, &format!("{}{name}", TEXT[1]));
        let latents = latents.reshape(whole.latents.shape());
        let inputs =
            Inputs { ids: input("ids")?, latents, times: input("times")?, clean: input("clean")? };
        let [text, _] = network.forward(forward, &inputs)?;
        let logits = network.logits(forward, &text)?;
        let [targets, weights] = [input("targets")?, input("weights")?];
        forward.apply(CrossEntropy::default(), &[&logits, &targets, &weights])
    }

    /// The latents that the network estimates from texts and noise at time 1, [B, D].
    fn estimate(&self, network: &Network, forward: &Forward, inputs: &Inputs) -> Result<Var> {
        let [_, latent] = network.forward(forward, inputs)?;
        let found = network.latents(forward, &latent)?;
        let [of_noise, of_found] = self.loss.latent_target.estimate([0.0, 1.0]);
        let noise = inputs.latents.reshape(found.shape());
        match of_noise {
            0.0 => combine(forward, &[(of_found, &found)]),
            _ => combine(forward, &[(of_noise, &noise), (of_found, &found)]),
        }
    }

    /// The squared error of latents given the texts that the network computes from them.
    pub(super) fn latent_cycle(
        &self,
        network: &Network,
        forward: &Forward,
        batch: &Batch,
    ) -> Result<Var> {
        let clean = Inputs::of(forward, batch, LATENT[0])?;
        let outer = forward.without_gradients();
        let [text, _] = network.forward(&outer, &clean)?;
        let logits = outer.to_param_dtype(&network.logits(&outer, &text)?)?;
        let sizes = network.sizes();
        let candidates = Candidates::new(sizes.vocabulary).without(sizes.mask);
        let chosen = match self.loss.cycle_latent.sampling {
            PseudoText::Argmax => argmax(logits.value(), candidates)?,
            PseudoText::Categorical => {
                let by = Categorical { candidates, temperature: 1.0, site: 0 };
                let counter = batch.input(forward, COUNTER)?;
                categorical(logits.value(), counter.value(), by)?
            }
        };
        let ids = constant(chosen.index.reshape(clean.ids.shape()));
        let input = |name: &str| batch.input(forward, &format!("{}{name}", LATENT[1]));
        let (latents, times) = (input("latents")?, input("times")?);
        let inputs = Inputs { ids, latents, times, clean: input("clean")? };
        let [_, latent] = network.forward(forward, &inputs)?;
        let found = network.latents(forward, &latent)?;
        let [targets, weights] = [input("latent_targets")?, input("latent_weights")?];
        self.latent_error(forward, &found, &targets, &weights)
    }
}
