//! Options of the programs that have no effect on records are refused, and so is what does not fit.

use std::fs;
use std::path::Path;

use crate::common::shell;
use crate::records::{done, metrics, npy, refused, values_of};

const CONFIG: &str = "seed: 3
data: {split: split.json, stats: stats.json}
model: {backbone: {kind: unet, hidden: 4, levels: 1, norm: group, groups: 4}, padding_mode: circular}
loss: {kind: mse}
training: {updates: 8, batch_size: 8, validate_every: 4}
optimizer: {method: {kind: adamw}, learning_rate: 4e-3}
";

/// Files x.npy [20, 4, 6, 2] and y.npy [20, 4, 6, 2], the store `pairs`, split.json, stats.json and config.yaml.
fn prepare() -> tempfile::TempDir {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let x: Vec<f32> = (0..20 * 48).map(|i| ((i * 37 % 101) as f32 / 50.0).sin()).collect();
    let y: Vec<f32> = x.iter().map(|x| x * x).collect();
    npy(&folder.join("x.npy"), &[20, 4, 6, 2], &x);
    npy(&folder.join("y.npy"), &[20, 4, 6, 2], &y);
    fs::write(folder.join("config.yaml"), CONFIG).unwrap();
    done(
        folder,
        "ds-prep import x.npy --axes nxyc --target y.npy --target-axes nxyc -o pairs
         ds-prep split pairs --seed 1 -o split.json
         ds-prep stats split.json",
    );
    temporary
}

const RUN: &str = "train-stage regression -c config.yaml";

/// The long options of a command and whether they have a value, from its --help.
fn options(command: &str) -> Vec<(String, bool)> {
    let help = done(Path::new("/"), &format!("{command} --help")).stdout;
    let line = |line: &str| {
        // Descriptions are indented by more.
        line.strip_prefix("  -").or(line.strip_prefix("      -"))?;
        let (_, long) = line.split_once("--")?;
        let name = long.split([' ', '\n']).next()?;
        Some((name.to_string(), long.contains('<')))
    };
    help.lines().filter_map(line).filter(|(name, _)| name != "help").collect()
}

/// A valid value of an option.
fn value(option: &str) -> &str {
    match option {
        "crop" => "x=0:2",
        "parameter" => "nu=1",
        "override" => "--parameter nu=1",
        "periodic" | "axes" | "target-axes" => "x",
        "dtype" => "f32",
        "format" => "safetensors",
        "layout" => "tensor",
        "group-by" => "content",
        "near" => "0.1",
        "equation" => "burgers",
        "search" => "default",
        "reward" => "residual",
        "unpaired" => "drop",
        "direction" => "t2l",
        "reveal" => "cosine",
        "answers" => "all",
        "normalise" => "nfc",
        _ => "1",
    }
}

#[test]
fn every_option_is_for_records_or_refused() {
    let temporary = prepare();
    let folder = temporary.path();
    done(
        folder,
        &format!(
            "{RUN} --run run
         ds-prep gen advection --parameter 0.4 --samples 2 --grid 16 --frames 4 -o waves"
        ),
    );
    let import = "ds-prep import";
    let of_all = "output limit axes dataset noise noise-seed json";
    for (command, words, used) in [
        (
            import,
            "x.npy --target y.npy -o x",
            format!("{of_all} target target-axes group fill-missing"),
        ),
        (
            import,
            "waves/*.hdf5 --shift 1 -o x",
            format!("{of_all} shift history layout fill-missing"),
        ),
        (
            "ds-prep split",
            "pairs -o x.json",
            "train validation test validation-from test-from by seed output json".into(),
        ),
        ("ds-prep audit", "split.json", "json".into()),
        (
            "evaluate score",
            "run --data split.json -o x",
            "data split output summary force worst with weights device amp threads json".into(),
        ),
        (
            "evaluate predict",
            "run --inputs x.npy --axes nxyc -o x.npy --force",
            "inputs data split axes output force with weights device amp threads json".into(),
        ),
    ] {
        let mut used: Vec<&str> = used.split(' ').collect();
        for (option, has_value) in options(command) {
            if let Some(at) = used.iter().position(|own| *own == option) {
                used.remove(at);
                continue;
            }
            let value = if has_value || option == "override" { value(&option) } else { "" };
            let script = format!("{command} {words} --{option} {value}");
            let output = shell(folder, &script);
            let text = &output.stderr;
            assert_eq!(output.status, Some(2), "{script}: {text}");
            assert!(text.contains(&format!("--{option}")), "{script}: {text}");
            let refusals = [
                "no effect on records",
                "not an option of task regression",
                "no effect on texts",
                "only texts are compared",
                "cannot be used with",
                "were not provided",
            ];
            assert!(refusals.iter().any(|refusal| text.contains(refusal)), "{script}: {text}");
        }
        assert!(used.is_empty(), "{command} {words} has no option {used:?}");
    }
    assert!(!folder.join("x").exists() && !folder.join("x.json").exists());
}

