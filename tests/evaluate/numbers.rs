//! The numbers of an evaluation, compared with values computed directly from the fields.

use std::fs;

use super::{evaluate, json, metric, world};
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use serde_json::Value;

/// The error of persistence over 4 steps of 2 frames from frames 0, 6 and 12 of the trajectories of one regime,
/// computed directly from the files: over all starts together, the mean over the starts, and the geometric mean and the
/// largest value over rollouts.
fn persistence(value: f64) -> [f64; 4] {
    let manifest = world().join("data/split.json");
    let set = TrajectorySet::open(&manifest, SplitName::Test, Verify::Hashes).unwrap();
    let (mut error, mut target) = ([0.0_f64; 3], [0.0_f64; 3]);
    let (mut logs, mut largest, mut count) = (0.0, 0.0_f64, 0);
    for i in (0..set.len()).filter(|i| set.entry(*i).parameter.value == value) {
        let mut u = vec![0.0; 21 * 72];
        set.read(i, &mut u).unwrap();
        let frame = |f: usize| u[f * 72..][..72].iter().map(|u| f64::from(*u));
        for (at, start) in [0, 6, 12].into_iter().enumerate() {
            let before = (error[at], target[at]);
            for step in 1..=4 {
                for (first, now) in frame(start).zip(frame(start + 2 * step)) {
                    error[at] += (first - now) * (first - now);
                    target[at] += now * now;
                }
            }
            let own = ((error[at] - before.0) / (target[at] - before.1)).sqrt();
            (logs, largest, count) = (logs + own.ln(), largest.max(own), count + 1);
        }
    }
    let by_start = error.iter().zip(&target).map(|(e, t)| (e / t).sqrt());
    let all = error.iter().sum::<f64>() / target.iter().sum::<f64>();
    [all.sqrt(), by_start.sum::<f64>() / 3.0, (logs / f64::from(count)).exp(), largest]
}

/// Root mean square of all fields of the validation split.
fn validation_rms() -> f64 {
    let manifest = world().join("data/split.json");
    let set = TrajectorySet::open(&manifest, SplitName::Validation, Verify::Hashes).unwrap();
    let (mut sum, mut u) = (0.0, vec![0.0; 21 * 72]);
    for i in 0..set.len() {
        set.read(i, &mut u).unwrap();
        sum += u.iter().map(|u| f64::from(*u).powi(2)).sum::<f64>();
    }
    (sum / (set.len() * u.len()) as f64).sqrt()
}

