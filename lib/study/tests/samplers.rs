//! Samplers on conditional spaces, and their convergence on test functions.

use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use study::samplers::{Cma, Sampler, Tpe};
use study::space::Space;
use study::trial::{Point, State, Trial};

fn space(value: serde_json::Value) -> Space {
    let space: Space = serde_json::from_value(value).unwrap();
    assert_eq!(space.violations(), []);
    space
}

fn conditional() -> Space {
    space(json!({
        "method": {"kind": "categorical", "choices": ["adamw", "muon"]},
        "rate": {"kind": "float", "low": 1e-4, "high": 1e-1, "log": true},
        "momentum": {"kind": "float", "low": 0.5, "high": 1.0, "step": 0.125, "when": {"method": ["muon"]}},
        "nesterov": {"kind": "categorical", "choices": [true, false], "when": {"momentum": [0.5, 0.75]}},
        "depth": {"kind": "int", "low": 2, "high": 9, "step": 3},
        "task": {"kind": "fixed", "value": "codec"},
    }))
}

/// Asserts that a point has exactly the active parameters, with values of the space.
fn check(space: &Space, point: &Point) {
    for name in space.0.keys() {
        assert_eq!(point.contains_key(name), space.is_active(name, point), "{name} {point:?}");
    }
    assert_eq!(space.point(&space.values(point)), *point);
}

fn complete(number: u64, point: Point, value: f64) -> Trial {
    let intermediate = BTreeMap::new();
    Trial { number, state: State::Complete, point, value: Some(value), intermediate }
}

/// Runs a sequential search; each trial sees all earlier ones.
fn search(
    sampler: &Sampler,
    space: &Space,
    count: u64,
    seed: u64,
    f: impl Fn(&Point) -> f64,
) -> Vec<Trial> {
    let mut trials = Vec::new();
    for number in 0..count {
        let point = sampler.suggest(space, &trials, number, seed).unwrap();
        check(space, &point);
        let value = f(&point);
        trials.push(complete(number, point, value));
    }
    trials
}

#[test]
fn samplers_return_valid_points_that_depend_on_seed_and_number() {
    let space = conditional();
    let cma = Sampler::Cma(Cma::default());
    for sampler in [Sampler::Random, Sampler::Sobol, Sampler::Tpe(Tpe::default()), cma] {
        let of_seed = |seed: u64| search(&sampler, &space, 60, seed, |point| point["rate"].ln());
        let trials = of_seed(1);
        assert_eq!(trials, of_seed(1));
        assert_ne!(trials, of_seed(2));
        let with =
            |name: &str| trials.iter().filter(|trial| trial.point.contains_key(name)).count();
        assert!(with("momentum") > 5 && with("momentum") < 60 && with("nesterov") > 0);
        let depths: BTreeSet<i64> =
            trials.iter().map(|trial| trial.point["depth"] as i64).collect();
        assert_eq!(depths, BTreeSet::from([2, 5, 8]));
    }
}

#[test]
fn grid_covers_every_combination_once() {
    let mut space = conditional();
    assert_eq!(Sampler::Grid.violations(&space)[0].0, "rate");
    space.0.remove("rate");
    let many = json!({"seed": {"kind": "int", "low": i64::MIN, "high": i64::MAX}});
    let many = Sampler::Grid.violations(&serde_json::from_value(many).unwrap());
    assert!(many[0].1.contains("a grid takes at most 10000"), "{many:?}");
    assert_eq!(Sampler::Grid.violations(&space), []);
    // adamw, or muon with 5 momenta, 2 of which have 2 values of nesterov: 1 + 3 + 2·2 points for each of 3 depths.
    let point = |number: u64| Sampler::Grid.suggest(&space, &[], number, 7);
    let points: Vec<Point> = (0..24).map(|number| point(number).unwrap()).collect();
    points.iter().for_each(|point| check(&space, point));
    for (i, point) in points.iter().enumerate() {
        assert!(!points[..i].contains(point), "{point:?}");
    }
    assert_eq!((point(24), Sampler::Grid.count(&space)), (None, Some(24)));
    // Points of a large grid are computed directly, without enumerating the ones before.
    let axis = json!({"kind": "int", "low": 0, "high": 9999});
    let large: Space = serde_json::from_value(json!({"a": axis, "b": axis, "c": axis})).unwrap();
    assert_eq!(Sampler::Grid.count(&large), Some(1_000_000_000_000));
    let last = Sampler::Grid.suggest(&large, &[], 999_999_999_998, 7).unwrap();
    assert_eq!(
        last,
        Point::from([("a", 9999.0), ("b", 9999.0), ("c", 9998.0)].map(|(n, x)| (n.into(), x)))
    );
    assert_eq!(Sampler::Random.count(&large), None);
}

