//! `--views`: predictions averaged over exactly transformed copies.

use std::fs;

use super::predictions::{done, read};
use super::{evaluate, json, metric, world};
use crate::common::shell;
use data::fields::field::Field;
use data::fields::write::{Header, write_field};

const CELLS: usize = 72;

/// v(x) = -u(-x), frame by frame.
fn reflected(fields: &[f32]) -> Vec<f32> {
    fields.chunks_exact(CELLS).flat_map(|frame| frame.iter().rev().map(|u| -u)).collect()
}

/// Two views are the mean of a prediction and of the prediction from a reflected file, reflected back, with the mean of
/// the initial state.
#[test]
fn two_views_are_the_mean_of_two_predictions() {
    done("ds-prep gen burgers --parameter 0.1 --samples 3 --grid 72 --frames 2 --seed 11 -o seen");
    let file = "seen/1D_Burgers_Sols_Nu0.1.hdf5";
    let field = Field::open(&world().join(file)).unwrap();
    let shape = field.shape().clone();
    let mut header = Header::tensor(shape, field.coordinates().to_vec(), field.t().to_vec());
    header.attributes = vec![("Nu".into(), 0.1.into())];
    write_field(&world().join("mirror.hdf5"), &header, |writer| {
        (0..3).try_for_each(|i| writer.write(i, &reflected(&read(file, i))))
    })
    .unwrap();
    let predict = "evaluate predict operator --steps 2 --inputs";
    done(&format!("{predict} {file} -o single.hdf5"));
    done(&format!("{predict} mirror.hdf5 -o mirrored.hdf5"));
    done(&format!("{predict} {file} --views 2 -o both.hdf5"));
    let mean = |u: &[f32]| u.iter().map(|u| f64::from(*u)).sum::<f64>() / u.len() as f64;
    let mut moved = 0.0_f64;
    for i in 0..3 {
        let start = mean(&read(file, i)[..CELLS]);
        let [single, other] = [read("single.hdf5", i), reflected(&read("mirrored.hdf5", i))];
        let both = read("both.hdf5", i);
        assert_eq!(both.len(), 3 * CELLS);
        for (at, state) in both.chunks_exact(CELLS).enumerate() {
            let cells = at * CELLS..(at + 1) * CELLS;
            let pairs = single[cells.clone()].iter().zip(&other[cells]);
            let average: Vec<f32> = pairs.map(|(a, b)| (a + b) / 2.0).collect();
            let offset = start - mean(&average);
            for (found, u) in state.iter().zip(average) {
                // A few roundings of f32 of values of order one.
                let error = f64::from(*found) - f64::from(u) - offset;
                assert!(error.abs() < 1e-6, "trajectory {i}, state {at}: {error:.1e}");
            }
            assert!((mean(state) - start).abs() < 1e-7);
            moved = moved.max(offset.abs());
        }
        assert_ne!(both, single);
    }
    assert!(moved > 1e-5, "no mean was changed: {moved:.1e}");
}

#[test]
fn views_are_a_second_model_and_change_no_other_number() {
    let words = "operator --steps 3 --starts 2";
    assert_eq!(evaluate(&format!("{words} -o one-view")).status, Some(0));
    let output = evaluate(&format!("{words} --views 4 -o four-views"));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stdout.lines().next().unwrap().contains(" views "), "{}", output.stdout);
    let [one, four] = ["one-view", "four-views"].map(|name| json(&format!("{name}/metrics.json")));
    assert_eq!((&one["settings"]["views"], &four["settings"]["views"]), (&1.into(), &4.into()));
    let regimes = |metrics: &serde_json::Value| metrics["groups"].as_array().unwrap().clone();
    for (one, four) in regimes(&one).iter().zip(&regimes(&four)) {
        for (model, metrics) in one["methods"].as_object().unwrap() {
            assert_eq!(metrics, &four["methods"][model], "{model}");
        }
        assert!(one["methods"]["views"].is_null());
        let views = |name: &str| metric(four, "views", name);
        // The mean is conserved exactly, up to roundings of f32; the operator's codec changes it.
        assert!(views("conserved_rmse") < 1e-6, "{}", views("conserved_rmse"));
        assert!(metric(four, "operator", "conserved_rmse") > 1e-5);
        assert_eq!(views("evaluations_per_step"), 4.0);
        assert_eq!(metric(four, "operator", "evaluations_per_step"), 1.0);
        assert!(views("spread") > 0.0);
        for name in ["spread_rank_correlation", "spread_rank_correlation_relative"] {
            assert!((-1.0..=1.0).contains(&views(name)), "{name}: {}", views(name));
        }
    }
    let times = json("four-views/times.json");
    let seconds = |model: &str| times["seconds_per_step"][model].as_f64().unwrap();
    assert!(seconds("operator") > 0.0 && seconds("views") > seconds("operator"));
    for picture in ["summary.png", "nu-0.1.png"] {
        let [one, four] = ["one-view", "four-views"]
            .map(|name| fs::read(world().join(format!("{name}/pictures/{picture}"))).unwrap());
        assert!(one != four, "{picture} does not show the views");
    }
}

#[test]
fn views_that_do_not_exist_are_refused() {
    done("ds-prep gen burgers --parameter 0.1 --samples 2 --grid 72 --frames 2 --seed 3 -o own");
    let own = "own/1D_Burgers_Sols_Nu0.1.hdf5";
    done(&format!("evaluate predict operator --inputs {own} --steps 1 -o unnamed.hdf5"));
    let score = "evaluate score operator --data data/split.json -o no-views --steps 2";
    let predict = "evaluate predict operator -o no-views.hdf5 --steps 2 --inputs";
    for (command, says) in [
        (
            "evaluate score codec --data data/split.json -o no-views --views 2".to_string(),
            "evaluate an operator",
        ),
        (format!("{score} --views 17"), "burgers has 16 views on [72] points with patches of 8"),
        (format!("{score} --views 2 --equation advection"), "generated as burgers"),
        (format!("{score} --views 0"), "--views"),
        (format!("{predict} unnamed.hdf5 --views 2"), "add --equation"),
        (format!("{predict} unnamed.hdf5 --views 2 --equation burgers"), "as periodic"),
        (format!("{predict} {own} --views 2 --equation darcy"), "generated as burgers"),
        (format!("{predict} unnamed.hdf5 --views 2 --equation darcy"), "not fields of darcy"),
    ] {
        let output = shell(world(), &command);
        assert_eq!(output.status, Some(2), "{command}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{command}: {}", output.stderr);
    }
    assert!(!world().join("no-views").exists() && !world().join("no-views.hdf5").exists());
    // A file that states its periodic axes needs only the name of the equation.
    done("ds-prep import unnamed.hdf5 --periodic x -o named");
    done(&format!("{predict} named/unnamed.hdf5 --views 2 --equation burgers"));
    done("rm no-views.hdf5");
}
