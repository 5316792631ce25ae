//! User errors: each one yields a clear message with its exit status, and never a panic.

use std::fs;
use std::sync::LazyLock;

use crate::common::{Captured, shell};
use data::fields::field::Shape;
use data::fields::write::{Header, write_field};
use tempfile::TempDir;

/// One user error.
struct Case {
    name: &'static str,
    /// Shell commands that cause it, in a copy of the fixture.
    plant: &'static str,
    /// The user's command; its first word is the program.
    command: &'static str,
    status: i32,
    /// Maximum number of lines on stderr.
    lines: usize,
    /// Texts that stdout and stderr must contain.
    says: &'static [&'static str],
}

const fn case(
    name: &'static str,
    plant: &'static str,
    command: &'static str,
    status: i32,
    lines: usize,
    says: &'static [&'static str],
) -> Case {
    Case { name, plant, command, status, lines, says }
}

/// A second run of the fixture's task.
const NEW: &str = "train-stage codec -c codec.yaml --run new";
/// A run that reads every sample several times.
const LONG: &str = "train-stage codec -c codec.yaml -s training.updates=72 --run new";
/// A task of the second kind, on latents that do not exist yet.
const OPERATOR: &str = "train-stage operator -c operator.yaml --run new";
/// One of the two files of the data set.
const FILE: &str = "raw/1D_Burgers_Sols_Nu0.1.hdf5";
/// Variables for these commands.
const VARIABLES: &str = "file=raw/1D_Burgers_Sols_Nu0.1.hdf5
    make_latents='latent-cache make run --data split.json -o latents'";
/// Writes a NaN into the middle of the file.
const NAN: &str = "printf '\\000\\000\\300\\177' |
    dd of=$file bs=4 seek=$(($(stat -c %s $file) / 8)) conv=notrunc status=none";
/// Makes most of its values NaN.
const ALL_NAN: &str = "head -c 17k /dev/zero | tr '\\000' '\\377' |
    dd of=$file bs=1k seek=11 conv=notrunc status=none";
/// Changes a bit of a value in the middle of the file: size and shape stay the same.
const FLIP: &str = "b=$(($(stat -c %s $file) / 2)); c=$(od -An -tu1 -j$b -N1 $file)
    printf \"\\\\$(printf %03o $((c ^ 1)))\" | dd of=$file bs=1 seek=$b conv=notrunc status=none";
/// Changes a byte in the middle of a checkpoint's weights.
const CHANGED: &str = "printf x |
    dd of=run/ckpt/step-00000004/model.safetensors bs=1 seek=5000 conv=notrunc status=none";