#[test]
fn tpe_beats_random_search_on_a_conditional_space() {
    let space = conditional();
    let f = |point: &Point| {
        let rate = (point["rate"].log10() + 2.0).powi(2);
        rate + (point["depth"] - 5.0).abs() + point.get("momentum").map_or(2.0, |m| 1.0 - m)
    };
    let regret = |sampler: Sampler| -> f64 {
        let of_seed = |seed: u64| {
            let trials = search(&sampler, &space, 60, seed, f);
            trials.iter().filter_map(|trial| trial.value).fold(f64::MAX, f64::min)
        };
        (0..20).map(of_seed).sum::<f64>() / 20.0
    };
    let tpe = |multivariate| Sampler::Tpe(Tpe { multivariate, ..Tpe::default() });
    let (random, joint, single) = (regret(Sampler::Random), regret(tpe(true)), regret(tpe(false)));
    assert!(joint < 0.5 * random && single < 0.5 * random, "{random} {joint} {single}");
}

#[test]
fn cma_es_converges_with_trials_of_older_generations_or_other_origin() {
    let space = space(json!({
        "x": {"kind": "float", "low": -4.0, "high": 6.0},
        "y": {"kind": "float", "low": 1e-6, "high": 1.0, "log": true},
        "z": {"kind": "int", "low": 1, "high": 1000},
    }));
    let f = |point: &Point| {
        let y = point["y"].log10() + 1.5;
        (point["x"] - 5.0).powi(2)
            + (point["x"] - 5.0) * y
            + y * y
            + (point["z"] / 100.0 - 2.0).powi(2)
    };
    let sampler = Sampler::Cma(Cma::default());
    for (workers, seed) in [(1, 1), (16, 2)] {
        let mut trials = Vec::new();
        for number in 0..500 {
            let known = &trials[..trials.len() / workers * workers];
            let mut point = sampler.suggest(&space, known, number, seed).unwrap();
            if number % 29 == 28 {
                // A point far from the current mean; trial 376 also gets the best value of all.
                point = Sampler::Random.suggest(&space, &[], number, seed).unwrap();
            }
            let value = if number == 376 { -1.0 } else { f(&point) };
            trials.push(complete(number, point, value));
        }
        let last = f(&sampler.suggest(&space, &trials, 500, seed).unwrap());
        assert!(last < 1e-3, "{workers} workers: {last}");
    }
    let text = json!({"x": {"kind": "categorical", "choices": [1, 2]}});
    assert_eq!(sampler.violations(&serde_json::from_value(text).unwrap())[0].0, "kind");
}

#[test]
fn open_trials_repel_suggestions() {
    let space = space(json!({"x": {"kind": "float", "low": 0.0, "high": 1.0}}));
    let at = |x: f64| Point::from([("x".to_string(), x)]);
    let mut trials: Vec<Trial> = (0..40_u32)
        .map(|i| complete(u64::from(i), at(f64::from(i) / 40.0), (f64::from(i) / 40.0 - 0.5).abs()))
        .collect();
    let near = |trials: &[Trial]| {
        let suggest = |seed| Sampler::default().suggest(&space, trials, 99, seed).unwrap()["x"];
        (0..200).filter(|seed| (suggest(*seed) - 0.5).abs() < 0.02).count()
    };
    let alone = near(&trials);
    let open = (40..60).map(|number| Trial {
        state: State::Open,
        value: None,
        ..complete(number, at(0.5), 0.0)
    });
    trials.extend(open);
    assert!(near(&trials) < alone / 2, "{} {alone}", near(&trials));
}

#[test]
fn invalid_spaces_are_reported() {
    for (parameter, text) in [
        (json!({"kind": "int", "low": 5, "high": 4}), "low 5 is above high 4"),
        (
            json!({"kind": "float", "low": 0.0, "high": 1.0, "log": true}),
            "the logarithm of 0 is undefined",
        ),
        (
            json!({"kind": "float", "low": 1.0, "high": 2.0, "log": true, "step": 0.5}),
            "cannot be combined",
        ),
        (
            json!({"kind": "float", "low": 0.0, "high": 1.0, "step": 1e-300}),
            "too small for the range",
        ),
        (json!({"kind": "categorical", "choices": []}), "has no choices"),
        (json!({"kind": "categorical", "choices": [1, "a", 1.0]}), "lists the choice 1.0 twice"),
        (json!({"kind": "fixed", "value": 1, "when": {"y": [3]}}), "there is no parameter y"),
        (
            json!({"kind": "fixed", "value": 1, "when": {"x": [1]}}),
            "depends on the parameter itself",
        ),
        (json!({"kind": "fixed", "value": 1, "when": {"z": [7]}}), "z is never 7"),
        (json!({"kind": "int", "low": 1, "high": 3, "step": 0, "when": {"z": [7]}}), "step 0"),
    ] {
        let z = json!({"kind": "int", "low": 1, "high": 3});
        // A parameter whose condition refers to an invalid one.
        let y = json!({"kind": "fixed", "value": 1, "when": {"x": [1]}});
        let space = json!({"w": y, "x": parameter, "z": z});
        let space: Space = serde_json::from_value(space).unwrap();
        let violations = space.violations();
        assert!(
            violations.iter().any(|(name, found)| name == "x" && found.contains(text)),
            "{violations:?}"
        );
    }
}
