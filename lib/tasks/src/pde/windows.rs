//! Training windows of latent trajectories: the states from a random start frame on, at intervals of `stride` frames.

use crate::common::condition::Condition;
use crate::common::normalisation::Normalisation;
use crate::common::sources::Sources;
use data::fields::latents::LatentStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// One of several equal parts of the trajectories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fold {
    /// Number of folds: fold k has the trajectories k, k + folds, ...
    #[schemars(range(min = 2, max = 1024))]
    pub folds: usize,
    /// The fold, counted from 0.
    pub fold: usize,
}

impl Fold {
    /// Returns the violation in the values, if any.
    pub fn violation(&self) -> Option<String> {
        let Self { folds, fold } = self;
        (fold >= folds).then(|| format!("there is no fold {fold} of {folds}: folds count from 0"))
    }
}

/// The trajectories of a store that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FoldSelection {
    /// All trajectories.
    #[default]
    All,
    /// The trajectories of all folds but one.
    Without(Fold),
    /// The trajectories of one fold.
    Only(Fold),
}

impl FoldSelection {
    /// Returns how many of `all` trajectories are used.
    fn count(self, all: usize) -> usize {
        let of = |Fold { folds, fold }: Fold| (all + folds - 1 - fold) / folds;
        match self {
            Self::All => all,
            Self::Without(fold) => all - of(fold),
            Self::Only(fold) => of(fold),
        }
    }

    /// Returns the index of the n-th trajectory that is used.
    fn trajectory(self, n: usize) -> usize {
        match self {
            Self::All => n,
            Self::Without(Fold { folds, fold }) => {
                let (round, rest) = (n / (folds - 1), n % (folds - 1));
                round * folds + rest + usize::from(rest >= fold)
            }
            Self::Only(Fold { folds, fold }) => n * folds + fold,
        }
    }
}

/// A latent store, and which of its trajectories are used.
pub(super) struct LatentsPart {
    pub store: LatentStore,
    pub folds: FoldSelection,
    /// A number assigned by the task.
    pub number: usize,
}

impl LatentsPart {
    /// Number of windows of `steps` steps of `stride` frames.
    fn windows(&self, steps: usize, stride: usize) -> u64 {
        self.folds.count(self.store.len()) as u64 * starts(&self.store, steps, stride)
    }
}

/// The windows of a mixture of latent stores; a sample is a trajectory and a start frame.
pub(super) struct Windows {
    pub parts: Sources<LatentsPart>,
    /// Number of steps per window.
    pub steps: usize,
    pub strides: Vec<usize>,
    /// Bias of the start frame; see the key `data.start_bias`.
    pub start_bias: f64,
    /// Whether the token grid is shifted cyclically; see the key `data.random_shift`.
    pub random_shift: bool,
    pub seed: u64,
}

/// A window of a latent trajectory.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub store: &'a LatentStore,
    /// [`LatentsPart::number`].
    pub part: usize,
    pub trajectory: usize,
    /// Frame of the first state.
    pub start: usize,
    /// Frames from one state to the next.
    pub stride: usize,
    /// Tokens by which the states are shifted along both axes.
    shift: [usize; 2],
}

/// Number of start frames from which `steps` steps of `stride` frames fit.
fn starts(store: &LatentStore, steps: usize, stride: usize) -> u64 {
    (store.layout().frames - steps * stride) as u64
}

/// Returns the longest stride.
pub(super) fn longest(strides: &[usize]) -> usize {
    strides.iter().copied().max().unwrap_or(1)
}

impl Windows {
    /// Creates the windows of `steps` steps in `parts`, which are given with their weights.
    pub fn new(parts: Vec<(LatentsPart, f64)>, steps: usize, strides: &[usize], seed: u64) -> Self {
        let stride = longest(strides);
        let count = |part: &LatentsPart| match steps * stride < part.store.layout().frames {
            true => part.windows(steps, stride),
            false => 0,
        };
        Self {
            parts: Sources::new(parts, count),
            steps,
            strides: strides.to_vec(),
            start_bias: 1.0,
            random_shift: false,
            seed,
        }
    }

    /// Errors (78): the windows do not fit into the trajectories. `key` is the configuration key of the latents.
    pub fn require_steps(&self, key: &str) -> Result<()> {
        let stride = longest(&self.strides);
        for store in self.stores() {
            let (steps, frames) = (self.steps, store.layout().frames);
            if steps * stride >= frames {
                return Err(Error::config(format!(
                    "{key}: {steps} steps of {stride} frames do not fit into the {frames} frames of {}",
                    store.folder().display()
                )));
            }
        }
        Ok(())
    }

    /// Iterates over the stores.
    pub fn stores(&self) -> impl Iterator<Item = &LatentStore> {
        self.parts.iter().map(|part| &part.store)
    }

