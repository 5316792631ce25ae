//! Agreement with Optuna 5.0.0 and cmaes 0.13.1 on the histories in study.json, written by tests/golden/study.py.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use study::importance::importances;
use study::pruners::Pruner;
use study::samplers::{CmaState, Mixture, split_trials};
use study::space::{Domain, Space};
use study::trial::{Point, State, Trial};

#[derive(Deserialize)]
struct Golden {
    densities: Vec<Density>,
    divisions: Vec<Division>,
    pruners: Vec<Pruned>,
    evolutions: Vec<Evolution>,
    importances: Vec<Important>,
}

#[derive(Deserialize)]
struct Density {
    name: String,
    space: Space,
    trials: Vec<Point>,
    points: Vec<Point>,
    log_density: Vec<f64>,
    argmax: usize,
}

#[derive(Deserialize)]
struct Division {
    direction: String,
    trials: Vec<Recorded>,
    good: Vec<u64>,
    bad: Vec<u64>,
}

#[derive(Deserialize)]
struct Recorded {
    state: String,
    value: Option<f64>,
    intermediate: BTreeMap<u64, Option<f64>>,
}

#[derive(Deserialize)]
struct Pruned {
    name: String,
    pruner: Pruner,
    direction: String,
    /// Values of each trial by step, from 1.
    curves: Vec<Vec<Option<f64>>>,
    /// The step at which a trial is pruned.
    ends: Vec<Option<u64>>,
}

#[derive(Deserialize)]
struct Evolution {
    population: Option<usize>,
    /// [generation, trial, parameter], the best trial first.
    generations: Vec<Vec<Vec<f64>>>,
    states: Vec<Evolved>,
}

#[derive(Deserialize)]
struct Evolved {
    generations: usize,
    mean: Vec<f64>,
    sigma: f64,
    covariance: Vec<f64>,
    path_sigma: Vec<f64>,
    path: Vec<f64>,
}

