//! Was it the machine? The same batch through the same parameters gives the same bits, always: when
//! it does not, a processor or memory errs, and neither the data nor the numerics.

use super::learner::Learner;
use super::numerics::Numerics;
use crate::params::Params;
use crate::task::{Batch, Task};
use serde::{Deserialize, Serialize};
use tensor::Tensor;
use unix::{Error, Result};

/// Numbers of the loss and gradients of a batch.
type Computed = (Vec<Tensor>, Vec<Tensor>);

/// Two computations of the same that differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Where they differ: `loss`, or the parameter of the first gradient that does.
    pub of: String,
    /// Gradients that differ.
    pub gradients: usize,
    /// What a third computation says.
    pub verdict: String,
    /// What computed them, of its host.
    pub device: String,
}

/// Loss and gradients, computed twice; or how the two differ.
pub fn twice(
    task: &dyn Task,
    learner: &Learner,
    batch: &Batch,
    numerics: &Numerics,
) -> Result<Result<Computed, Mismatch>> {
    let params = &learner.params;
    let compute = || learner.gradients(task, batch, numerics);
    let (first, second) = (compute()?, compute()?);
    let Some((of, gradients)) = difference(params, &first, &second)? else {
        return Ok(Ok(first));
    };
    let third = compute()?;
    let is = |other: &Computed| Ok::<_, Error>(difference(params, &third, other)?.is_none());
    let verdict = match (is(&first)?, is(&second)?) {
        (true, _) => "a third agrees with the first: the second was wrong",
        (_, true) => "a third agrees with the second: the first was wrong",
        _ => "a third agrees with neither",
    };
    let device = params.device().to_string();
    Ok(Err(Mismatch { of, gradients, verdict: verdict.into(), device }))
}

/// The name of the first difference, and how many gradients differ.
fn difference(params: &Params, a: &Computed, b: &Computed) -> Result<Option<(String, usize)>> {
    let mut names = Vec::new();
    for ((name, _), (a, b)) in params.entries().iter().zip(a.1.iter().zip(&b.1)) {
        if a.to_host()?.as_bytes() != b.to_host()?.as_bytes() {
            names.push(name);
        }
    }
    // NaNs of the same bits are the same.
    for (a, b) in a.0.iter().zip(&b.0) {
        if a.to_host()?.as_bytes() != b.to_host()?.as_bytes() {
            return Ok(Some(("loss".into(), names.len())));
        }
    }
    Ok(names.first().map(|name| ((*name).clone(), names.len())))
}