    /// Returns the first store, which determines shapes.
    pub fn first(&self) -> &LatentStore {
        &self.parts.first().store
    }

    /// Returns the window of a validation sample: with the longest stride, and equally often for every start frame.
    pub fn fixed(&self, sample: u64) -> Window<'_> {
        let (part, sample) = self.parts.find(sample);
        let stride = longest(&self.strides);
        let starts = starts(&part.store, self.steps, stride);
        Window {
            store: &part.store,
            part: part.number,
            trajectory: part.folds.trajectory((sample / starts) as usize),
            start: (sample % starts) as usize,
            stride,
            shift: [0, 0],
        }
    }

    /// Draws the window of a training sample, which has the index `place` in micro-batch `micro_batch`.
    fn draw(&self, micro_batch: u64, place: u64, sample: u64) -> Window<'_> {
        let draw = Philox::new(self.seed, Purpose::Augmentation).at_update(micro_batch);
        let window = self.fixed(sample);
        let starts = starts(window.store, self.steps, longest(&self.strides));
        let uniform = (window.start as f64 + 0.5) / starts as f64;
        let start = ((uniform.powf(self.start_bias) * starts as f64) as u64).min(starts - 1);
        let stride = self.strides[draw.below(place, 0, self.strides.len() as u64) as usize];
        let [rows, columns] = window.store.layout().token_grid();
        let shift = |element: u64, tokens: usize| match self.random_shift {
            true => draw.below(place, element, tokens as u64) as usize,
            false => 0,
        };
        let shift = [shift(2, rows), shift(1, columns)];
        Window { start: start as usize, stride, shift, ..window }
    }

    /// Draws the windows of training samples, which have the indices `first`.. in micro-batch `micro_batch`.
    pub fn draw_all(&self, micro_batch: u64, first: u64, samples: &[u64]) -> Vec<Window<'_>> {
        let draw = |(place, sample): (u64, &u64)| self.draw(micro_batch, place, *sample);
        (first..).zip(samples).map(draw).collect()
    }

    /// Returns the normalised states of each window, one tensor [windows, tokens, dim] per step.
    pub fn states(
        &self,
        windows: &[Window],
        steps: RangeInclusive<usize>,
        scale: &Normalisation,
    ) -> Vec<Tensor> {
        let layout = self.first().layout();
        let of_step = |step: usize| {
            let mut states = Tensor::empty(&[windows.len(), layout.tokens, layout.dim], Dtype::F32);
            let rows = states.write::<f32>().chunks_exact_mut(layout.frame_len());
            windows.iter().zip(rows).for_each(|(window, out)| {
                scale.apply(window.frame(step), out);
                window.shift(out);
            });
            states
        };
        steps.map(of_step).collect()
    }

    /// Returns the condition of each window, [windows, features].
    pub fn features(&self, windows: &[Window], condition: &Condition) -> Result<Tensor> {
        let mut features = Vec::with_capacity(windows.len() * condition.width());
        for Window { store, trajectory, stride, .. } in windows {
            let time = *stride as f64 * store.frame_interval();
            let value = store.parameter(*trajectory).value;
            features.extend(condition.features(store.equation(), value, time)?);
        }
        Ok(Tensor::from_slice(&features, &[windows.len(), condition.width()]))
    }
}

impl Window<'_> {
    /// Returns the unnormalised latents of a step, without the shift.
    pub fn frame(&self, step: usize) -> &[f32] {
        let frame = self.start + step * self.stride;
        self.store.frames(self.trajectory, frame..frame + 1)
    }

    /// Formats the parameter value, by which errors are grouped.
    pub fn regime(&self) -> String {
        self.store.parameter(self.trajectory).to_string()
    }

    fn shift(&self, state: &mut [f32]) {
        let layout = self.store.layout();
        let (row, [down, along]) = (layout.token_grid()[1] * layout.dim, self.shift);
        state.rotate_left(down * row);
        state.chunks_exact_mut(row).for_each(|row| row.rotate_left(along * layout.dim));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fold_and_its_complement_are_all_trajectories() {
        for (all, folds) in [(7, 2), (8, 2), (10, 3), (2, 5)] {
            for fold in 0..folds {
                let fold = Fold { folds, fold };
                let members = |selection: FoldSelection| -> Vec<usize> {
                    (0..selection.count(all)).map(|n| selection.trajectory(n)).collect()
                };
                let (only, without) =
                    (members(FoldSelection::Only(fold)), members(FoldSelection::Without(fold)));
                assert!(only.iter().all(|n| n % folds == fold.fold && *n < all));
                let mut both = [only, without].concat();
                both.sort_unstable();
                assert_eq!(both, members(FoldSelection::All), "{all} {fold:?}");
            }
        }
    }
}
