//! Two-dimensional fields through the whole pipeline, as users run it: flows with codec and operator, and a steady
//! problem with its own model.

use std::fs;
use std::path::Path;

use crate::common::{Captured, shell};
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use serde_json::Value;

fn done(folder: &Path, script: &str) -> Captured {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(0), "{}\n{}", output.stdout, output.stderr);
    output
}

fn rows(output: &Captured) -> Vec<Value> {
    output.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Flows, and a codec and an operator that are trained on them briefly.
const FLOW: &str = "
ds-prep gen navier-stokes --parameter 0.002 --constant forcing=0 --constant scale=10 --samples 12 \
    --grid 16 --frames 7 --end 1.2 --seed 4 -o data
ds-prep split data/*.h5 --train 8 --validation 2 --test 2 -o split.json
ds-prep stats split.json
ds-prep check split.json
cat > codec.yaml <<'END'
data: {split: split.json, stats: stats.json, random_shift: true, random_reflection: true}
model: {patch: 4, latent: 8, hidden: 8, encoder_depth: 1, decoder_depth: 1, kernel_size: 3}
loss: {reencoding: 0.1}
training: {updates: 100, batch_size: 8}
optimizer: {method: {kind: adamw}, learning_rate: 2e-3}
END
train-stage codec -c codec.yaml --run codec
latent-cache make codec --data split.json -o latents
cat > operator.yaml <<'END'
data: {train: latents/train, validation: latents/validation, random_shift: true}
model: {backbone: {kind: pdet_unet, hidden: 16, depths: [1, 1], kernel_size: 3}}
loss: {validation_steps: 2, horizons: [2]}
training: {updates: 400, batch_size: 8, validate_every: 100}
optimizer: {method: {kind: adamw}, learning_rate: 4e-3}
END
train-stage operator -c operator.yaml --run operator
";

#[test]
fn a_flow_goes_through_codec_latents_operator_and_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, FLOW);
    let index: Value =
        serde_json::from_slice(&fs::read(folder.join("latents/train/index.json")).unwrap())
            .unwrap();
    let layout = &index["description"]["layout"];
    assert_eq!((&layout["tokens"], &layout["rows"]), (&16.into(), &4.into()));
    let judged = "evaluate score operator --data split.json --steps 4 --json";
    let output = done(folder, &format!("{judged} -o result"));
    let all = rows(&output).pop().unwrap();
    let value = |name: &str| all[name].as_f64().unwrap();
    // Trained briefly, it beats persistence, and the codec beats both.
    assert!(value("operator") < 0.9 * value("persistence"), "{all}");
    assert!(value("codec") < 0.5 * value("operator"), "{all}");
    let metrics: Value =
        serde_json::from_slice(&fs::read(folder.join("result/metrics.json")).unwrap()).unwrap();
    assert_eq!(metrics["protocol"]["grid"], serde_json::json!([16, 16]));
    let picture = fs::read(folder.join("result/pictures/nu-0.002.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG"));
    // A rotation and two reflections at the diagonals, with four shifts along x = -y.
    let output = done(folder, &format!("{judged} --views 16 -o views"));
    let averaged = rows(&output).pop().unwrap();
    assert_eq!(averaged["operator"], all["operator"]);
    assert!(averaged["views"].as_f64().unwrap() < 0.95 * value("operator"), "{averaged}");
    // A codec for another grid is refused.
    let other = shell(
        folder,
        "ds-prep gen burgers --parameter 0.1 --samples 10 --grid 16 --frames 7 -o line
         ds-prep split line/*.hdf5 -o line.json
         evaluate score codec --data line.json --steps 4 -o other",
    );
    assert_eq!(other.status, Some(65), "{}", other.stderr);
    assert!(other.stderr.contains("[16, 16]"), "{}", other.stderr);
}

/// Two channels with closed boundaries, encoded by a codec.
#[test]
fn channels_are_coded_together() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let made = "
ds-prep gen diffusion-reaction-2d --parameter 0.01 --samples 10 --grid 12 --frames 9 --end 4 -o data
ds-prep split data/*.h5 -o split.json
ds-prep stats split.json
cat > codec.yaml <<'END'
data: {split: split.json, stats: stats.json}
model: {patch: 4, latent: 20, hidden: 8, encoder_depth: 1, decoder_depth: 1, kernel_size: 3, padding_mode: zeros}
loss: {}
training: {updates: 60, batch_size: 8}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
END
train-stage codec -c codec.yaml --run codec
evaluate score codec --data split.json --steps 3 --stride 1 --json -o result";
    let all = rows(&done(folder, made)).pop().unwrap();
    assert!(all["codec"].as_f64().unwrap() < 0.7, "{all}");
    let shifted =
        shell(folder, "train-stage codec -c codec.yaml -s data.random_shift=true --run x");
    assert_eq!(shifted.status, Some(78), "{}", shifted.stderr);
    assert!(shifted.stderr.contains("periodic domains only"), "{}", shifted.stderr);
}

const ROCK: &str = "
ds-prep gen darcy --parameter 1,2 --samples 60 --grid 16 --seed 2 -o data
ds-prep split data/*.hdf5 --train 40 --validation 10 --test 10 -o split.json
ds-prep stats split.json
cat > steady.yaml <<'END'
data: {split: split.json, stats: stats.json, augmentation: {flips: true, rotations: true}}
model: {patch: 2, backbone: {kind: pdet_unet, hidden: 16, depths: [1, 1, 1], kernel_size: 3, positions: true}}
loss: {}
training: {updates: 150, batch_size: 16, validate_every: 50}
optimizer: {method: {kind: adamw}, learning_rate: 5e-3}
END
";

#[test]
fn a_steady_problem_is_learned_and_compared_with_its_baselines() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, ROCK);
    done(folder, "train-stage regression -c steady.yaml --run steady");
    let output = done(folder, "evaluate score steady --data split.json --json -o result");
    let rows = rows(&output);
    assert_eq!(rows.len(), 3);
    for row in &rows {
        let value = |name: &str| row[name].as_f64().unwrap();
        assert!(value("regression") < 0.8 * value("mean").min(value("nearest")), "{row}");
    }
    let [mean, nearest] = baselines(&folder.join("split.json"), 2.0);
    let row = rows.iter().find(|row| row["regime"] == "beta=2").unwrap();
    for (name, expected) in [("mean", mean), ("nearest", nearest)] {
        let found = row[name].as_f64().unwrap();
        assert!((found / expected - 1.0).abs() < 1e-5, "{name}: {found}, not {expected}");
    }
    assert!(folder.join("result/pictures/beta-2.png").is_file());
    // The reflections and rotations of the square, of rock and pressure.
    let output = done(folder, "evaluate score steady --data split.json --views 8 --json -o views");
    for (row, single) in self::rows(&output).iter().zip(&rows) {
        assert_eq!(row["regression"], single["regression"]);
        let value = |name: &str| row[name].as_f64().unwrap();
        // Little, because it was trained on rotated samples.
        assert!(value("views") < 0.98 * value("regression"), "{row}");
    }
    done(folder, "evaluate predict steady --inputs data/*beta1.0.hdf5 --views 8 -o predicted.hdf5");
    let again = shell(folder, "evaluate score steady --data split.json -o result");
    assert_eq!(again.status, Some(73), "{}", again.stderr);
    let wrong = shell(folder, "latent-cache make steady --data split.json -o other");
    assert_eq!(wrong.status, Some(65), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("regression has no encoder"), "{}", wrong.stderr);
    let wrong = shell(folder, "train-stage codec -c steady.yaml --run other");
    assert_eq!(wrong.status, Some(78), "{}", wrong.stderr);
}

/// NRMSE of the mean of the training solutions and of the nearest one, computed directly from the files.
fn baselines(manifest: &Path, beta: f64) -> [f64; 2] {
    let open = |name| TrajectorySet::open(manifest, name, Verify::Sizes).unwrap();
    let read = |set: &TrajectorySet| -> Vec<Vec<f64>> {
        let own = (0..set.len()).filter(|i| set.entry(*i).parameter.value == beta);
        own.map(|i| {
            let mut field = vec![0.0; set.shape().frame_len()];
            set.read(i, &mut field).unwrap();
            field.iter().map(|x| f64::from(*x)).collect()
        })
        .collect()
    };
    let (train, test) = (read(&open(SplitName::Train)), read(&open(SplitName::Test)));
    assert_eq!((train.len(), test.len()), (40, 10));
    let part = |field: &[f64], first: usize| -> Vec<f64> {
        field.iter().skip(first).step_by(2).copied().collect()
    };
    let squares = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
    let points = test[0].len() / 2;
    let mut mean = vec![0.0; points];
    for field in &train {
        mean.iter_mut().zip(part(field, 1)).for_each(|(m, u)| *m += u / train.len() as f64);
    }
    let (mut errors, mut energy) = ([0.0; 2], 0.0);
    for field in &test {
        let (input, truth) = (part(field, 0), part(field, 1));
        let distance = |other: &&Vec<f64>| squares(&input, &part(other, 0));
        let nearest = train.iter().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
        errors[0] += squares(&mean, &truth);
        errors[1] += squares(&part(nearest, 1), &truth);
        energy += squares(&truth, &vec![0.0; points]);
    }
    errors.map(|error| (error / energy).sqrt())
}

/// Stopped at any update and resumed, a run has the bits of an uninterrupted one.
#[test]
fn a_steady_run_resumes_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    done(folder, ROCK);
    let train =
        "train-stage regression -c steady.yaml -s training.updates=12 -s checkpoint.every=3";
    done(folder, &format!("{train} --run whole"));
    let weights = |run: &str, step: usize| {
        let path = folder.join(run).join(format!("ckpt/step-{step:08}/model.safetensors"));
        fs::read(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
    };
    let last = weights("whole", 12);
    // Back to update 9, and on from there with one thread.
    fs::remove_dir_all(folder.join("whole/ckpt/step-00000012")).unwrap();
    done(folder, &format!("{train} -s training.threads=1 --run whole"));
    assert!(weights("whole", 12) == last, "other bits after a resume");
}
