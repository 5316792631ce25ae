//! Losses of regression: functions of a prediction p and its target t, each averaged over the samples.
//!
//! They are computed per sample, so that the objective depends neither on the batch size nor on the number of ranks;
//! the metrics of the same names ([`learn::score::Scores::regression`]) are computed over all samples at once.

use super::task::Preparation;
use crate::diffusion::combine;
use learn::forward::Forward;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::ops::binary::Binary;
use tensor::ops::concat::Concat;
use tensor::ops::narrow::Narrow;
use tensor::ops::permute::Permute;
use tensor::ops::reduce::Reduce;
use tensor::ops::squared_error::SquaredError;
use tensor::ops::vector_norm::VectorNorm;
use tensor::{Tensor, Var};
use unix::Result;

/// Added to the denominators of NMSE and VMSE.
const EPSILON: f64 = 1e-6;
/// Keeps the gradient of a root finite where the error is zero; its square is still a normal f32.
const TINY: f64 = 1e-18;

/// The kind of loss. MSE, MAE and RMSE are computed on normalised values (standard deviation 1 in each channel); the
/// others are relative to the sample's target in physical units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossKind {
    /// mean((p - t)²).
    Mse,
    /// mean(|p - t|).
    Mae,
    /// √MSE.
    Rmse,
    /// MSE/(mean(t²) + 10⁻⁶).
    Nmse,
    /// √NMSE.
    Nrmse,
    /// MSE/(variance of t + 10⁻⁶), with the unbiased variance.
    Vmse,
    /// √VMSE.
    Vrmse,
    /// ‖p - t‖/‖t‖.
    RelativeL2,
    /// ‖p - t‖/‖t‖ with ‖u‖² = Σ u² + Σ |∇u|², ∇ by differences of neighbours on the unit square.
    RelativeH1,
    /// ‖p - t‖²/(‖t‖² + floor·σ²·n) of normalised values, with σ² the variance of the data.
    #[default]
    RelativeEnergy,
}

/// Over which axes the means of a sample are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dims {
    /// Over points and channels.
    #[default]
    All,
    /// Over points; the loss is the mean over the channels.
    Space,
}

/// The loss function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RegressionLoss {
    /// What is minimised.
    pub kind: LossKind,
    /// Over which axes the means of a sample are taken.
    pub dims: Dims,
    /// For `kind: relative_energy`: added to the relative energy of a target, in units of the variance of the data;
    /// prevents division by very small energies.
    pub floor: f64,
}

impl Default for RegressionLoss {
    fn default() -> Self {
        Self { kind: LossKind::default(), dims: Dims::default(), floor: 0.1 }
    }
}

impl LossKind {
    /// Returns whether the loss is a root.
    fn is_root(self) -> bool {
        use LossKind::{Nrmse, RelativeH1, RelativeL2, Rmse, Vrmse};
        matches!(self, Rmse | Nrmse | Vrmse | RelativeL2 | RelativeH1)
    }

    /// Returns whether the loss is computed from normalised values.
    fn is_normalised(self) -> bool {
        matches!(self, Self::Mse | Self::Mae | Self::Rmse)
    }

    /// Returns the divisor of the mean squared error for targets `t`.
    fn divisor(self, t: &mut dyn Iterator<Item = f64>) -> f64 {
        let (mut count, mut mean, mut m2, mut squares) = (0.0, 0.0, 0.0, 0.0);
        for t in t {
            count += 1.0;
            let delta = t - mean;
            mean += delta / count;
            m2 += delta * (t - mean);
            squares += t * t;
        }
        match self {
            Self::Nmse | Self::Nrmse => squares / count + EPSILON,
            Self::Vmse | Self::Vrmse => m2 / (count - 1.0_f64).max(1.0) + EPSILON,
            Self::RelativeL2 => (squares / count).max(f64::MIN_POSITIVE),
            Self::Mse | Self::Mae | Self::Rmse | Self::RelativeH1 | Self::RelativeEnergy => 1.0,
        }
    }
}

