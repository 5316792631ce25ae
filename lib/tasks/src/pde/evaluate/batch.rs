//! Some rollouts at once: what was, what the codec makes of it, what the operator foretells.

use super::plan::{Plan, Start};
use crate::pde::{TrainedCodec, TrainedOperator};
use data::fields::split_set::TrajectorySet;
use tensor::Tensor;
use unix::Result;

/// The models that are judged.
#[derive(Clone, Copy, Debug)]
pub struct Models<'a> {
    /// The codec.
    pub codec: &'a TrainedCodec,
    /// The operator on its latents, where there is one.
    pub operator: Option<&'a TrainedOperator>,
}

/// States of some rollouts, by rollout and step; step 0 is the start.
#[derive(Debug)]
pub struct Batch {
    points: usize,
    states: usize,
    width: usize,
    /// [rollouts, steps + 1, points].
    truth: Vec<f32>,
    /// As `truth`, through the codec.
    reconstructions: Vec<f32>,
    /// [rollouts, steps + 1, tokens, dim] of `truth`.
    latents: Tensor,
    /// For each step from 1 on: fields [rollouts, points] and latents [rollouts, tokens, dim].
    forecast: Vec<(Vec<f32>, Tensor)>,
}

impl Batch {
    /// Reads the states of rollouts and runs the models on them.
    pub fn run(models: Models, set: &TrajectorySet, plan: &Plan, starts: &[Start]) -> Result<Self> {
        let Models { codec, operator } = models;
        let (points, states) = (codec.field_len(), plan.steps + 1);
        let mut truth = vec![0.0; starts.len() * states * points];
        for (start, rows) in starts.iter().zip(truth.chunks_exact_mut(states * points)) {
            for (step, row) in rows.chunks_exact_mut(points).enumerate() {
                let frame = plan.frame(*start, step);
                set.read_frames(start.trajectory, frame..frame + 1, row)?;
            }
        }
        let latents = codec.encode(&truth)?;
        let reconstructions = codec.decode(&latents)?;
        let width = codec.tokens() * codec.dim();
        let mut forecast = Vec::new();
        if let Some(operator) = operator {
            let mut first = Vec::with_capacity(starts.len() * width);
            for state in latents.read::<f32>().chunks_exact(width).step_by(states) {
                first.extend_from_slice(state);
            }
            let first = Tensor::of(&first, &[starts.len(), codec.tokens(), codec.dim()]);
            let parameters = starts.iter().map(|start| set.entry(start.trajectory).parameter);
            let features = operator.features(parameters, plan.stride as f64 * set.frame_interval());
            for state in operator.rollout(&first, &features, plan.steps)? {
                forecast.push((codec.decode(&state)?, state));
            }
        }
        Ok(Self { points, states, width, truth, reconstructions, latents, forecast })
    }

    /// Whether an operator was run.
    pub fn has_forecast(&self) -> bool {
        !self.forecast.is_empty()
    }

    /// The field of a state as it was.
    pub fn truth(&self, rollout: usize, step: usize) -> &[f32] {
        row(&self.truth, rollout * self.states + step, self.points)
    }

    /// The same through the codec.
    pub fn reconstruction(&self, rollout: usize, step: usize) -> &[f32] {
        row(&self.reconstructions, rollout * self.states + step, self.points)
    }

    /// The field foretold from step 0; there the reconstruction. For a batch with a forecast.
    pub fn forecast(&self, rollout: usize, step: usize) -> &[f32] {
        match step {
            0 => self.reconstruction(rollout, 0),
            _ => row(&self.forecast[step - 1].0, rollout, self.points),
        }
    }

    /// What is judged: the forecast, without an operator the reconstruction.
    pub fn prediction(&self, rollout: usize, step: usize) -> &[f32] {
        match self.has_forecast() {
            true => self.forecast(rollout, step),
            false => self.reconstruction(rollout, step),
        }
    }

    /// The latents of a state.
    pub fn latent(&self, rollout: usize, step: usize) -> &[f32] {
        row(self.latents.read(), rollout * self.states + step, self.width)
    }

    /// The latents foretold from step 0. For a batch with a forecast.
    pub fn latent_forecast(&self, rollout: usize, step: usize) -> &[f32] {
        match step {
            0 => self.latent(rollout, 0),
            _ => row(self.forecast[step - 1].1.read(), rollout, self.width),
        }
    }
}

fn row(values: &[f32], row: usize, width: usize) -> &[f32] {
    &values[row * width..][..width]
}
