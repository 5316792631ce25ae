//! Records: a user's own arrays through the whole pipeline, as users run it.

use crate::common::{Captured, shell};
use data::fields::field::Axes;
use data::fields::write::{Header, write_field};
use data::records::InputArray;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Points of an input, and its channels u and v.
const POINTS: usize = 24;

pub fn done(folder: &Path, script: &str) -> Captured {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(0), "{}\n{}", output.stdout, output.stderr);
    output
}

pub fn refused(folder: &Path, script: &str, status: i32, text: &str) {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(status), "{}", output.stderr);
    assert!(output.stderr.contains(text) || output.stdout.contains(text), "{}", output.stderr);
}

/// Writes an f32 NumPy array.
pub fn npy(path: &Path, shape: &[usize], values: &[f32]) {
    let mut bytes = data::fields::write::npy_header(shape);
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

/// The values of such a file, after its header.
pub fn values_of(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let begin = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let number = |four: &[u8]| f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    bytes[begin..].chunks_exact(4).map(number).collect()
}

/// Smooth periodic functions u and v, and the target u·v + 3·du/dx, which no linear map gives.
fn problem(records: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for record in 0..records {
        let phase = |k: usize| ((record * 7919 + k * 104_729) % 1000) as f64 / 1000.0;
        let wave = |at: usize, k: usize| {
            let x = at as f64 / POINTS as f64 + phase(k);
            (2.0 * std::f64::consts::PI * x).sin() * (0.5 + phase(k + 10))
        };
        let u = |at: usize| wave(at, 1) + 0.5 * wave(2 * at, 2);
        let v = |at: usize| wave(at, 3) + 1.0;
        for at in 0..POINTS {
            let slope = u((at + 1) % POINTS) - u((at + POINTS - 1) % POINTS);
            inputs.extend([u(at) as f32, v(at) as f32]);
            targets.push((u(at) * v(at) + 3.0 * slope) as f32);
        }
    }
    (inputs, targets)
}

const CONFIG: &str = "seed: 3
data: {split: split.json, stats: stats.json}
model:
  backbone: {kind: pdet_stack, hidden: 32, depth: 2, kernel_size: 3}
  padding_mode: circular
loss: {kind: mse}
training: {updates: 300, batch_size: 32, ema: 0.98, validate_every: 100, log_every: 1}
optimizer: {method: {kind: adamw}, learning_rate: 4e-3}
schedule: [{kind: cosine, end_factor: 0.0}]
checkpoint: {every: 50}
";

pub fn metrics(folder: &Path, report: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(report).join("metrics.json")).unwrap()).unwrap()
}

