//! A batch of rollouts: ground truth and the predictions of each model, as fields and as latents.

use super::scores::Method;
use learn::score::Bits;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// States by rollout and step. With a stride of 0, all rollouts or all steps share a single state.
#[derive(Clone, Debug)]
pub struct Frames {
    values: Arc<Vec<f32>>,
    width: usize,
    /// Strides between rollouts and between steps, in values.
    strides: [usize; 2],
}

impl Frames {
    /// Wraps states [rollouts, states, width].
    pub fn new(values: Vec<f32>, states: usize, width: usize) -> Self {
        Self { values: Arc::new(values), width, strides: [states * width, width] }
    }

    /// Uses the same state for all rollouts and steps.
    pub fn constant(state: Vec<f32>) -> Self {
        Self { width: state.len(), values: Arc::new(state), strides: [0, 0] }
    }

    /// Returns the state of step 0 at every step.
    pub fn persistence(&self) -> Self {
        Self { strides: [self.strides[0], 0], ..self.clone() }
    }

    /// Computes the mean of states of equal shape.
    pub fn mean(all: &[Self]) -> Self {
        let values = |at: usize| {
            let sum: f64 = all.iter().map(|frames| f64::from(frames.values[at])).sum();
            (sum / all.len() as f64) as f32
        };
        let values = (0..all[0].values.len()).into_par_iter().map(values).collect();
        Self { values: Arc::new(values), ..all[0].clone() }
    }

    /// Applies `convert` to every state.
    pub fn map(&self, convert: impl Fn(&[f32], &mut [f32])) -> Self {
        let mut values = vec![0.0; self.values.len()];
        let rows = self.values.chunks_exact(self.width).zip(values.chunks_exact_mut(self.width));
        rows.for_each(|(state, out)| convert(state, out));
        Self { values: Arc::new(values), ..self.clone() }
    }

    /// Returns the state of a rollout at a step.
    pub fn at(&self, rollout: usize, step: usize) -> &[f32] {
        &self.values[rollout * self.strides[0] + step * self.strides[1]..][..self.width]
    }
}

/// Ground truth and predictions in one space.
#[derive(Clone, Debug)]
pub struct Space {
    /// `field`, in physical units; `latent`, as encoded by the codec; `latent_weighted`, see longhaul-files(5).
    pub name: &'static str,
    /// Ground truth.
    pub truth: Frames,
    /// Predictions by model, the evaluated model first.
    pub models: Vec<(Method, Frames)>,
}

/// The cost of a model's predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The model.
    pub model: Method,
    /// Number of evaluations of the operator or regression model, one for each step of each rollout.
    pub evaluations: u64,
    /// Number of evaluations of a corrector's denoiser.
    pub denoisings: u64,
    /// Wall-clock time of the predictions, including the decoder and, for views, the encoder.
    pub seconds: Bits,
    /// Number of candidates scored by a reward.
    pub rewards: u64,
    /// Wall-clock time of the rewards, on all threads.
    pub reward_seconds: Bits,
}

impl Cost {
    /// Adds the cost of further predictions of the same model.
    pub fn add(&mut self, other: &Self) {
        self.evaluations += other.evaluations;
        self.denoisings += other.denoisings;
        self.seconds.0 += other.seconds.0;
        self.rewards += other.rewards;
        self.reward_seconds.0 += other.reward_seconds.0;
    }
}

/// A batch of rollouts; step 0 is the initial state.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The spaces, fields first.
    pub spaces: Vec<Space>,
    /// Fields predicted by each member of an ensemble; empty for a single forecast.
    pub members: Vec<Frames>,
    /// Costs of the evaluated models.
    pub costs: Vec<Cost>,
    /// Rank correlation of rewards and errors of candidates, by rollout; empty without a search.
    pub rank_correlations: Vec<f64>,
    /// Mean variance of the views by rollout; empty for a single view.
    pub variances: Vec<f64>,
}

impl Batch {
    /// Returns the space of fields.
    pub fn field(&self) -> &Space {
        &self.spaces[0]
    }

    /// Returns the fields predicted by the evaluated model.
    pub fn prediction(&self) -> &Frames {
        &self.field().models[0].1
    }

    /// Iterates over the fields predicted by the evaluated model and by all other models that are not baselines.
    pub fn predictions(&self) -> impl Iterator<Item = &(Method, Frames)> {
        let all = self.field().models.iter().enumerate();
        all.filter(|(i, (model, _))| *i == 0 || !model.is_baseline()).map(|(_, one)| one)
    }
}
