//! Terms of the loss for the log: which numbers a pass computes for them, and their means.

use crate::task::{Batch, Task, Term};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// Name of a loss term, and whether it has its own weight.
pub type TermKind = (String, bool);

/// Kinds of the loss terms, the same in every pass: sums over ranks have a fixed layout.
#[derive(Default)]
pub struct LossTerms(OnceCell<Vec<TermKind>>);

impl LossTerms {
    /// Returns the sum of the weights of the batch, followed by the sum of each term and, where it has one, its own
    /// weight. Errors: a bug if the terms changed and are not those that the task lists.
    pub fn numbers(&self, task: &dyn Task, batch: &Batch, terms: Vec<Term>) -> Result<Vec<Tensor>> {
        let weight = batch.weight().clone();
        let all = match task.terms() {
            none if none.is_empty() => {
                let kind = |term: &Term| (term.name.clone(), term.weight.is_some());
                let kinds: Vec<TermKind> = terms.iter().map(kind).collect();
                if *self.0.get_or_init(|| kinds.clone()) != kinds {
                    return Err(Error::bug(
                        "the terms of the loss changed between batches; Task::terms must list them",
                    ));
                }
                terms.into_iter().flat_map(|t| [Some(t.sum), t.weight]).flatten().collect()
            }
            listed => of_listed(&listed, terms, &weight)?,
        };
        self.0.get_or_init(|| task.terms().into_iter().map(|name| (name, true)).collect());
        Ok(std::iter::once(weight).chain(all).collect())
    }

    /// Returns the kinds, which are known after the first pass.
    pub fn kinds(&self) -> Vec<TermKind> {
        self.0.get().cloned().unwrap_or_default()
    }
}

/// Returns sum and weight of each listed term; of terms that the batch lacks, both are 0.
fn of_listed(listed: &[String], mut terms: Vec<Term>, weight: &Tensor) -> Result<Vec<Tensor>> {
    let mut numbers = Vec::with_capacity(2 * listed.len());
    for name in listed {
        let found = terms.iter().position(|term| term.name == *name);
        let (sum, own) = match found.map(|at| terms.swap_remove(at)) {
            Some(Term { sum, weight: own, .. }) => (sum, own.unwrap_or_else(|| weight.clone())),
            None => {
                let zero = Tensor::zeros_on(weight.device(), &[1], Dtype::F32);
                (zero.clone(), zero)
            }
        };
        numbers.extend([sum, own]);
    }
    match terms.first() {
        None => Ok(numbers),
        Some(Term { name, .. }) => {
            Err(Error::bug(format!("Task::terms lacks the term {name:?} of the loss")))
        }
    }
}

/// Returns the mean of each term, given the sums of [`LossTerms::numbers`] over the passes of an update. Terms without
/// weight in the update have none.
pub fn means(kinds: Vec<TermKind>, sums: Vec<f64>) -> BTreeMap<String, f64> {
    let mut sums = sums.into_iter();
    let all = sums.next().unwrap_or_default();
    let mean = |(name, weighted)| {
        let sum = sums.next()?;
        let weight = if weighted { sums.next()? } else { all };
        (weight > 0.0).then_some((name, sum / weight))
    };
    kinds.into_iter().filter_map(mean).collect()
}
