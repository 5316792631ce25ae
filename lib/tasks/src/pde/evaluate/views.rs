//! Test-time augmentation: predictions from copies of the initial states ("views") under exact symmetries of the
//! equation.
//!
//! A symmetry of the equation maps solutions to solutions, but a model learns it only approximately. Predictions from
//! transformed copies, transformed back, therefore have different errors. Their mean has a smaller error, and their
//! spread is an estimate of the error that requires neither training nor the solution.

use super::plan::RolloutRequest;
use data::fields::field::Field;
use data::fields::generate::Equation;
use data::fields::solvers::symmetry::Symmetry;
use rayon::prelude::*;
use unix::{Error, Result};

/// The views used by an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Views {
    /// The equation with these symmetries.
    pub equation: Equation,
    /// Grid points along each axis.
    grid: Vec<usize>,
    /// The identity and the symmetries used.
    symmetries: Vec<Symmetry>,
}

/// Predictions averaged over views.
pub struct Averaged {
    /// The mean fields [n, states, grid.., channels].
    pub fields: Vec<f32>,
    /// Variance over views (divisor N - 1) for each rollout, averaged over points, channels and steps from 1 on.
    pub variances: Vec<f64>,
}

impl Views {
    /// Returns the requested views, which must suit the states of all `fields`; `None` for a single view. `patch` is
    /// the size of the model's patches in points.
    ///
    /// Errors: 2 when there are fewer views, or when the equation is unknown or differs from that of a file.
    pub fn of<'a>(
        fields: impl IntoIterator<Item = &'a Field>,
        request: &RolloutRequest,
        patch: usize,
    ) -> Result<Option<Self>> {
        let mut views: Option<Self> = None;
        if request.views == 1 {
            return Ok(None);
        }
        for field in fields {
            let own = Self::of_field(field, request, patch)?;
            let path = field.path().display();
            if let Some(other) = views.replace(own.clone()).filter(|other| *other != own) {
                let (a, b) = (own.equation, other.equation);
                return Err(Error::usage(format!(
                    "--views: {path} is of {a}, but another file of {b}"
                )));
            }
        }
        Ok(views)
    }

    fn of_field(field: &Field, request: &RolloutRequest, patch: usize) -> Result<Self> {
        let (path, shape) = (field.path().display(), field.shape());
        let refused = |what: String| Err(Error::usage(format!("--views: {path}: {what}")));
        let equation = match (request.equation, Equation::of(field)) {
            (Some(given), Some(own)) if given != own => {
                return refused(format!("generated as {own}, but --equation is {given}"));
            }
            (Some(given), _) => given,
            (None, Some(own)) => own,
            (None, None) => {
                return refused("it does not name its equation; add --equation".into());
            }
        };
        let symmetries = equation.symmetries();
        if !equation.has_shape(shape.grid.len(), shape.channels) {
            return refused(format!("{shape} are not fields of {equation}"));
        }
        if equation.is_periodic() && !field.periodic().iter().all(|periodic| *periodic) {
            return refused(format!(
                "{equation} is periodic, but the file does not name its axes as periodic; see ds-prep import \
                 --periodic"
            ));
        }
        if symmetries.centred && !is_centred(field, equation.domain()) {
            return refused(format!("its points are not centred in the domain of {equation}"));
        }
        let mut views = symmetries.views(&shape.grid, patch);
        if views.len() < request.views {
            return refused(format!(
                "{equation} has {} views on {:?} points with patches of {patch}, not {}",
                views.len(),
                shape.grid,
                request.views
            ));
        }
        views.truncate(request.views);
        Ok(Self { equation, grid: shape.grid.clone(), symmetries: views })
    }

    /// Number of views, including the identity.
    pub fn count(&self) -> usize {
        self.symmetries.len()
    }

    /// Averages predictions over the views. `first` contains the initial states of `n` rollouts [n, grid.., channels],
    /// or the inputs of steady problems; `single` contains the predictions from them [n, states, grid.., channels].
    /// `predict` computes predictions for transformed initial states of all rollouts, in the same order and shapes; it
    /// is called once for each view except the identity. The mean of each conserved channel is set to that of the
    /// initial state.
    ///
    /// # Panics
    /// If `n` is 0 or does not divide the lengths of `first` and `single`.
    pub fn average(
        &self,
        first: &[f32],
        n: usize,
        single: &[f32],
        predict: impl Fn(&[f32]) -> Result<Vec<f32>>,
    ) -> Result<Averaged> {
        let points: usize = self.grid.iter().product();
        let conserved = self.equation.symmetries().conserved;
        let initial = first.len() / n;
        let channels = self.equation.states();
        let length = points * channels;
        // Sums over views of each value and of its square.
        let mut sums: Vec<[f64; 2]> = single.iter().map(|u| with_square(*u)).collect();
        let mut moved = vec![0.0; first.len()];
        for symmetry in &self.symmetries[1..] {
            let copies = first.chunks_exact(initial).zip(moved.chunks_exact_mut(initial));
            copies.for_each(|(state, out)| symmetry.apply(state, &self.grid, out));
            let predicted = predict(&moved)?;
            let states = sums.par_chunks_exact_mut(length).zip(predicted.par_chunks_exact(length));
            states.for_each_init(
                || vec![0.0; length],
                |back, (sums, state)| {
                    symmetry.undo(state, &self.grid, back);
                    for (sums, u) in sums.iter_mut().zip(back) {
                        let [value, square] = with_square(*u);
                        *sums = [sums[0] + value, sums[1] + square];
                    }
                },
            );
        }
        let views = self.count() as f64;
        let variance = |[sum, squares]: &[f64; 2]| {
            let variance = (squares - sum * sum / views) / (views - 1.0);
            // Rounding can make the variance of equal values negative. NaN is kept.
            if variance < 0.0 { 0.0 } else { variance }
        };
        let mut fields: Vec<f32> = sums.par_iter().map(|[sum, _]| (sum / views) as f32).collect();
        let rollout = sums.len() / n;
        let later = if rollout > length { length } else { 0 };
        let mean_variance = |sums: &[[f64; 2]]| {
            sums[later..].iter().map(variance).sum::<f64>() / (rollout - later) as f64
        };
        let variances = sums.par_chunks_exact(rollout).map(mean_variance).collect();
        for (first, states) in first.chunks_exact(initial).zip(fields.chunks_exact_mut(rollout)) {
            for state in states.chunks_exact_mut(length) {
                conserved.iter().for_each(|channel| set_mean(state, first, channels, *channel));
            }
        }
        Ok(Averaged { fields, variances })
    }
}

