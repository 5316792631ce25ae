//! Moments of numbers in one pass, merged in a fixed order.

use crate::fields::field::{Field, Shape};
use crate::fields::stats::Statistics;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use unix::Result;

/// Count, mean, sum of squares about the mean, and range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Moments {
    pub count: u64,
    mean: f64,
    pub m2: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { count: 0, mean: 0.0, m2: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Moments {
    pub fn of(values: impl Iterator<Item = f32> + Clone) -> Self {
        let mut all = Self::default();
        let mut sum = 0.0;
        for value in values.clone().map(f64::from) {
            all.count += 1;
            sum += value;
            all.min = all.min.min(value);
            all.max = all.max.max(value);
        }
        all.mean = if all.count > 0 { sum / all.count as f64 } else { 0.0 };
        all.m2 = values.map(|value| (f64::from(value) - all.mean).powi(2)).sum();
        all
    }

    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            return *self = *other;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let delta = other.mean - self.mean;
        self.mean += delta * b / (a + b);
        self.m2 += other.m2 + delta * delta * a * b / (a + b);
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    pub fn statistics(&self) -> Statistics {
        let variance = self.m2 / self.count as f64;
        Statistics {
            count: self.count,
            mean: self.mean,
            std: variance.sqrt(),
            min: self.min,
            max: self.max,
            rms: (variance + self.mean * self.mean).sqrt(),
        }
    }
}

/// Statistics of each channel over all trajectories of a file, whichever split they are for; none where there
/// are no numbers, or some that are not finite.
pub(crate) fn channels_of(field: &Field) -> Result<Option<Vec<Statistics>>> {
    let shape = field.shape();
    let of_trajectory = |room: &mut Vec<f32>, i: usize| {
        moments_of(shape, room, |frames, values| field.read_frames(i, frames, values))
    };
    let all: Vec<Vec<Moments>> = (0..shape.trajectories)
        .into_par_iter()
        .map_init(|| vec![0.0; shape.block_len()], of_trajectory)
        .collect::<Result<_>>()?;
    let mut channels = vec![Moments::default(); shape.channels];
    for of_trajectory in &all {
        channels.iter_mut().zip(of_trajectory).for_each(|(all, one)| all.merge(one));
    }
    let whole = channels.iter().all(|channel| channel.count > 0 && channel.m2.is_finite());
    Ok(whole.then(|| channels.iter().map(Moments::statistics).collect()))
}

/// The moments of each channel of a trajectory, which passes through `room`.
pub(crate) fn moments_of(
    shape: &Shape,
    room: &mut [f32],
    read: impl Fn(Range<usize>, &mut [f32]) -> Result<()>,
) -> Result<Vec<Moments>> {
    let mut moments = vec![Moments::default(); shape.channels];
    for frames in shape.frame_blocks() {
        let values = &mut room[..frames.len() * shape.frame_len()];
        read(frames, values)?;
        for (channel, moments) in moments.iter_mut().enumerate() {
            let of_channel = values.iter().skip(channel).step_by(shape.channels);
            moments.merge(&Moments::of(of_channel.copied()));
        }
    }
    Ok(moments)
}
