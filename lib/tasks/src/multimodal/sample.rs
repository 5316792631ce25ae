//! Sampling: texts given latents, and latents given texts.

use super::config::CycleVaeLoss;
use super::draft::Draft;
use super::metrics::paired_cosines;
use super::model::{Inputs, Network};
use learn::forward::Forward;
use learn::task::Batch;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::random::{Philox, Purpose};
use unix::Result;

/// Maximum number of samples in a forward pass.
const ROWS: usize = 512;
/// Maximum number of logits of a forward pass.
const LOGITS: usize = 1 << 25;

/// How many tokens are known after each step.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    clap::ValueEnum,
    strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Reveal {
    /// Equally many in each step.
    #[default]
    Linear,
    /// Few at first: the fraction 1 - cos(πu/2) after the fraction u of the steps (Chang et al. 2022, §3.2).
    Cosine,
    /// Each token at a random step, without regard to its entropy (ancestral sampling, Sahoo et al. 2024, §3.2).
    Ancestral,
}

/// How texts are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextSampler {
    /// Number of steps.
    pub steps: usize,
    /// Order of the tokens.
    pub reveal: Reveal,
    /// Divides the logits; 0 takes the most probable token.
    pub temperature: f64,
    /// Guidance g: logits are l + g·(l - l₀) with the logits l₀ without the latent (Ho & Salimans 2021).
    pub guidance: f64,
    /// Further steps, each of which masks a quarter of the tokens again, those with the largest entropy.
    pub remask: usize,
}

impl TextSampler {
    /// Tokens whose distributions have the least entropy first, without randomness.
    pub fn greedy(steps: usize) -> Self {
        Self { steps, reveal: Reveal::Linear, temperature: 0.0, guidance: 0.0, remask: 0 }
    }
}

/// How latents are sampled, by DDIM (Song et al. 2021, equation 12).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatentSampler {
    /// Number of steps; 1 is the prediction from noise alone.
    pub steps: usize,
    /// η: 0 for a deterministic sampler, 1 for the ancestral one.
    pub eta: f64,
    /// Guidance g, as for texts.
    pub guidance: f64,
}

impl Default for LatentSampler {
    fn default() -> Self {
        Self { steps: 1, eta: 0.0, guidance: 0.0 }
    }
}

/// Drafts of a text.
#[derive(Clone, Debug)]
pub struct Drafts {
    /// The first one.
    pub first: Vec<i32>,
    /// The one whose latent has the largest cosine with the given one.
    pub best: Vec<i32>,
    /// That cosine.
    pub cosine: f64,
}

/// Runs the network for sampling.
#[derive(Clone, Copy)]
pub struct Runner<'a> {
    /// The network.
    pub network: &'a Network,
    /// A forward run without gradients.
    pub forward: &'a Forward<'a>,
    /// Schedule and target of the latents.
    pub loss: &'a CycleVaeLoss,
}

/// Which output of the network is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Logits,
    Latents,
}

