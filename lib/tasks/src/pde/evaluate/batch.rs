//! A batch of rollouts: ground truth and what each model predicts, in the space of fields and in that of latents.

use super::scores::Model;
use std::sync::Arc;

/// States by rollout and step, with strides: one array serves where all rollouts or all steps have the same state.
#[derive(Clone, Debug)]
pub struct Frames {
    values: Arc<Vec<f32>>,
    width: usize,
    /// Numbers from one rollout to the next and from one step to the next.
    strides: [usize; 2],
}

impl Frames {
    /// States [rollouts, states, width].
    pub fn new(values: Vec<f32>, states: usize, width: usize) -> Self {
        Self { values: Arc::new(values), width, strides: [states * width, width] }
    }

    /// One state for all rollouts and steps.
    pub fn constant(state: Vec<f32>) -> Self {
        Self { width: state.len(), values: Arc::new(state), strides: [0, 0] }
    }

    /// At every step the state of step 0.
    pub fn persistence(&self) -> Self {
        Self { strides: [self.strides[0], 0], ..self.clone() }
    }

    /// The same rollouts with every state replaced by what `convert` writes for it.
    pub fn map(&self, convert: impl Fn(&[f32], &mut [f32])) -> Self {
        let mut values = vec![0.0; self.values.len()];
        let rows = self.values.chunks_exact(self.width).zip(values.chunks_exact_mut(self.width));
        rows.for_each(|(state, out)| convert(state, out));
        Self { values: Arc::new(values), ..self.clone() }
    }

    /// A state.
    pub fn at(&self, rollout: usize, step: usize) -> &[f32] {
        &self.values[rollout * self.strides[0] + step * self.strides[1]..][..self.width]
    }
}

/// Ground truth and predictions in one space.
#[derive(Clone, Debug)]
pub struct Space {
    /// `field`, in physical units; `latent`, as the codec encodes; `latent_weighted`, see
    /// [`super::DEFINITIONS`].
    pub name: &'static str,
    /// Ground truth.
    pub truth: Frames,
    /// Predictions by what made them, the model that is evaluated first.
    pub models: Vec<(Model, Frames)>,
}

/// A batch of rollouts; step 0 is the start.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The space of fields first.
    pub spaces: Vec<Space>,
}

impl Batch {
    /// The space of fields.
    pub fn field(&self) -> &Space {
        &self.spaces[0]
    }

    /// Fields as the evaluated model predicts them.
    pub fn prediction(&self) -> &Frames {
        &self.field().models[0].1
    }
}