#[test]
fn a_users_arrays_are_imported_divided_learned_scored_and_predicted() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let (inputs, targets) = problem(700);
    npy(&folder.join("x.npy"), &[700, POINTS, 2], &inputs);
    npy(&folder.join("y.npy"), &[700, POINTS], &targets);
    fs::write(folder.join("config.yaml"), CONFIG).unwrap();
    let import = "ds-prep import x.npy --target y.npy --target-axes nx";
    refused(folder, &format!("{import} -o x"), 2, "--axes says what its dimensions are");
    done(
        folder,
        &format!(
            "{import} --axes nxc -o pairs
             {import} --axes nxc -o pairs
             ds-prep split pairs --train 300 --validation 100 --test 300 --seed 2 -o split.json
             ds-prep stats split.json
             ds-prep check pairs split.json
             ds-prep audit split.json
             ds-prep ls pairs split.json"
        ),
    );
    let run = "train-stage regression -c config.yaml";
    done(folder, &format!("{run} --run whole --check\n{run} --run whole"));
    // Killed and started again, with another number of threads.
    let killed = shell(folder, &format!("FAIL=log.write:170=kill {run} --run killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    done(folder, &format!("{run} -s training.threads=1 --run killed"));
    let weights = |run: &str, file: &str| {
        fs::read(folder.join(run).join("ckpt/step-00000300").join(file)).unwrap()
    };
    for file in ["model.safetensors", "ema.safetensors"] {
        assert_eq!(weights("whole", file), weights("killed", file), "{file}");
    }

    done(folder, "evaluate score whole --data split.json -o report --json");
    let metrics = metrics(folder, "report");
    assert_eq!(metrics["protocol"]["records"], 300);
    let nrmse = |method: &str| metrics["methods"][method]["nrmse"]["value"].as_f64().unwrap();
    assert!(nrmse("regression") < 0.5 * nrmse("linear 3"), "{metrics}");
    assert!(nrmse("linear 3") < nrmse("linear 1") && nrmse("linear 1") < nrmse("mean"));
    assert!(nrmse("persistence") > nrmse("linear 1"));

    // Predictions of all inputs have the error that was scored, on the records of the test split.
    done(folder, "evaluate predict whole --inputs x.npy --axes nxc -o predicted.npy");
    let predicted = values_of(&folder.join("predicted.npy"));
    assert_eq!(predicted.len(), targets.len());
    let split: Value =
        serde_json::from_slice(&fs::read(folder.join("split.json")).unwrap()).unwrap();
    let test = split["test"][0]["samples"].as_array().unwrap();
    let squares = test.iter().flat_map(|record| {
        let first = record.as_u64().unwrap() as usize * POINTS;
        (first..first + POINTS).map(|at| f64::from(predicted[at] - targets[at]).powi(2))
    });
    let rmse = (squares.sum::<f64>() / (300 * POINTS) as f64).sqrt();
    let scored = metrics["methods"]["regression"]["rmse"]["value"].as_f64().unwrap();
    assert!((rmse / scored - 1.0).abs() < 1e-5, "{rmse} {scored}");
    refused(
        folder,
        "evaluate predict whole --inputs y.npy --axes nx -o other.npy",
        65,
        "24 points, 2 channels",
    );

    let test: Vec<usize> = test.iter().map(|record| record.as_u64().unwrap() as usize).collect();
    predictions_are_the_same_in_every_way(folder, &test);

    // What does not fit is refused: other statistics, a model that adds channels that are not there, damaged data.
    done(
        folder,
        "ds-prep split pairs --train 300 --validation 100 --test 300 --seed 9 -o other.json",
    );
    refused(
        folder,
        &format!("{run} -s data.split=other.json --run x"),
        65,
        "run `ds-prep stats` again",
    );
    let wrong = "-s data.augmentation.flips=true -s 'data.augmentation.vectors.input=[[2]]'";
    refused(folder, &format!("{run} {wrong} --run x"), 78, "must name 1 channels below 2");
    refused(folder, &format!("{run} -s loss.kind=mae -s loss.dims=space --run x"), 78, "loss.dims");
    let shard = folder.join("pairs/shard-00000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    refused(folder, "ds-prep check split.json", 65, "shard-00000.safetensors");
    refused(folder, &format!("{run} --run damaged"), 65, "shard-00000.safetensors");
}

/// In every format, from a pipe and from a manifest: the values of predicted.npy.
/// The split has the records `test`.
fn predictions_are_the_same_in_every_way(folder: &Path, test: &[usize]) {
    let whole = values_of(&folder.join("predicted.npy"));
    let read = |file: &str| {
        let path = folder.join(format!("{file}:target"));
        let array = InputArray::open(&path, &Some(Axes::parse("nxc").unwrap())).unwrap();
        let (records, length) = (array.records(), array.side().len());
        let mut values = vec![0.0; records * length];
        let rows = values.chunks_exact_mut(length).enumerate();
        rows.for_each(|(i, values)| array.read(i, values).unwrap());
        (values, array.coordinates().unwrap())
    };
    let predict = "evaluate predict whole --axes nxc";
    // An HDF5 file with coordinates.
    let header = Header::records(700, &[POINTS], 2, vec![(0..POINTS).map(|x| x as f64).collect()]);
    let (inputs, _) = problem(700);
    write_field(&folder.join("x.h5"), &header, |writer| {
        inputs.chunks_exact(2 * POINTS).enumerate().try_for_each(|(i, x)| writer.write(i, x))
    })
    .unwrap();
    for file in ["out.h5", "out.safetensors"] {
        done(folder, &format!("{predict} --inputs x.h5:target -o {file}"));
        let (values, coordinates) = read(file);
        assert_eq!(values, whole, "{file}");
        assert_eq!(coordinates[0][5], 5.0);
    }
    done(folder, &format!("{predict} --inputs - -o piped.npy < x.npy"));
    assert_eq!(values_of(&folder.join("piped.npy")), whole);
    done(folder, "evaluate predict whole --data split.json -o test.h5");
    let of_test: Vec<f32> =
        test.iter().flat_map(|record| &whole[record * POINTS..][..POINTS]).copied().collect();
    assert_eq!(read("test.h5").0, of_test);
    refused(folder, &format!("{predict} -o x.npy --force"), 2, "--inputs");
}

#[test]
fn every_loss_trains_and_vectors_and_finer_grids_are_targets() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let (inputs, targets) = problem(60);
    npy(&folder.join("x.npy"), &[60, POINTS, 2], &inputs);
    npy(&folder.join("y.npy"), &[60, POINTS, 1], &targets);
    // Of each input: the mean of u·v and of u².
    let sums: Vec<f32> = inputs
        .chunks(2 * POINTS)
        .flat_map(|x| {
            let mean =
                |of: &dyn Fn(&[f32]) -> f32| x.chunks(2).map(of).sum::<f32>() / POINTS as f32;
            [mean(&|point| point[0] * point[1]), mean(&|point| point[0] * point[0])]
        })
        .collect();
    npy(&folder.join("sums.npy"), &[60, 2], &sums);
    let fine: Vec<f32> = targets.iter().flat_map(|t| [*t, 0.5 * t]).collect();
    npy(&folder.join("fine.npy"), &[60, 2 * POINTS], &fine);
    fs::write(folder.join("config.yaml"), CONFIG).unwrap();
    let prepare = |name: &str, target: &str| {
        let split = format!("ds-prep split {name} -o {name}.json");
        let stats = format!("ds-prep stats {name}.json -o {name}-stats.json");
        let import = format!("ds-prep import x.npy --axes nxc --target {target} -o {name}");
        done(folder, &format!("{import}\n{split}\n{stats}"));
        format!(
            "train-stage regression -c config.yaml -s data.split={name}.json -s data.stats={name}-stats.json"
        )
    };
    let short = "-s training.updates=4 -s training.validate_every=4 -s checkpoint.every=4";
    let run = prepare("field", "y.npy --target-axes nxc");
    let kinds = "mse mae rmse nmse nrmse vmse vrmse relative_l2 relative_h1 relative_energy";
    done(
        folder,
        &format!("for kind in {kinds}; do {run} {short} -s loss.kind=$kind --run $kind; done"),
    );
    done(folder, &format!("{run} {short} -s loss.kind=vrmse -s loss.dims=space --run of-channels"));
    let flips = "-s data.augmentation.flips=true -s model.integrate=true";
    refused(folder, &format!("{run} {flips} --run x"), 78, "need data.augmentation.vectors");
    let scalars = "-s 'data.augmentation.vectors={}'";
    done(folder, &format!("{run} {short} {flips} {scalars} --run integrated"));

    // Windows of 12 points train a model that is used on 24.
    let unet = "-s 'model.backbone={kind: unet, hidden: 16, levels: 2, norm: group}' -s model.padding_mode=zeros";
    let windows = "-s 'data.augmentation.crop=[12]' -s training.updates=150";
    done(
        folder,
        &format!(
            "{run} {unet} {windows} --run windows\nevaluate score windows --data field.json -o windows-report"
        ),
    );
    let killed = format!("{run} {unet} {windows} --run windows-killed");
    assert_eq!(shell(folder, &format!("FAIL=log.write:90=kill {killed}")).status, Some(137));
    done(folder, &killed);
    let [whole, again] = ["windows", "windows-killed"]
        .map(|run| fs::read(folder.join(run).join("ckpt/step-00000150/model.safetensors")));
    assert!(whole.unwrap() == again.unwrap());
    let report = metrics(folder, "windows-report");
    let nrmse = |method: &str| report["methods"][method]["nrmse"]["value"].as_f64().unwrap();
    assert!(nrmse("regression") < 0.9 * nrmse("linear 1"), "{report}");
    let crop = "-s 'data.augmentation.crop=[12]' --run x";
    refused(folder, &format!("{run} {crop}"), 78, "model.padding_mode");
    let positions = "-s model.backbone.positions=true -s model.padding_mode=zeros";
    refused(folder, &format!("{run} {positions} {crop}"), 78, "depends on the grid");
    let large = "-s 'data.augmentation.crop=[25]' --run x";
    refused(folder, &format!("{run} {unet} {large}"), 78, "at most those of the inputs, [24]");

    let run = prepare("vector", "sums.npy");
    refused(folder, &format!("{run} {unet} {crop}"), 78, "needs targets with a grid");
    done(folder, &format!("{run} -s training.updates=150 --run pooled"));
    done(folder, "evaluate score pooled --data vector.json -o report");
    let report = metrics(folder, "report");
    let nrmse = |method: &str| report["methods"][method]["nrmse"]["value"].as_f64().unwrap();
    assert!(nrmse("regression") < nrmse("mean"), "{report}");
    assert!(report["methods"]["linear"]["nrmse[1]"]["value"].is_number());
    refused(folder, &format!("{run} -s model.integrate=true --run x"), 78, "model.integrate");

    let run = prepare("fine", "fine.npy --target-axes nx");
    done(folder, &format!("{run} {short} --run finer"));
    done(folder, "evaluate score finer --data fine.json -o finer-report");
    assert_eq!(metrics(folder, "finer-report")["protocol"]["records"], 6);
}

#[test]
fn records_of_a_group_stay_together_and_bad_records_are_named() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let (mut inputs, targets) = problem(50);
    npy(&folder.join("x.npy"), &[50, POINTS, 2], &inputs);
    npy(&folder.join("y.npy"), &[50, POINTS], &targets);
    let groups: Vec<f32> = (0..50).map(|i| (i / 5) as f32).collect();
    npy(&folder.join("g.npy"), &[50], &groups);
    let import = "ds-prep import x.npy --axes nxc --target y.npy --target-axes nx";
    done(folder, &format!("{import} --group g.npy -o grouped"));
    done(folder, "ds-prep split grouped --seed 5 -o split.json && ds-prep audit split.json");
    let split: Value =
        serde_json::from_slice(&fs::read(folder.join("split.json")).unwrap()).unwrap();
    for name in ["train", "validation", "test"] {
        let samples = split[name][0]["samples"].as_array().unwrap();
        assert_eq!(samples.len() % 5, 0, "{name}");
        for five in samples.chunks(5) {
            let [first, last] = [0, 4].map(|i| five[i].as_u64().unwrap());
            assert_eq!(first / 5, last / 5, "{name}");
        }
    }
    // In their order, a group of five is cut at the 42nd record.
    let cut = "ds-prep split grouped --by index --train 42 --validation 3 --test 5 -o cut.json";
    done(folder, cut);
    let cut: Value = serde_json::from_slice(&fs::read(folder.join("cut.json")).unwrap()).unwrap();
    let train: Vec<u64> = (0..42).collect();
    assert_eq!(cut["train"][0]["samples"], serde_json::json!(train));
    refused(folder, "ds-prep audit cut.json", 1, "is in the same group as");
    refused(folder, "ds-prep check cut.json", 65, "is in the same group as");
    refused(folder, "ds-prep split grouped --by parameter -o x.json", 2, "--by parameter");

    // A store of its own for the validation, which has inputs of the training.
    done(
        folder,
        "ds-prep import x.npy --axes nxc --target y.npy --target-axes nx -o more
         ds-prep split grouped --train 100% --test 0 --validation-from more -o given.json",
    );
    let given: Value =
        serde_json::from_slice(&fs::read(folder.join("given.json")).unwrap()).unwrap();
    let count = |name: &str| given[name][0]["samples"].as_array().map_or(0, Vec::len);
    assert_eq!([count("train"), count("validation"), count("test")], [50, 50, 0]);
    refused(folder, "ds-prep audit given.json", 1, "has the same input as");

    // Frames of trajectories; all pairs of a trajectory are one group.
    done(
        folder,
        "ds-prep gen advection --parameter 0.4 --samples 8 --grid 32 --frames 9 --seed 1 -o waves
         ds-prep import waves/*.hdf5 --shift 2 --history 3 -o pairs
         ds-prep split pairs --train 50% --validation 25% --test 25% -o pairs.json
         ds-prep audit pairs.json",
    );
    done(
        folder,
        "ds-prep import waves/*.hdf5 --shift 0 --noise 0.5 --noise-seed 3 -o noisy
         ds-prep split noisy -o noisy.json && ds-prep stats noisy.json -o noisy-stats.json",
    );
    refused(folder, "ds-prep import waves/*.hdf5 --noise 0.5 -o x", 2, "--noise");
    let listed = done(folder, "ds-prep ls pairs --json").stdout;
    let listed: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(listed["records"], 8 * (9 - 2 - 2));
    assert_eq!(listed["input"], "32 points, 3 channels");
    refused(
        folder,
        "ds-prep import waves/*.hdf5 --shift 7 --history 3 -o x",
        2,
        "fit into the 9 frames",
    );

    // All bad records at once, with file and index; nothing is left behind.
    inputs[3 * 2 * POINTS + 5] = f32::NAN;
    inputs[40 * 2 * POINTS] = f32::INFINITY;
    npy(&folder.join("x.npy"), &[50, POINTS, 2], &inputs);
    let bad = format!("{import} -o bad");
    refused(folder, &bad, 65, "x.npy: record 3: its input is NaN at point (2), channel 1");
    refused(folder, &bad, 65, "x.npy: record 40: its input is inf at point (0), channel 0");
    assert!(!folder.join("bad").exists());
    refused(
        folder,
        &format!("{import} --group g.npy -o grouped"),
        73,
        "holds records of other files",
    );
    npy(&folder.join("y.npy"), &[49, POINTS], &targets[..49 * POINTS]);
    refused(folder, &bad, 65, "49 targets, but x.npy has 50 inputs");
    refused(folder, "ds-prep import x.npy y.npy --target y.npy -o x", 2, "each needs its own");
}