fn with_square(u: f32) -> [f64; 2] {
    let u = f64::from(u);
    [u, u * u]
}

/// Shifts a channel of `state` so that its mean is that of `first`.
fn set_mean(state: &mut [f32], first: &[f32], channels: usize, channel: usize) {
    let mean = |values: &[f32]| {
        let own = values.iter().skip(channel).step_by(channels).map(|u| f64::from(*u));
        own.sum::<f64>() / (values.len() / channels) as f64
    };
    let missing = mean(first) - mean(state);
    let own = state.iter_mut().skip(channel).step_by(channels);
    own.for_each(|u| *u = (f64::from(*u) + missing) as f32);
}

/// Returns whether the centre of the points along each axis is that of the domain, within a hundredth of their spacing;
/// true for axes without coordinates.
fn is_centred(field: &Field, [from, to]: [f64; 2]) -> bool {
    field.coordinates().iter().all(|points| match points[..] {
        [first, .., last] => {
            let spacing = (last - first) / (points.len() - 1) as f64;
            (first + last - from - to).abs() < 0.01 * spacing.abs()
        }
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn views(equation: Equation, grid: &[usize], count: usize) -> Views {
        let mut symmetries = equation.symmetries().views(grid, 4);
        symmetries.truncate(count);
        Views { equation, grid: grid.to_vec(), symmetries }
    }

    fn state(length: usize) -> Vec<f32> {
        (0..length).map(|i| ((i * i + 3 * i) % 17) as f32 / 8.0 - 1.0).collect()
    }

    /// Computes three states of a scheme with the symmetries of Burgers, u + u·(difference of u to both sides).
    fn steps(first: &[f32]) -> Result<Vec<f32>> {
        let mut states = Vec::new();
        for rollout in first.chunks_exact(12) {
            let mut state = rollout.to_vec();
            for _ in 0..3 {
                states.extend_from_slice(&state);
                let at = |i: usize| state[i % 12];
                let next = |i: usize| at(i) - 0.01 * at(i) * (at(i + 1) - at(i + 11));
                let next: Vec<f32> = (0..12).map(next).collect();
                state = next;
            }
        }
        Ok(states)
    }

    #[test]
    fn a_model_with_the_symmetries_has_no_spread() {
        let first = state(24);
        let single = steps(&first).unwrap();
        let averaged =
            views(Equation::Burgers, &[12], 8).average(&first, 2, &single, steps).unwrap();
        assert!(averaged.variances.iter().all(|variance| *variance < 1e-13));
        for (rollout, (found, expected)) in
            averaged.fields.chunks_exact(36).zip(single.chunks_exact(36)).enumerate()
        {
            let mean = |u: &[f32]| u.iter().sum::<f32>() / 12.0;
            let start = mean(&first[12 * rollout..][..12]);
            for (found, expected) in found.chunks_exact(12).zip(expected.chunks_exact(12)) {
                // The step does not conserve the mean, the average does.
                let offset = start - mean(expected);
                let pairs = found.iter().zip(expected);
                pairs.for_each(|(a, b)| assert!((a - b - offset).abs() < 1e-6, "{a} {b}"));
            }
        }
    }

    /// An error that is the same in every view before the inverse transform cancels if a reflection changes its sign: c
    /// and -c have the variance 2c². The initial state has no error.
    #[test]
    fn an_error_without_the_symmetries_cancels_and_is_the_spread() {
        let first = state(12);
        let wrong = |first: &[f32]| -> Result<Vec<f32>> {
            let later = first.iter().map(|u| u + 0.25);
            Ok(first.iter().copied().chain(later).collect())
        };
        let single = wrong(&first).unwrap();
        let views = views(Equation::Burgers, &[12], 2);
        let averaged = views.average(&first, 1, &single, wrong).unwrap();
        assert!((averaged.variances[0] - 2.0 * 0.25 * 0.25).abs() < 1e-7);
        for (found, expected) in averaged.fields.iter().zip(first.iter().cycle()) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    /// A steady problem: the coefficient is transformed, and the solution is transformed back.
    #[test]
    fn steady_views_transform_inputs_and_solutions() {
        let first = state(2 * 16);
        let product = |a: &[f32]| -> Result<Vec<f32>> {
            let solve = |a: &[f32]| (0..16).map(|i| a[i] * a[(i + 1) % 16]).collect::<Vec<_>>();
            Ok(a.chunks_exact(16).flat_map(solve).collect())
        };
        let single = product(&first).unwrap();
        let all = views(Equation::Darcy, &[4, 4], 8);
        assert_eq!(all.count(), 8);
        let averaged = all.average(&first, 2, &single, product).unwrap();
        assert!(averaged.fields.len() == 32 && averaged.variances.len() == 2);
        assert!(averaged.variances.iter().all(|variance| *variance > 1e-3));
        // The mean over a group is equivariant: views of a transformed input average to the transformed mean.
        let mut turned = vec![0.0; 32];
        let turn = |from: &[f32], to: &mut [f32]| {
            let pairs = from.chunks_exact(16).zip(to.chunks_exact_mut(16));
            pairs.for_each(|(from, to)| all.symmetries[5].apply(from, &[4, 4], to));
        };
        turn(&first, &mut turned);
        let single = product(&turned).unwrap();
        let of_turned = all.average(&turned, 2, &single, product).unwrap();
        let mut expected = vec![0.0; 32];
        turn(&averaged.fields, &mut expected);
        let pairs = of_turned.fields.iter().zip(&expected);
        pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-6, "{a} {b}"));
    }
}
