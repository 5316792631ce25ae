use super::parzen::Mixture;
use super::{Random, by_merit};
use crate::space::{Domain, Space};
use crate::trial::{Point, State, Trial};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most trials that count as good.
const GOOD: usize = 25;

/// A tree-structured Parzen estimator (Bergstra et al. 2011) with the formulas of Optuna 5: parameters that are active
/// together are drawn together, open trials count as bad ones (constant liar).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tpe {
    /// Trials at random before the first estimate.
    pub startup: usize,
    /// Candidates drawn for each suggestion.
    #[schemars(range(min = 1, max = 65536))]
    pub candidates: usize,
    /// Draw parameters that are active together from a joint density instead of one by one.
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
        if others.iter().filter(|trial| trial.informs()).count() >= self.startup.max(1) {
            let (good, bad) = divide(&others);
            for group in self.groups(space) {
                if space.is_active(group[0].0, &point) {
                    let densities = [&good, &bad].map(|of| Mixture::of(&group, of));
                    point.extend(self.draw(&group, &densities, random));
                }
            }
        }
        random.complete(space, point)
    }

    /// The parameters with more than one value, those that are active together in one group. A group comes after those in
    /// its condition.
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

    /// The candidate drawn from the good trials' density with the largest ratio to that of the bad ones.
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

/// Divides trials, the oldest first, into good and bad: the best tenth of those that have ended, at most 25,
/// and the others, open ones included. Pruned trials come after complete ones, those with more steps first.
pub fn divide<'a>(trials: &[&'a Trial]) -> (Vec<&'a Trial>, Vec<&'a Trial>) {
    let of = |places: &mut dyn Iterator<Item = usize>| places.map(|i| trials[i]).collect();
    let mut ended: Vec<usize> = (0..trials.len()).filter(|i| trials[*i].informs()).collect();
    let count = ended.len().div_ceil(10).min(GOOD);
    if count < ended.len() {
        ended.select_nth_unstable_by(count, |a, b| by_merit(trials[*a], trials[*b]).then(a.cmp(b)));
    }
    let good: BTreeSet<usize> = ended.into_iter().take(count).collect();
    let mut bad = (0..trials.len())
        .filter(|i| (trials[*i].informs() || trials[*i].state == State::Open) && !good.contains(i));
    (of(&mut good.iter().copied()), of(&mut bad))
}