#[rustfmt::skip]
const CASES: &[Case] = &[
    // The command line.
    case("an unknown option", "", "train-stage codec -c codec.yaml --run new --resme", 2, 8,
        &["'--resme'", "'--resume'"]),
    case("an unknown task", "", "train-stage diffusion -c codec.yaml --run new", 2, 8,
        &["'diffusion'", "codec, operator"]),
    // The configuration.
    case("a wrong key", "sed -i 's/floor: 0.1/flor: 0.1/' codec.yaml", NEW, 78, 1,
        &["codec.yaml: loss.flor: unknown key; did you mean floor?"]),
    case("a wrong type", "sed -i 's/batch_size: 4/batch_size: many/' codec.yaml", NEW, 78, 1,
        &["codec.yaml: training.batch_size: expected integer from 1 to 1048576; found the text \"many\""]),
    case("a missing variable", "sed -i 's#split: .*#split: ${NO_SUCH}/split.json#' codec.yaml",
        NEW, 78, 1, &["codec.yaml: data.split: the environment variable NO_SUCH is not set"]),
    case("a variable that YAML takes for a mapping", "sed -i 's#split: .*#split: {a: ${NO_SUCH}/b}#' codec.yaml",
        NEW, 78, 1, &["codec.yaml: ", "put a value with ${…} in quotes"]),
    case("several faults at once",
        "sed -i 's/hidden: 8/hiden: 8/; s/adamw/adamww/; s/size: 4/size: 4.5/' codec.yaml",
        NEW, 78, 5, &["4 problems", "model.hiden: unknown key; did you mean hidden?",
        "model.hidden: missing", "training.batch_size: expected", "did you mean adamw?"]),
    case("no YAML", "echo '{a: [' > codec.yaml", NEW, 78, 2, &["codec.yaml"]),
    case("a missing configuration", "rm codec.yaml", NEW, 66, 1, &["codec.yaml"]),
    case("a schedule that does not add up", "",
        "train-stage codec -c codec.yaml -s 'schedule=[{kind: linear, updates: 9, end_factor: 0}]' \
         --run new", 78, 1, &["schedule: the phases have 9 updates, but training.updates is 4"]),
    // The data.
    case("a missing HDF5 file", "rm $file", NEW, 66, 1, &["split.json", FILE, "No such file"]),
    case("a truncated HDF5 file", "truncate -s -640 $file", NEW, 65, 1,
        &["split.json", FILE, "when it was split"]),
    case("a truncated HDF5 file by itself", "truncate -s -640 $file", "ds-prep ls raw/*",
        65, 1, &[FILE, "not a complete HDF5 file", "truncated"]),
    case("no HDF5 file", "cp codec.yaml text.hdf5", "ds-prep ls text.hdf5", 65, 1, &["text.hdf5"]),
    case("an empty data set", "", "ds-prep check empty.hdf5", 65, 1,
        &["empty.hdf5", "no trajectories"]),
    case("an empty data set to be split", "", "ds-prep split empty.hdf5 -o new.json", 65, 1,
        &["empty.hdf5: no trajectories"]),
    case("an empty training split",
        "ds-prep split raw/* --train 0 --validation 5 --test 5 -o none.json
        sed -i s/split.json/none.json/ codec.yaml", NEW, 65, 1,
        &["none.json", "train split is empty"]),
    case("a NaN, checked", NAN, "ds-prep check raw/*", 65, 1, &[FILE, "NaN", "1 problems"]),
    case("a NaN, measured", NAN, "ds-prep stats split.json", 65, 1, &[FILE]),
    case("a NaN written after the split, trained on", NAN, LONG, 65, 10,
        &[FILE, "the content has changed", "split.json"]),
    case("nothing but NaN, trained on: the data are to blame, not the optimizer", ALL_NAN,
        "train-stage codec -c codec.yaml -s training.updates=72 -s training.batch_size=32 --run new",
        65, 10, &[FILE, "the content has changed", "split.json"]),
    case("a changed number, trained on", FLIP, NEW, 65, 2, &[FILE, "the content has changed"]),
    case("a changed number, found by --check", FLIP,
        "train-stage codec -c codec.yaml --run new --check", 65, 1, &[FILE, "split.json"]),
    case("a changed number, evaluated", FLIP,
        "evaluate score run --data split.json --steps 2 -o result", 65, 2, &[FILE, "split.json"]),
    case("a changed number, encoded", FLIP,
        "latent-cache make run --data split.json -o latents", 65, 1, &[FILE, "split.json"]),
    case("edited statistics", "sed -i '0,/\"std\":/s//\"std\":1/' stats.json", NEW, 65, 1,
        &["stats.json: seal", "ds-prep stats"]),
    case("a missing split manifest", "rm split.json", NEW, 66, 1, &["split.json", "No such file"]),
    case("a split manifest that is none", "echo '{}' > split.json", NEW, 65, 1, &["split.json"]),
    case("missing statistics", "rm stats.json", NEW, 66, 1, &["stats.json", "No such file"]),
    case("statistics of another split", "ds-prep split raw/* --seed 2 -o other.json",
        "train-stage codec -c codec.yaml -s data.split=other.json --run new", 65, 1,
        &["stats.json: made from split", "run `ds-prep stats` again"]),
    case("a patch that does not divide the grid", "",
        "train-stage codec -c codec.yaml -s model.patch=7 --run new", 78, 1,
        &["model.patch", "64"]),
    // The run directory.
    case("a run directory below a file", "", "train-stage codec -c codec.yaml --run codec.yaml/run",
        73, 1, &["codec.yaml/run", "Not a directory"]),
    case("a run directory that cannot be made, found by --check", "",
        "train-stage codec -c codec.yaml --run codec.yaml/run --check", 73, 1, &["codec.yaml/run"]),
    case("--resume never with checkpoints there", "",
        "train-stage codec -c codec.yaml --run run --resume never", 73, 1,
        &["run has checkpoints", "--resume auto"]),
    case("a configuration changed between starts", "",
        "train-stage codec -c codec.yaml --run run -s optimizer.learning_rate=0.01", 78, 3,
        &["run/ckpt/step-00000004", "optimizer.learning_rate: was 0.001, now 0.01"]),
    case("other data than the checkpoint's",
        "ds-prep split raw/* --seed 2 -o new.json; mv new.json split.json; ds-prep stats split.json",
        "train-stage codec -c codec.yaml --run run --resume run/ckpt/step-00000002", 78, 5,
        &["data: hash was", "--accept-config-change"]),
    case("a checkpoint to resume from that is not there", "",
        "train-stage codec -c codec.yaml --run new --resume run/ckpt/step-00000003", 66, 1,
        &["run/ckpt/step-00000003", "no such checkpoint"]),
    case("a damaged checkpoint: the one before is taken",
        "truncate -s -9 run/ckpt/step-00000004/model.safetensors",
        "train-stage codec -c codec.yaml --run run", 0, 3,
        &["skipping checkpoint: run/ckpt/step-00000004: model.safetensors", "update 2 of 4"]),
    case("nothing but damaged checkpoints", "truncate -s -9 run/ckpt/step-*/model.safetensors",
        "train-stage codec -c codec.yaml --run run", 65, 3,
        &["none of the 2 checkpoints in run/ckpt is good"]),
    case("a damaged checkpoint, verified", CHANGED, "ckpt verify run", 65, 1,
        &["step-00000004", "model.safetensors", "changed", "1 of 2 checkpoints"]),
    case("a damaged codec", CHANGED,
        "latent-cache make run/ckpt/step-00000004 --data split.json -o latents", 65, 1,
        &["run/ckpt/step-00000004", "model.safetensors", "changed"]),
    case("no codec", "", "latent-cache make nowhere --data split.json -o latents",
        66, 1, &["nowhere"]),
    case("no checkpoints", "", "ckpt ls nowhere", 66, 1, &["nowhere"]),
    case("a rollout longer than the data", "",
        "evaluate score run --data split.json --steps 9 -o result", 2, 2, &["9"]),
    // Latents.
    case("no latents", "", OPERATOR, 66, 1, &["latents/train"]),
    case("a shard cut short", "$make_latents; truncate -s -64 latents/train/*.safetensors",
        OPERATOR, 65, 1, &["latents/train/shard-00000.safetensors"]),
    case("a shard changed, verified",
        "$make_latents; printf x | dd of=latents/train/shard-00000.safetensors bs=1 seek=2000 \
         conv=notrunc status=none", "latent-cache verify latents/train latents/validation", 65, 1,
        &["shard-00000.safetensors"]),
    case("a shard changed, trained on",
        "$make_latents; printf x | dd of=latents/train/shard-00000.safetensors bs=1 seek=2000 \
         conv=notrunc status=none", OPERATOR, 65, 2,
        &["shard-00000.safetensors: the content has changed", "latent-cache make"]),
    case("edited latent statistics",
        "$make_latents; sed -i '0,/\"std\":/s//\"std\":1/' latents/train/index.json", OPERATOR,
        65, 1, &["latents/train/index.json: seal", "latent-cache make"]),
    case("latents for training in place of those for validation", "$make_latents",
        "train-stage operator -c operator.yaml -s data.validation=latents/train --run new", 78, 1,
        &["data.validation: latents/train contains latents of the train split"]),
    case("latents exchanged, found by --check",
        "$make_latents; mv latents/train x; mv latents/validation latents/train;
        mv x latents/validation", "train-stage operator -c operator.yaml --run new --check", 78, 1,
        &["data.train: latents/train contains latents of the validation split"]),
    case("validation on trajectories that another source is trained on",
        "ds-prep split raw/* --seed 2 -o b.json; ds-prep stats b.json -o b.stats.json",
        "train-stage codec -c codec.yaml -s 'data.additional=[{split: b.json, stats: b.stats.json}]' \
         --run new", 78, 1, &["data.additional[0].split", "both contain trajectory"]),
    case("latents of trajectories that another source is trained on",
        "$make_latents; ds-prep split raw/* --seed 2 -o b.json
        latent-cache make run --data b.json -o b",
        "train-stage operator -c operator.yaml \
         -s 'data.additional=[{train: b/train, validation: b/validation}]' --run new", 78, 1,
        &["data.additional[0]", "both contain trajectory"]),
    case("rollouts longer than the trajectories", "$make_latents",
        "train-stage operator -c operator.yaml -s loss.validation_steps=9 --run new", 78, 1,
        &["9 steps of 1 frames do not fit into the 9 frames of latents/validation"]),
    // Standard output.
    case("a reader that is gone", "",
        "{ sleep 0.2; ds-prep ls split.json; echo $? > status; } | true; exit $(cat status)",
        0, 0, &[]),
    case("no space for the results", "", "ds-prep ls split.json > /dev/full", 74, 1,
        &["standard output", "No space left"]),
];