impl RegressionLoss {
    /// Computes the sample weights of a batch, f32 [B, C or 1], from the targets [x.., C] in physical units.
    pub(super) fn weights(&self, how: &Preparation, targets: &[Vec<f32>]) -> Tensor {
        let scale = &how.tokens[1].normalisation;
        let channels = scale.channels();
        let inverse = |divisor: f64| match self.kind.is_root() {
            true => divisor.sqrt().recip() as f32,
            false => divisor.recip() as f32,
        };
        let mut weights: Vec<f32> = Vec::with_capacity(targets.len() * channels);
        for target in targets {
            let value = |x: &f32| f64::from(*x);
            match (self.kind, self.dims) {
                (LossKind::RelativeEnergy, _) => {
                    weights.push(inverse(scale.energy(target) + self.floor));
                }
                (LossKind::RelativeH1, _) => weights.push(inverse(h1(target, how))),
                (kind, Dims::All) => {
                    weights.push(inverse(kind.divisor(&mut target.iter().map(value))));
                }
                (kind, Dims::Space) => weights.extend((0..channels).map(|c| {
                    let own = target.iter().skip(c).step_by(channels);
                    inverse(kind.divisor(&mut own.map(value)))
                })),
            }
        }
        let shape = [targets.len(), weights.len() / targets.len()];
        Tensor::from_slice(&weights, &shape)
    }

    /// Computes the sum of the losses of a batch from normalised predictions and targets [B, values], patch by patch,
    /// and the weights of [`RegressionLoss::weights`].
    pub(super) fn sum(
        &self,
        forward: &Forward,
        how: &Preparation,
        weights: &Var,
        [p, t]: [&Var; 2],
    ) -> Result<Var> {
        let (samples, length) = (p.shape()[0], p.shape()[1]);
        let scale = &how.tokens[1].normalisation;
        let channels = scale.channels();
        if self.kind == LossKind::RelativeEnergy {
            let ones = forward.full(&[length], 1.0)?;
            return forward.apply(SquaredError, &[p, t, &weights.reshape(&[samples]), &ones]);
        }
        let points = length / channels;
        let mut d = combine(forward, &[(1.0, p), (-1.0, t)])?.reshape(&[samples, points, channels]);
        if !self.kind.is_normalised() {
            let std: Vec<f32> = scale.std.iter().map(|std| *std as f32).collect();
            let std = forward.constant(&Tensor::from_slice(&std, &[channels]))?;
            d = forward.apply(Binary::Multiply, &[&d, &std])?;
        }
        // Rows [B, G, n] whose norms are needed: G groups of n numbers per sample.
        let (rows, width) = match (self.kind, self.dims) {
            (LossKind::RelativeH1, _) => {
                (with_gradient(forward, how.tokens[1].patches.grid(), &d)?, 1)
            }
            (LossKind::Mae, _) => (d.reshape(&[samples, length, 1]), 1),
            (_, Dims::All) => (d.reshape(&[samples, 1, length]), length),
            (_, Dims::Space) => (forward.apply(Permute(vec![0, 2, 1]), &[&d])?, points),
        };
        let rows = combine(forward, &[((width as f64).powf(-0.5), &rows)])?;
        let norm = match self.kind.is_root() || self.kind == LossKind::Mae {
            true => VectorNorm::Root { epsilon: TINY },
            false => VectorNorm::Squared,
        };
        let norms = forward.apply(norm, &[&rows])?;
        let means = match self.kind {
            LossKind::Mae => forward.apply(Reduce::Mean(1), &[&norms])?,
            _ => norms,
        };
        let losses = forward.apply(Binary::Multiply, &[&means, weights])?;
        let losses = forward.apply(Reduce::Mean(1), &[&losses])?;
        Ok(forward.apply(Reduce::Sum(0), &[&losses])?.reshape(&[1]))
    }
}

/// Returns rows [B, 1, n] whose squared norm is the squared H1 norm of d [B, points, C] on `grid`: d and its
/// differences along each axis, in units of the side of the domain.
fn with_gradient(forward: &Forward, grid: &[usize], d: &Var) -> Result<Var> {
    let (samples, channels) = (d.shape()[0], d.shape()[2]);
    let mut parts = vec![d.reshape(&[samples, 1, d.value().len() / samples])];
    for (axis, n) in grid.iter().enumerate().filter(|(_, n)| **n > 1) {
        let before: usize = grid[..axis].iter().product();
        let after = grid[axis + 1..].iter().product::<usize>() * channels;
        let lines = d.reshape(&[samples * before, *n, after]);
        let part =
            |start: usize| forward.apply(Narrow { axis: 1, start, length: n - 1 }, &[&lines]);
        let scale = *n as f64;
        let differences = combine(forward, &[(scale, &part(1)?), (-scale, &part(0)?)])?;
        parts.push(differences.reshape(&[samples, 1, before * (n - 1) * after]));
    }
    forward.apply(Concat { axis: 2 }, &parts.iter().collect::<Vec<_>>())
}