impl Runner<'_> {
    /// Returns the logits [n·S, V] or the predictions for latents [n, D] of samples with token ids [n, S], noisy
    /// latents [n, D], and times.
    fn run(
        &self,
        ids: &[i32],
        latents: &[f32],
        times: &[[f64; 2]],
        wanted: Wanted,
    ) -> Result<Vec<f32>> {
        let batch = self.network.add_inputs(Batch::new(1.0), "", ids, latents, times);
        let batch = batch.to_device(self.forward.device())?;
        let inputs = Inputs::of(self.forward, &batch, "")?;
        let [text, latent] = self.network.forward(self.forward, &inputs)?;
        let found = match wanted {
            Wanted::Logits => {
                self.forward.to_param_dtype(&self.network.logits(self.forward, &text)?)?
            }
            Wanted::Latents => self.network.latents(self.forward, &latent)?,
        };
        Ok(found.value().to_host()?.read::<f32>().to_vec())
    }

    /// Number of samples of a forward pass.
    pub(super) fn rows(&self) -> usize {
        let sizes = self.network.sizes();
        (LOGITS / (sizes.length * sizes.vocabulary).max(1)).clamp(1, ROWS)
    }

    /// Returns the logits, see [`Self::run`]; with guidance, those guided away from the ones without latent.
    pub(super) fn logits(
        &self,
        ids: &[i32],
        latents: &[f32],
        times: &[[f64; 2]],
        guidance: f64,
    ) -> Result<Vec<f32>> {
        let mut found = self.run(ids, latents, times, Wanted::Logits)?;
        if guidance != 0.0 {
            let zeros = vec![0.0; latents.len()];
            let without: Vec<_> = times.iter().map(|[text, _]| [*text, 1.0]).collect();
            let other = self.run(ids, &zeros, &without, Wanted::Logits)?;
            guide(&mut found, &other, guidance);
        }
        Ok(found)
    }

    /// Samples a text, [S] ids, for each latent [n, D] in units of its deviations. `keys` identify the samples: equal
    /// keys draw equal numbers. Without latents, texts are sampled unconditionally.
    pub fn texts(
        &self,
        latents: Option<&[f32]>,
        keys: &[u64],
        sampler: &TextSampler,
        seed: u64,
    ) -> Result<Vec<Vec<i32>>> {
        let (width, mut all) = (self.network.sizes().vector, Vec::with_capacity(keys.len()));
        let random = Philox::new(seed, Purpose::Sampling);
        for (start, keys) in (0..).step_by(self.rows()).zip(keys.chunks(self.rows())) {
            let own = latents.map(|all| &all[start * width..][..keys.len() * width]);
            all.extend(self.some_texts(own, keys, sampler, &random)?);
        }
        Ok(all)
    }

    /// Samples `count` drafts of the text of each latent [n, D], and chooses the one whose own latent, in one
    /// evaluation, has the largest cosine with the given one.
    pub fn drafts(
        &self,
        latents: &[f32],
        keys: &[u64],
        sampler: &TextSampler,
        count: usize,
        seed: u64,
    ) -> Result<Vec<Drafts>> {
        let width = self.network.sizes().vector;
        let mut all: Vec<Drafts> = Vec::new();
        for number in 0..count as u64 {
            let seed = Philox::new(seed, Purpose::Sampling).at_source(number).key();
            let seed = u64::from(seed[0]) << 32 | u64::from(seed[1]);
            let texts = self.texts(Some(latents), keys, sampler, seed)?;
            let again =
                self.latents(Some(&texts.concat()), keys, &LatentSampler::default(), seed)?;
            let cosines = paired_cosines(&again, latents, width);
            if all.is_empty() {
                let first = texts.into_iter().zip(cosines);
                all = first
                    .map(|(ids, cosine)| Drafts { first: ids.clone(), best: ids, cosine })
                    .collect();
                continue;
            }
            for (own, (ids, cosine)) in all.iter_mut().zip(texts.into_iter().zip(cosines)) {
                if cosine > own.cosine {
                    (own.best, own.cosine) = (ids, cosine);
                }
            }
        }
        Ok(all)
    }

    fn some_texts(
        &self,
        latents: Option<&[f32]>,
        keys: &[u64],
        sampler: &TextSampler,
        random: &Philox,
    ) -> Result<Vec<Vec<i32>>> {
        let (sizes, n) = (self.network.sizes(), keys.len());
        let length = sizes.length;
        let (latents, of_latent) = match latents {
            Some(latents) => (latents.to_vec(), 0.0),
            None => (noise(&random.at_source(u64::MAX), keys, sizes.vector), 1.0),
        };
        let confidence = vec![f32::NEG_INFINITY; length];
        let draft = Draft { ids: vec![sizes.mask; length], confidence };
        let mut drafts = vec![draft; n];
        for step in 0..sampler.steps + sampler.remask {
            let random = random.at_update(step as u64);
            if step >= sampler.steps {
                drafts.iter_mut().for_each(|draft| draft.remask(sizes.mask));
            }
            let ids: Vec<i32> = drafts.iter().flat_map(|draft| draft.ids.iter().copied()).collect();
            let masked = |draft: &Draft| draft.ids.iter().filter(|id| **id == sizes.mask).count();
            let times: Vec<_> = drafts
                .iter()
                .map(|draft| [masked(draft) as f64 / length as f64, of_latent])
                .collect();
            let logits = self.logits(&ids, &latents, &times, sampler.guidance)?;
            let rows = logits.par_chunks_exact(length * sizes.vocabulary);
            drafts.par_iter_mut().zip(keys).zip(rows).for_each(|((draft, key), logits)| {
                draft.reveal(sampler, step, (&random, *key), (logits, sizes.mask));
            });
        }
        Ok(drafts.into_iter().map(|draft| draft.ids).collect())
    }

    /// Samples the latent of each text, given as ids [n, S] with padding: [n, D] in units of the deviations. Without
    /// texts, latents are sampled unconditionally.
    pub fn latents(
        &self,
        texts: Option<&[i32]>,
        keys: &[u64],
        sampler: &LatentSampler,
        seed: u64,
    ) -> Result<Vec<f32>> {
        let (length, mut all) = (self.network.sizes().length, Vec::new());
        let random = Philox::new(seed, Purpose::Sampling).at_source(1);
        for (start, keys) in (0..).step_by(ROWS).zip(keys.chunks(ROWS)) {
            let own = texts.map(|all| &all[start * length..][..keys.len() * length]);
            all.extend(self.some_latents(own, keys, sampler, &random)?);
        }
        Ok(all)
    }

    fn some_latents(
        &self,
        texts: Option<&[i32]>,
        keys: &[u64],
        sampler: &LatentSampler,
        random: &Philox,
    ) -> Result<Vec<f32>> {
        let sizes = self.network.sizes();
        let (schedule, target) = (self.loss.latent_schedule, self.loss.latent_target);
        let masked = vec![sizes.mask; keys.len() * sizes.length];
        let (ids, of_text) = texts.map_or((&masked[..], 1.0), |ids| (ids, 0.0));
        let mut noisy = noise(random, keys, sizes.vector);
        let mut clean = noisy.clone();
        for step in 0..sampler.steps {
            let at = |step: usize| 1.0 - step as f64 / sampler.steps as f64;
            let (t, next) = (at(step), at(step + 1));
            let times = |text: f64| vec![[text, t]; keys.len()];
            let mut found = self.run(ids, &noisy, &times(of_text), Wanted::Latents)?;
            if sampler.guidance != 0.0 {
                let other = self.run(&masked, &noisy, &times(1.0), Wanted::Latents)?;
                guide(&mut found, &other, sampler.guidance);
            }
            let levels = if t >= 1.0 { [0.0, 1.0] } else { schedule.at(t) };
            let [of_noisy, of_found] = target.estimate(levels).map(|x| x as f32);
            for ((clean, noisy), found) in clean.iter_mut().zip(&noisy).zip(&found) {
                *clean = of_noisy * noisy + of_found * found;
            }
            if step + 1 == sampler.steps {
                break;
            }
            let [[a, b], [c, d]] = [levels, schedule.at(next)];
            // σ of Song et al. 2021, equation 16, with √ᾱ = a and √(1 - ᾱ) = b.
            let sigma = match sampler.eta > 0.0 {
                true => sampler.eta * (d / b) * (1.0 - (a / c).powi(2)).max(0.0).sqrt(),
                false => 0.0,
            };
            let fresh = noise(&random.at_update(step as u64 + 1), keys, sizes.vector);
            let kept = (d * d - sigma * sigma).max(0.0).sqrt();
            let [a, b, c, kept, sigma] = [a, b, c, kept, sigma].map(|x| x as f32);
            for ((noisy, clean), fresh) in noisy.iter_mut().zip(&clean).zip(&fresh) {
                let epsilon = (*noisy - a * clean) / b;
                *noisy = c * clean + kept * epsilon + sigma * fresh;
            }
        }
        Ok(clean)
    }
}

/// Moves `found` away from `other`: x + g·(x - y).
fn guide(found: &mut [f32], other: &[f32], guidance: f64) {
    let g = guidance as f32;
    found.iter_mut().zip(other).for_each(|(x, y)| *x += g * (*x - y));
}

/// Standard normal numbers, [keys, width].
fn noise(random: &Philox, keys: &[u64], width: usize) -> Vec<f32> {
    let mut all = vec![0.0; keys.len() * width];
    all.chunks_exact_mut(width).zip(keys).for_each(|(out, key)| random.fill_normal(*key, out));
    all
}
