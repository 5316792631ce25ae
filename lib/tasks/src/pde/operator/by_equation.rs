//! The loss of each equation, for the log, when an operator is trained on several equations.

use learn::forward::Forward;
use learn::task::{Batch, Term};
use tensor::ops::squared_error::SquaredError;
use tensor::ops::weighted_sum::WeightedSum;
use tensor::{Tensor, Var};
use unix::Result;

/// Returns the names of the batch tensors of an equation: the sample weights, which are 0 for samples of other
/// equations, and the number of its samples.
fn names(equation: &str) -> [String; 2] {
    [format!("weights.{equation}"), format!("samples.{equation}")]
}

/// Adds the tensors of each equation to a batch, given the equation and the weight of each sample.
pub(super) fn add_weights(
    mut batch: Batch,
    equations: &[&str],
    of_samples: &[&str],
    weights: &[f32],
) -> Batch {
    for equation in equations {
        let own: Vec<bool> = of_samples.iter().map(|other| other == equation).collect();
        let count = own.iter().filter(|own| **own).count();
        let own = own.iter().zip(weights).map(|(own, weight)| if *own { *weight } else { 0.0 });
        let weights = Tensor::from_slice(&own.collect::<Vec<_>>(), &[of_samples.len()]);
        let [weights_name, count_name] = names(equation);
        let count = Tensor::from_slice(&[count as f32], &[1]);
        batch = batch.with(weights_name, weights).with(count_name, count);
    }
    batch
}

/// Sums the errors of each equation over the steps of a rollout.
pub(super) struct ErrorsByEquation {
    equations: Vec<Errors>,
}

struct Errors {
    name: String,
    weights: Var,
    samples: Var,
    steps: Vec<Var>,
}

impl ErrorsByEquation {
    pub fn new(forward: &Forward, batch: &Batch, equations: &[&str]) -> Result<Self> {
        let errors = |equation: &&str| {
            let [weights, samples] = names(equation);
            let (weights, samples) =
                (batch.input(forward, &weights)?, batch.input(forward, &samples)?);
            Ok(Errors { name: (*equation).into(), weights, samples, steps: Vec::new() })
        };
        Ok(Self { equations: equations.iter().map(errors).collect::<Result<_>>()? })
    }

    /// Adds a step, given predicted and true states, [B, T, D], and the weights of the channels.
    pub fn add(&mut self, forward: &Forward, z: &Var, target: &Var, channels: &Var) -> Result<()> {
        for errors in &mut self.equations {
            let inputs = [&z.detached(), target, &errors.weights, channels];
            errors.steps.push(forward.apply(SquaredError, &inputs)?);
        }
        Ok(())
    }

    /// Returns the error of each equation, averaged over the steps.
    pub fn terms(&self, forward: &Forward) -> Result<Vec<Term>> {
        let term = |errors: &Errors| {
            let mean = WeightedSum(vec![1.0 / errors.steps.len() as f64; errors.steps.len()]);
            let sum = forward.apply(mean, &errors.steps.iter().collect::<Vec<_>>())?;
            let weight = Some(errors.samples.value().clone());
            Ok(Term { name: format!("error[{}]", errors.name), sum: sum.value().clone(), weight })
        };
        self.equations.iter().map(term).collect()
    }
}