#[test]
fn the_numbers_are_those_of_the_fields() {
    let words = "operator --steps 4 --starts 3 -o numbers --json \
                 --summary numbers.json";
    let output = evaluate(words);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let rows: Vec<Value> =
        output.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = rows.iter().map(|row| row["regime"].as_str().unwrap()).collect();
    assert_eq!(names, ["nu=0.01", "nu=0.1", "mean"]);
    let metrics = json("numbers/metrics.json");
    let protocol = &metrics["protocol"];
    // The longest stride of the training; 21 frames have room for 8 from frames 0 to 12.
    assert_eq!((protocol["stride"].as_u64(), protocol["rollouts"].as_u64()), (Some(2), Some(12)));
    assert_eq!(protocol["start_frames"], serde_json::json!([0, 6, 12]));
    assert_eq!(metrics["models"]["codec"]["weights"], "ema");
    assert!(
        metrics["models"]["codec"]["checkpoint"].as_str().unwrap().contains("/codec/ckpt/step-")
    );
    for (regime, value) in metrics["groups"].as_array().unwrap().iter().zip([0.01, 0.1]) {
        let [expected, of_starts, geometric, largest] = persistence(value);
        let quantity = |name: &str| metric(regime, "persistence", name);
        let found = quantity("nrmse_of_starts");
        assert!((found / of_starts - 1.0).abs() < 1e-9, "{value}: {found}, not {of_starts}");
        let found = quantity("nrmse");
        assert!((found / expected - 1.0).abs() < 1e-9, "{value}: {found}, not {expected}");
        assert!((quantity("nrmse_geometric_mean") / geometric - 1.0).abs() < 1e-9);
        // Of 6 rollouts, a quarter of the way from the largest error to the next.
        assert!(quantity("nrmse_p95") <= largest && quantity("nrmse_p95") > geometric);
        for name in ["nrmse", "nrmse_geometric_mean"] {
            let interval = &regime["methods"]["persistence"][name]["interval"];
            let [low, high] = [0, 1].map(|end| interval[end].as_f64().unwrap());
            assert!(low < quantity(name) && quantity(name) < high, "{low} {name} {high}");
        }
        let scaled = quantity("rmse") / validation_rms();
        assert!((quantity("nrmse_validation_scale") / scaled - 1.0).abs() < 1e-9);
        // An identity operator is persistence in the latents; in the field it is the codec's reconstruction of the
        // first frame.
        for space in ["latent", "latent_weighted"] {
            let [operator, persistence] = ["operator", "persistence"]
                .map(|model| metric(regime, model, &format!("{space}.nrmse")));
            assert!((operator / persistence - 1.0).abs() < 1e-4, "{operator} {persistence}");
        }
        let by_step =
            |model: &str, step: usize| &regime["methods"][model]["nrmse"]["by_step"][step];
        assert_eq!(by_step("operator", 0), by_step("codec", 0));
        assert_eq!(by_step("persistence", 0), 0.0);
        assert!(metric(regime, "codec", "nrmse") < found);
        let mean = metric(regime, "mean", "nrmse");
        assert!((0.9..1.1).contains(&mean), "the mean explains nothing: {mean}");
    }
    let summary = json("numbers.json");
    assert_eq!(summary["steps"], 4);
    for row in &rows[..2] {
        let of_regime = &summary["nu"][row["regime"].as_str().unwrap().trim_start_matches("nu=")];
        for model in ["operator", "persistence", "codec"] {
            assert_eq!(of_regime[model], row[model]);
        }
    }
}

#[test]
fn csv_has_the_numbers_of_json_and_pictures_are_pictures() {
    let output = evaluate("operator --steps 3 --starts 2 -o files");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stdout.starts_with("regime "), "{}", output.stdout);
    let metrics = json("files/metrics.json");
    let text = fs::read_to_string(world().join("files/metrics.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("group,method,metric,step,value,low,high"));
    let mut count = 0;
    for line in lines {
        let [group, method, name, step, value, low, high] = line.split(',').collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        let place = match group {
            "" => &metrics,
            "nu=0.01" => &metrics["groups"][0],
            _ => &metrics["groups"][1],
        };
        let expected = &place["methods"][method][name];
        let value_of = |text: &str| text.parse::<f64>().ok();
        match step.parse::<usize>() {
            Ok(step) => assert_eq!(expected["by_step"][step].as_f64(), value_of(value), "{line}"),
            Err(_) => {
                assert_eq!(expected["value"].as_f64(), value_of(value), "{line}");
                let bounds = [0, 1].map(|end| expected["interval"][end].as_f64());
                assert_eq!(bounds, [low, high].map(value_of), "{line}");
            }
        }
        count += 1;
    }
    // All parameter values and each one; the whole rollout and steps 0 to 3; four models with 13 quantities in the field,
    // three with six in both kinds of latents; of each model four quantities over rollouts, and the operator's
    // evaluations; over all parameter values one more mean of each model.
    assert_eq!(count, 3 * (5 * (4 * 13 + 2 * 3 * 6) + 4 * 4 + 1) + 4);
    for (name, height) in [("nu-0.01", 960), ("nu-0.1", 960), ("summary", 640)] {
        let png = fs::read(world().join(format!("files/pictures/{name}.png"))).unwrap();
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        let size = [16, 20].map(|at| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()));
        assert_eq!(size, [1400, height]);
    }
}