/// Returns the squared H1 norm of a target, as computed by [`with_gradient`].
fn h1(target: &[f32], how: &Preparation) -> f64 {
    let (grid, channels) = (how.tokens[1].patches.grid(), how.tokens[1].patches.channels());
    let mut sum: f64 = target.iter().map(|t| f64::from(*t).powi(2)).sum();
    for (axis, n) in grid.iter().enumerate() {
        let after = grid[axis + 1..].iter().product::<usize>() * channels;
        for (i, t) in target.iter().enumerate().filter(|(i, _)| i / after % n + 1 < *n) {
            sum += (f64::from(target[i + after] - t) * *n as f64).powi(2);
        }
    }
    sum.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::models::Patches;
    use crate::common::normalisation::Normalisation;
    use crate::common::tokens::FieldTokens;
    use learn::params::{Builder, Init, ParamSet};
    use serde_json::Value;
    use tensor::Tape;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/losses.json");

    fn numbers(value: &Value) -> Vec<f32> {
        value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    }

    fn no_parameters() -> ParamSet {
        let mut builder = Builder::new(0);
        builder.param("unused", &[1], Init::Constant(0.0));
        builder.finish()
    }

    /// Values and gradients match PyTorch in f64 to within a few f32 roundings of sums of 120 terms.
    #[test]
    fn losses_are_those_of_pytorch() {
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
        let (p, t) = (numbers(&golden["p"]), numbers(&golden["t"]));
        let targets: Vec<Vec<f32>> = t.chunks(40).map(<[f32]>::to_vec).collect();
        for case in golden["losses"].as_array().unwrap() {
            let kind: LossKind = serde_json::from_value(case["kind"].clone()).unwrap();
            let dims: Dims = serde_json::from_value(case["dims"].clone()).unwrap();
            let (mean, std) = match kind.is_normalised() {
                true => (vec![0.0, 0.0], vec![1.0, 1.0]),
                false => (vec![0.5, -2.0], vec![2.0, 0.25]),
            };
            let side = FieldTokens {
                patches: Patches::new(&[5, 4], 2, 1).unwrap(),
                normalisation: Normalisation { mean, std: std.clone() },
            };
            let how = Preparation { tokens: [side.clone(), side.clone()], condition: None };
            let loss = RegressionLoss { kind, dims, ..RegressionLoss::default() };
            let (tape, params) = (Tape::new(), no_parameters());
            let forward = Forward::training(&tape, &params);
            let leaf = tape.leaf(side.cut_all(&p));
            let target = forward.constant(&side.cut_all(&t)).unwrap();
            let weights = forward.constant(&loss.weights(&how, &targets)).unwrap();
            let found = loss.sum(&forward, &how, &weights, [&leaf, &target]).unwrap();
            let (value, expected) = (found.value().to_f64()[0], case["value"].as_f64().unwrap());
            assert!((value / expected - 1.0).abs() < 1e-5, "{kind:?} {dims:?}: {value} {expected}");
            drop(forward);
            let gradient = tape.backward(&found).unwrap().take(&leaf).unwrap().to_f64();
            let expected = numbers(&case["gradient"]);
            let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            for (i, (found, expected)) in gradient.iter().zip(&expected).enumerate() {
                let found = found / std[i % 2];
                let error = (found - f64::from(*expected)).abs();
                assert!(error < 2e-5 * f64::from(largest), "{kind:?} {dims:?}: {found} {expected}");
            }
        }
    }

    /// For every kind of loss, a perfect prediction has zero loss and finite gradients.
    #[test]
    fn a_perfect_prediction_has_finite_gradients() {
        use LossKind::*;
        let side = FieldTokens {
            patches: Patches::new(&[6], 1, 1).unwrap(),
            normalisation: Normalisation { mean: vec![0.0], std: vec![1.0] },
        };
        let how = Preparation { tokens: [side.clone(), side.clone()], condition: None };
        let t = [0.5, -1.0, 2.0, 0.0, 0.0, 3.0];
        for kind in
            [Mse, Mae, Rmse, Nmse, Nrmse, Vmse, Vrmse, RelativeL2, RelativeH1, RelativeEnergy]
        {
            let loss = RegressionLoss { kind, ..RegressionLoss::default() };
            let (tape, params) = (Tape::new(), no_parameters());
            let forward = Forward::training(&tape, &params);
            let leaf = tape.leaf(side.cut_all(&t));
            let target = forward.constant(&side.cut_all(&t)).unwrap();
            let weights = forward.constant(&loss.weights(&how, &[t.to_vec()])).unwrap();
            let found = loss.sum(&forward, &how, &weights, [&leaf, &target]).unwrap();
            assert!(found.value().to_f64()[0].abs() < 1e-12, "{kind:?}");
            drop(forward);
            let gradient = tape.backward(&found).unwrap().take(&leaf).unwrap();
            assert!(gradient.to_f64().iter().all(|x| x.is_finite()), "{kind:?}");
        }
    }
}