/// As above, with a small or a read-only file system mounted at `disk`, with these mount options.
#[rustfmt::skip]
const ON_A_DISK: &[(&str, Case)] = &[
    ("ro", case("a read-only run directory", "",
        "train-stage codec -c codec.yaml --run disk/run", 73, 1,
        &["disk/run", "Read-only file system"])),
    ("ro", case("a read-only folder for latents", "",
        "latent-cache make run --data split.json -o disk/latents", 73, 1,
        &["disk/latents", "Read-only file system"])),
    ("size=40k", case("no space for checkpoints", "",
        "train-stage codec -c codec.yaml --run disk/run", 73, 2,
        &["disk/run/ckpt/step-00000000", "free"])),
    ("size=40k", case("no space for checkpoints, found by --check", "",
        "train-stage codec -c codec.yaml --run disk/run --check", 73, 1,
        &["disk/run/ckpt", "free"])),
    ("size=4k", case("no space at all", "",
        "train-stage codec -c codec.yaml --run disk/run", 73, 1, &["disk/run", "free"])),
    ("size=20k", case("no space for a data set", "",
        "ds-prep gen burgers --parameter 1 --samples 10 --grid 64 --frames 9 -o disk/raw", 73, 1,
        &["disk/raw", "free"])),
];

/// A data set with its split and statistics, a file without trajectories, and a trained codec with two checkpoints.
static FIXTURE: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "\
data:
  split: split.json
  stats: stats.json