#[test]
fn inputs_that_do_not_fit_are_named_and_named_datasets_are_found() {
    let temporary = prepare();
    let folder = temporary.path();
    let vector: Vec<f32> = (0..100).map(|i| (i * i % 17) as f32).collect();
    npy(&folder.join("v.npy"), &[20, 5], &vector);
    npy(&folder.join("odd.npy"), &[20, 4, 5], &vec![1.0; 400]);
    let import = "ds-prep import x.npy --axes nxyc";
    let grids = "targets on [4, 5] points for inputs on [4, 6]";
    refused(folder, &format!("{import} --target odd.npy --target-axes nxy -o odd"), 65, grids);
    assert!(!folder.join("odd").exists());
    refused(
        folder,
        "ds-prep import v.npy --axes nc -o fields",
        2,
        "--axes nc: fields need an axis",
    );
    refused(folder, "ds-prep import x.npy --axes nxyc --target-axes nxy -o x", 2, "--target");

    // [n, c] may be stated; vectors have nothing that persists.
    done(
        folder,
        &format!(
            "ds-prep import v.npy --axes nc --target v.npy --target-axes nc -o vectors
         ds-prep split vectors -o vectors.json && ds-prep stats vectors.json -o vectors-stats.json
         {RUN} -s data.split=vectors.json -s data.stats=vectors-stats.json \
         -s 'model.backbone={{kind: mlp, hidden: 4, depth: 1}}' --run vectors-run
         evaluate score vectors-run --data vectors.json -o vectors-score"
        ),
    );
    let methods = &metrics(folder, "vectors-score")["methods"];
    assert!(methods["linear"].is_object() && methods["persistence"].is_null(), "{methods}");

    // A dataset of a file of trajectories, named in both ways.
    done(
        folder,
        "ds-prep gen advection --parameter 0.4 --samples 2 --grid 16 --frames 4 -o waves
         mv waves/*.hdf5 waves.hdf5
         ds-prep import waves.hdf5:tensor --shift 1 -o named
         ds-prep import waves.hdf5 --dataset tensor --shift 1 -o option
         cmp named/shard-00000.safetensors option/shard-00000.safetensors",
    );
    refused(folder, "ds-prep import waves.hdf5:u --shift 1 -o x", 65, "no dataset `u`");
    let layouts = concat!(env!("CARGO_MANIFEST_DIR"), "/lib/data/tests/golden/layouts");
    done(folder, &format!("ds-prep import {layouts}/blosc.zarr --shift 1 -o zarr"));

    // A store, its records, and a manifest without its store.
    let shown = done(folder, "ds-prep show pairs && ds-prep show pairs --sample 19").stdout;
    for part in ["4 x 6 points, 2 channels", "x.npy", "axes nxyc", "input 1", "target 1"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    refused(folder, "ds-prep show pairs --sample 20", 2, "no record 20, there are 20");
    refused(folder, "ds-prep plot pairs -o x.png", 2, "only trajectories and images are drawn");
    fs::rename(folder.join("pairs"), folder.join("moved")).unwrap();
    refused(folder, "ds-prep check split.json", 66, "pairs/index.json");
}

#[test]
fn models_are_refused_on_what_they_cannot_read_and_used_on_other_grids() {
    let temporary = prepare();
    let folder = temporary.path();
    done(folder, &format!("{RUN} --run run"));
    let levels = "3 levels need a grid divisible by 8, but a side of the token grid 4 x 6 is 4; choose levels: 1 or less";
    refused(folder, &format!("{RUN} -s model.backbone.levels=3 --run x"), 78, levels);
    assert!(!done(folder, "train-stage regression --example").stdout.contains("augmentation"));

    let predict = "evaluate predict run --axes nxyc";
    refused(folder, &format!("{predict} --inputs x.npy -o new.csv"), 2, "must end in .h5, .hdf5");
    refused(folder, &format!("{predict} --inputs - -o new.npy"), 65, "stdin is empty");
    let text = format!("echo 1,2 | {predict} --inputs - -o new.npy");
    refused(folder, &text, 65, "stdin is no NumPy file");
    refused(folder, "evaluate predict run --inputs - -o new.npy < x.npy", 2, "--inputs -: ");

    // A field of two periods is predicted as two periods of the prediction of one.
    let x = values_of(&folder.join("x.npy"));
    let twice = |values: &[f32]| -> Vec<f32> {
        values.chunks(48).flat_map(|field| [field, field].concat()).collect()
    };
    npy(&folder.join("twice.npy"), &[20, 8, 6, 2], &twice(&x));
    done(
        folder,
        &format!(
            "{predict} --inputs x.npy -o one.h5
         {predict} --inputs one.h5:target -o of-target.npy
         {predict} --inputs x.npy -o one.npy
         {predict} --inputs twice.npy -o two.npy
         ds-prep show one.h5 --sample 3 && ds-prep plot one.h5 --sample 3 -o one.png"
        ),
    );
    let [one, two] = ["one.npy", "two.npy"].map(|file| values_of(&folder.join(file)));
    let differences = twice(&one).into_iter().zip(&two).map(|(a, b)| (a - b).abs());
    assert!(two.len() == 2 * one.len() && differences.fold(0.0, f32::max) < 1e-4);
    npy(&folder.join("odd.npy"), &[1, 5, 6, 2], &x[..60]);
    refused(
        folder,
        &format!("{predict} --inputs odd.npy -o odd.npy --force"),
        65,
        "trained on 4 x 6 points",
    );
    done(
        folder,
        &format!(
            "{RUN} -s 'model.backbone={{kind: pdet_stack, hidden: 8, depth: 1, positions: true}}' --run places"
        ),
    );
    let places = "evaluate predict places --axes nxyc --inputs twice.npy -o places.npy";
    refused(folder, places, 65, "positions.rows depends on the grid");

    // Exports have the metrics of the evaluation.
    done(
        folder,
        "evaluate score run --data split.json -o score
         evaluate export --format tensorboard -o exported run --evaluation score
         grep -q regression/nrmse exported/run/events.out.tfevents.*",
    );

    // Metrics of channels are drawn only if they are named.
    let drawn = |words: &str| done(folder, &format!("evaluate plot run --json {words}")).stdout;
    assert!(!drawn("").contains("nrmse["));
    assert!(
        drawn("").contains("validation.nrmse") && drawn("--metric 'nrmse[1]'").contains("nrmse[1]")
    );
}
