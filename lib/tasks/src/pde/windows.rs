//! Windows of latent trajectories: the states from a random start frame on, a stride apart, as training draws them.

use super::latents::Condition;
use super::normalisation::Normalisation;
use super::sources::Sources;
use data::fields::latents::LatentStore;
use std::ops::RangeInclusive;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor};

/// The windows of a mixture of latent stores; a sample is a trajectory and a place in it.
pub(super) struct Windows {
    pub stores: Sources<LatentStore>,
    /// Steps of the longest window.
    pub steps: usize,
    pub strides: Vec<usize>,
    /// Bias of the start frame; see the key `data.start_bias`.
    pub start_bias: f64,
    /// Whether the token grid is shifted cyclically; see the key `data.random_shift`.
    pub random_shift: bool,
    pub seed: u64,
}

/// One window.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub store: &'a LatentStore,
    pub trajectory: usize,
    /// Frame of the first state.
    pub start: usize,
    /// Frames from one state to the next.
    pub stride: usize,
    /// Tokens by which the states are shifted along both axes.
    shift: [usize; 2],
}

/// Number of start frames from which `steps` steps of `stride` frames fit.
pub(super) fn starts(store: &LatentStore, steps: usize, stride: usize) -> u64 {
    (store.layout().frames - steps * stride) as u64
}

/// The longest of some strides.
pub(super) fn longest(strides: &[usize]) -> usize {
    strides.iter().copied().max().unwrap_or(1)
}

impl Windows {
    /// The store, trajectory and place that sample `sample` stands for.
    fn find(&self, sample: u64) -> (&LatentStore, usize, u64, u64) {
        let (store, sample) = self.stores.find(sample);
        let starts = starts(store, self.steps, longest(&self.strides));
        (store, (sample / starts) as usize, sample % starts, starts)
    }

    /// The window of a validation sample: with the longest stride, at every start frame equally often.
    pub fn fixed(&self, sample: u64) -> Window<'_> {
        let (store, trajectory, place, _) = self.find(sample);
        let (start, stride) = (place as usize, longest(&self.strides));
        Window { store, trajectory, start, stride, shift: [0, 0] }
    }

    /// The window of a training sample, which is number `place` of micro-batch `micro_batch`.
    pub fn draw(&self, micro_batch: u64, place: u64, sample: u64) -> Window<'_> {
        let draw = Philox::new(self.seed, Purpose::Augmentation).at_update(micro_batch);
        let (store, trajectory, at, starts) = self.find(sample);
        let uniform = (at as f64 + 0.5) / starts as f64;
        let start = ((uniform.powf(self.start_bias) * starts as f64) as u64).min(starts - 1);
        let stride = self.strides[draw.below(place, 0, self.strides.len() as u64) as usize];
        let [rows, columns] = store.layout().token_grid();
        let shift = |element: u64, tokens: usize| match self.random_shift {
            true => draw.below(place, element, tokens as u64) as usize,
            false => 0,
        };
        let shift = [shift(2, rows), shift(1, columns)];
        Window { store, trajectory, start: start as usize, stride, shift }
    }

    /// Normalised states `steps` of each window, [windows, tokens, dim] by step.
    pub fn states(
        &self,
        windows: &[Window],
        steps: RangeInclusive<usize>,
        scale: &Normalisation,
    ) -> Vec<Tensor> {
        let layout = self.stores.first().layout();
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

    /// The condition of each window, [windows, features].
    pub fn features(&self, windows: &[Window], condition: &Condition) -> Tensor {
        let of = |w: &Window| {
            let time = w.stride as f64 * w.store.frame_interval();
            condition.features(&w.store.parameter(w.trajectory), time)
        };
        let features: Vec<f32> = windows.iter().flat_map(of).collect();
        Tensor::from_slice(&features, &[windows.len(), Condition::FEATURES])
    }
}

impl Window<'_> {
    /// The unnormalised latents of a step, without the shift.
    pub fn frame(&self, step: usize) -> &[f32] {
        let frame = self.start + step * self.stride;
        self.store.frames(self.trajectory, frame..frame + 1)
    }

    /// The parameter value as text, by which errors are grouped.
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