model: {patch: 8, latent: 4, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {floor: 0.1}
training: {updates: 4, batch_size: 4, validation_samples: 4}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 2}
";
    fs::write(folder.path().join("codec.yaml"), yaml).unwrap();
    let yaml = "\
data: {train: latents/train, validation: latents/validation}
model: {backbone: {kind: pdet_stack, hidden: 8, depth: 1, kernel_size: 3}}
loss: {validation_steps: 2}
training: {updates: 4, batch_size: 4}
optimizer: {method: {kind: sgd}, learning_rate: 1e-3}
";
    fs::write(folder.path().join("operator.yaml"), yaml).unwrap();
    let output = shell(
        folder.path(),
        "ds-prep gen burgers --parameter 0.01,0.1 --samples 10 --grid 64 --frames 9 --seed 1 -o raw
        ds-prep split raw/* --seed 1
        ds-prep stats split.json
        train-stage codec -c codec.yaml --run run",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let shape = Shape { trajectories: 0, frames: 3, grid: vec![64], channels: 1 };
    let [x, t] = [64, 3].map(|n| (0..n).map(f64::from).collect());
    let header =
        Header { attributes: vec![("Nu".into(), 0.1.into())], ..Header::tensor(shape, vec![x], t) };
    write_field(&folder.path().join("empty.hdf5"), &header, |_| Ok(())).unwrap();
    folder
});

/// Causes the error in a copy of the fixture, runs the command, and compares the outcome with the expected one.
fn check(case: &Case, wrap: impl Fn(&str) -> String) -> Vec<String> {
    let copy = tempfile::tempdir().unwrap();
    let folder = copy.path();
    let from = FIXTURE.path().display();
    let planted = shell(folder, &format!("{VARIABLES}; cp -a {from}/. .\n{}", case.plant));
    assert_eq!(planted.status, Some(0), "{}: {}", case.name, planted.stderr);
    faults(case, &shell(folder, &wrap(case.command)))
}

fn faults(case: &Case, output: &Captured) -> Vec<String> {
    let Captured { status, stdout, stderr } = output;
    let mut faults = Vec::new();
    let mut fault = |what: String| faults.push(format!("{}: {what}\n{stdout}{stderr}", case.name));
    if *status != Some(case.status) {
        fault(format!("exit status {status:?}, expected {}", case.status));
    }
    for words in
        case.says.iter().filter(|words| !stdout.contains(**words) && !stderr.contains(**words))
    {
        fault(format!("does not say {words:?}"));
    }
    for word in ["panicked", "RUST_BACKTRACE", "internal error"] {
        if stderr.contains(word) {
            fault(format!("says {word:?}"));
        }
    }
    let program = case.command.split(' ').next().unwrap_or_default();
    if !stderr.is_empty() && !stderr.starts_with(&format!("{program}: ")) {
        fault("stderr does not begin with the name of the program".into());
    }
    if stderr.lines().count() > case.lines {
        fault(format!("{} lines on stderr, {} expected", stderr.lines().count(), case.lines));
    }
    faults
}

#[test]
fn every_fault_is_one_clear_error() {
    let faults: Vec<String> = CASES.iter().flat_map(|case| check(case, str::to_string)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn full_and_read_only_disks_are_clear_errors() {
    // In a separate mount namespace, so that nothing stays mounted whatever happens.
    let mount = |options: &str, command: &str| {
        format!(
            "mkdir -p disk; exec unshare --map-root-user --mount sh -euc \
             'mount -t tmpfs -o {options} none disk; exec {command}'"
        )
    };
    let folder = tempfile::tempdir().unwrap();
    if shell(folder.path(), &mount("size=4k", "true")).status != Some(0) {
        test_support::skip("no file system can be mounted here (requires root or user namespaces)");
        return;
    }
    let faults = ON_A_DISK.iter().flat_map(|(options, case)| check(case, |c| mount(options, c)));
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