#[derive(Deserialize)]
struct Important {
    direction: String,
    space: Space,
    trials: Vec<Placed>,
    importances: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Placed {
    state: String,
    value: f64,
    point: Point,
}

fn golden() -> Golden {
    let text = include_str!("../../../tests/golden/study.json");
    serde_json::from_str(text).unwrap()
}

/// A value with the sign of a minimised metric; null stands for NaN.
fn minimised(direction: &str, value: Option<f64>) -> f64 {
    let sign = if direction == "minimize" { 1.0 } else { -1.0 };
    value.map_or(f64::NAN, |value| sign * value)
}

fn trial(number: usize, state: State, point: Point) -> Trial {
    Trial { number: number as u64, state, point, value: None, intermediate: BTreeMap::new() }
}

#[test]
fn densities_match_optuna() {
    for case in golden().densities {
        let group: Vec<(&str, Domain)> = case
            .space
            .0
            .iter()
            .map(|(name, parameter)| (name.as_str(), parameter.domain()))
            .collect();
        let trials: Vec<Trial> = (0..)
            .zip(&case.trials)
            .map(|(number, point)| trial(number, State::Complete, point.clone()))
            .collect();
        let mixture = Mixture::of(&group, &trials.iter().collect::<Vec<_>>());
        let found: Vec<f64> = case
            .points
            .iter()
            .map(|point| {
                mixture.log_density(&group.iter().map(|(name, _)| point[*name]).collect::<Vec<_>>())
            })
            .collect();
        for (found, expected) in found.iter().zip(&case.log_density) {
            let error = (found - expected).abs() / expected.abs().max(1.0);
            assert!(error < 1e-9, "{}: {found} {expected}", case.name);
        }
        let most = (0..found.len()).max_by(|a, b| found[*a].total_cmp(&found[*b]).then(b.cmp(a)));
        // Points with a step may coincide, so the argmax need not be unique.
        let most = found[most.unwrap()] - found[case.argmax];
        assert!(most.abs() < 1e-9, "{}", case.name);
    }
}

#[test]
fn split_into_good_and_bad_matches_optuna() {
    for case in golden().divisions {
        let trials: Vec<Trial> = (0..)
            .zip(&case.trials)
            .map(|(number, recorded)| {
                let state = match recorded.state.as_str() {
                    "complete" => State::Complete,
                    "pruned" => State::Pruned,
                    _ => State::Open,
                };
                let value = |value: Option<f64>| minimised(&case.direction, value);
                Trial {
                    value: recorded.value.map(|own| value(Some(own))),
                    intermediate: recorded
                        .intermediate
                        .iter()
                        .map(|(s, v)| (*s, value(*v)))
                        .collect(),
                    ..trial(number, state, Point::new())
                }
            })
            .collect();
        let (good, bad) = split_trials(&trials.iter().collect::<Vec<_>>());
        let numbers = |of: Vec<&Trial>| of.iter().map(|trial| trial.number).collect::<Vec<_>>();
        assert_eq!(numbers(good), case.good, "{}", case.direction);
        assert_eq!(numbers(bad), case.bad, "{}", case.direction);
    }
}

#[test]
fn pruning_decisions_match_optuna() {
    for case in golden().pruners {
        assert_eq!(case.pruner.violations(), []);
        let mut trials: Vec<Trial> = Vec::new();
        let mut ends = vec![None; case.curves.len()];
        for (wave, curves) in case.curves.chunks(5).enumerate() {
            let first = 5 * wave;
            trials.extend((first..first + 5).map(|n| trial(n, State::Open, Point::new())));
            for step in 1..=20 {
                for (i, curve) in curves.iter().enumerate() {
                    let at = first + i;
                    if trials[at].state != State::Open {
                        continue;
                    }
                    let value = minimised(&case.direction, curve[step - 1]);
                    trials[at].intermediate.insert(step as u64, value);
                    let own = trials.swap_remove(at);
                    if case.pruner.prunes("golden", &own, &trials) {
                        ends[at] = Some(step as u64);
                    }
                    let state = if ends[at].is_some() { State::Pruned } else { State::Open };
                    trials.push(Trial { state, ..own });
                    let last = trials.len() - 1;
                    trials.swap(at, last);
                }
            }
            for (trial, curve) in trials[first..].iter_mut().zip(curves) {
                if trial.state == State::Open {
                    trial.state = State::Complete;
                    trial.value = Some(minimised(&case.direction, curve[19]));
                }
            }
        }
        assert_eq!(ends, case.ends, "{} {}", case.name, case.direction);
        assert!(ends.iter().flatten().count() > 5, "{}", case.name);
    }
}

#[test]
fn cma_es_state_matches_cmaes() {
    for case in golden().evolutions {
        let d = case.generations[0][0].len();
        for expected in case.states {
            let mut state = CmaState::new(d, case.population);
            assert_eq!(state.population(), case.generations[0].len());
            for points in &case.generations[..expected.generations] {
                state.tell(&points.iter().map(Vec::as_slice).collect::<Vec<_>>());
            }
            let same = |found: &[f64], expected: &[f64]| {
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(expected) {
                    let error = (found - expected).abs() / expected.abs().max(1.0);
                    assert!(error < 1e-9, "{d} dimensions: {found} {expected}");
                }
            };
            same(&state.mean, &expected.mean);
            same(&[state.sigma], &[expected.sigma]);
            same(&state.covariance, &expected.covariance);
            same(&state.path_sigma, &expected.path_sigma);
            same(&state.path, &expected.path);
        }
    }
}

#[test]
fn median_accepts_only_percentile_50() {
    let violations = |kind: &str| {
        let pruner = serde_json::json!({"kind": kind, "percentile": 30.0});
        serde_json::from_value::<Pruner>(pruner).unwrap().violations()
    };
    assert_eq!(violations("percentile"), []);
    assert!(violations("median")[0].1.contains("use kind: percentile"));
}

#[test]
fn values_outside_the_space_are_not_encoded() {
    let space: Space = serde_json::from_value(serde_json::json!({
        "kind": {"kind": "categorical", "choices": ["adamw", "sgd", 1]},
        "momentum": {"kind": "float", "low": 0.5, "high": 0.9, "when": {"kind": ["sgd"]}},
    }))
    .unwrap();
    assert_eq!(space.violations(), []);
    let values = |kind: Value, momentum: f64| {
        BTreeMap::from([("kind".to_string(), kind), ("momentum".into(), Value::from(momentum))])
    };
    assert_eq!(space.point(&values("lion".into(), 1.5)), Point::new());
    assert_eq!(space.point(&values(1.0.into(), 0.5)).len(), 2);
    let point = space.point(&values("sgd".into(), 0.75));
    assert_eq!(space.values(&point), values("sgd".into(), 0.75));
}

#[test]
fn importances_match_ped_anova() {
    for case in golden().importances {
        let trials: Vec<Trial> = (0..)
            .zip(case.trials)
            .map(|(number, own)| {
                let is_complete = own.state == "complete";
                let state = if is_complete { State::Complete } else { State::Pruned };
                let value = is_complete.then(|| minimised(&case.direction, Some(own.value)));
                Trial { value, ..trial(number, state, own.point) }
            })
            .collect();
        let found = importances(&case.space, &trials).unwrap();
        assert_eq!(found.len(), case.space.0.len());
        for own in &found {
            // Optuna omits parameters that no trial has.
            let expected = case.importances.get(&own.parameter).copied().unwrap_or(0.0);
            let error = (own.importance - expected).abs();
            assert!(error < 1e-9, "{} trials: {own:?} {expected}", trials.len());
        }
        assert!(found.is_sorted_by(|a, b| a.importance >= b.importance));
    }
}
