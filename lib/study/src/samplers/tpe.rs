use super::parzen::Mixture;
use super::{Random, by_merit};
use crate::space::{Domain, Space};
use crate::trial::{Point, State, Trial};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Maximum number of trials that count as good.
const MAX_GOOD: usize = 25;

/// A tree-structured Parzen estimator (Bergstra et al. 2011) with the formulas of Optuna 5. Parameters that are active
/// together are sampled jointly, and open trials count as bad ones (constant liar).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tpe {
    /// Number of random trials before the first estimate.
    pub startup: usize,
    /// Number of candidates drawn per suggestion.
    #[schemars(range(min = 1, max = 65536))]
    pub candidates: usize,
    /// Sample parameters that are active together from a joint density instead of independently.
    pub multivariate: bool,
}

impl Default for Tpe {
    fn default() -> Self {
        Self { startup: 10, candidates: 24, multivariate: true }
    }
}

impl Tpe {
    pub(super) fn suggest(
        &self,
        space: &Space,
        trials: &[Trial],
        number: u64,
        random: &mut Random,
    ) -> Point {
        let mut point = Point::new();
        let others: Vec<&Trial> = trials.iter().filter(|trial| trial.number != number).collect();
        if others.iter().filter(|trial| trial.is_informative()).count() >= self.startup.max(1) {
            let (good, bad) = split_trials(&others);
            for group in self.groups(space) {
                if space.is_active(group[0].0, &point) {
                    let densities = [&good, &bad].map(|of| Mixture::of(&group, of));
                    point.extend(self.draw(&group, &densities, random));
                }
            }
        }
        random.complete(space, point)
    }

    /// Returns the parameters with more than one value, grouped if they are active together. A group follows the
    /// parameters in its condition.
    fn groups<'a>(&self, space: &'a Space) -> Vec<Vec<(&'a str, Domain)>> {
        let mut groups: Vec<Vec<(&str, Domain)>> = Vec::new();
        for name in space.order() {
            let domain = space.0[name].domain();
            if domain.is_single() {
                continue;
            }
            let same = |group: &&mut Vec<(&str, Domain)>| {
                self.multivariate && space.0[group[0].0].when() == space.0[name].when()
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.push((name, domain)),
                None => groups.push(vec![(name, domain)]),
            }
        }
        groups
    }

    /// Draws candidates from the density of the good trials and returns the one with the largest ratio of good to bad.
    fn draw(
        &self,
        group: &[(&str, Domain)],
        densities: &[Mixture; 2],
        random: &mut Random,
    ) -> Point {
        let [good, bad] = densities;
        let mut best: Option<(f64, Vec<f64>)> = None;
        for _ in 0..self.candidates.max(1) {
            let candidate = good.sample(random);
            let gain = good.log_density(&candidate) - bad.log_density(&candidate);
            if best.as_ref().is_none_or(|(most, _)| gain > *most) {
                best = Some((gain, candidate));
            }
        }
        let values = best.into_iter().flat_map(|(_, candidate)| candidate);
        group.iter().zip(values).map(|((name, _), value)| (name.to_string(), value)).collect()
    }
}

/// Splits trials, the oldest first, into good and bad: the best tenth of the ended trials, at most 25, and the rest,
/// including open trials. Pruned trials rank after complete ones, by last step, latest first.
pub fn split_trials<'a>(trials: &[&'a Trial]) -> (Vec<&'a Trial>, Vec<&'a Trial>) {
    let of = |places: &mut dyn Iterator<Item = usize>| places.map(|i| trials[i]).collect();
    let mut ended: Vec<usize> = (0..trials.len()).filter(|i| trials[*i].is_informative()).collect();
    let count = ended.len().div_ceil(10).min(MAX_GOOD);
    if count < ended.len() {
        ended.select_nth_unstable_by(count, |a, b| by_merit(trials[*a], trials[*b]).then(a.cmp(b)));
    }
    let good: BTreeSet<usize> = ended.into_iter().take(count).collect();
    let mut bad = (0..trials.len()).filter(|i| {
        (trials[*i].is_informative() || trials[*i].state == State::Open) && !good.contains(i)
    });
    (of(&mut good.iter().copied()), of(&mut bad))
}
