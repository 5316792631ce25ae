//! End-to-end tests of `evaluate`, on small data and models that the other programs made.

mod amp;
mod every_task;
mod export;
mod interrupted;
mod numbers;
mod plots;
mod predictions;
mod results;
mod views;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::common::{Captured, run, shell};
use serde_json::Value;
use tempfile::TempDir;

/// Data at two viscosities, a codec, another codec, and an operator that was trained with such a small rate that it is
/// still its initial state: the identity.
const MAKE: &str = r#"
ds-prep gen burgers --parameter 0.01,0.1 --samples 10 --grid 72 --frames 21 --seed 1 -o data
ds-prep split data/*.hdf5 --seed 1 --train 60% --validation 20% --test 20% -o data/split.json
ds-prep stats data/split.json
cat > codec.yaml <<'END'
data: {split: data/split.json, stats: data/stats.json}
model: {patch: 8, latent: 4, hidden: 12, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 20, batch_size: 8, ema: 0.9, validate_every: 10}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
END
train-stage codec -c codec.yaml --run codec
train-stage codec -c codec.yaml -s seed=5 --run other-codec
latent-cache make codec --data data/split.json -o latents
cat > operator.yaml <<'END'
data: {train: latents/train, validation: latents/validation, strides: [1, 2]}
model: {backbone: {kind: pdet_stack, hidden: 8, depth: 1, kernel_size: 3}}
loss: {validation_steps: 4}
training: {updates: 2, batch_size: 8}
optimizer: {method: {kind: adamw}, learning_rate: 1e-30}
END
train-stage operator -c operator.yaml --run operator
"#;

fn world() -> &'static Path {
    static WORLD: OnceLock<TempDir> = OnceLock::new();
    let folder = WORLD.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let output = shell(folder.path(), MAKE);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        folder
    });
    folder.path()
}

/// Runs `evaluate` on that data.
fn evaluate(words: &str) -> Captured {
    shell(world(), &format!("evaluate score {words} --data data/split.json"))
}

fn json(file: &str) -> Value {
    let path = world().join(file);
    serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
}

/// A metric of a method over all samples or those of a group.
fn metric(scores: &Value, method: &str, name: &str) -> f64 {
    let value = &scores["methods"][method][name]["value"];
    value.as_f64().unwrap_or_else(|| panic!("{method} {name} is {value}"))
}

#[test]
fn threads_change_nothing() {
    for threads in [1, 3] {
        let words = format!("operator --steps 4 --views 3 --threads {threads}");
        let output = evaluate(&format!("{words} -o threads-{threads}"));
        assert_eq!(output.status, Some(0), "{}", output.stderr);
    }
    for file in ["metrics.json", "metrics.csv", "pictures/nu-0.1.png"] {
        let [a, b] = [1, 3].map(|n| fs::read(world().join(format!("threads-{n}/{file}"))).unwrap());
        assert!(a == b, "{file} depends on the number of threads");
    }
}

#[test]
fn a_codec_alone_is_compared_with_persistence() {
    let output = evaluate("codec --steps 2 --weights raw --max-trajectories 1 -o alone --json");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let row: Value = serde_json::from_str(output.stdout.lines().next().unwrap()).unwrap();
    assert!(row["operator"].is_null() && row["ratio"].is_null());
    assert!(row["codec"].as_f64() < row["mean"].as_f64());
    let metrics = json("alone/metrics.json");
    assert_eq!(metrics["protocol"]["trajectories"], 2);
    assert_eq!(metrics["models"]["codec"]["weights"], "raw");
    assert!(metrics["models"]["operator"].is_null());
    assert!(metrics["methods"]["codec"]["latent.nrmse"].is_null());
}

#[test]
fn a_split_other_than_the_codecs_gives_a_warning() {
    let again =
        "ds-prep split data/*.hdf5 --seed 2 --train 2 --validation 2 --test 6 -o data/again.json";
    assert_eq!(shell(world(), again).status, Some(0));
    let words = "evaluate score operator --steps 2 --starts 1";
    for (split, warned) in [("split", false), ("again", true)] {
        let output = shell(world(), &format!("{words} --data data/{split}.json -o of-{split}"));
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        assert_eq!(
            output.stderr.contains("warning: the codec was trained on different data"),
            warned
        );
    }
}

#[test]
fn earlier_results_are_only_replaced_on_request() {
    let words = "codec --steps 1 --starts 1 -o earlier";
    assert_eq!(evaluate(words).status, Some(0));
    let before = fs::read(world().join("earlier/metrics.json")).unwrap();
    let output = evaluate(&format!("{words} --stride 3"));
    assert_eq!(output.status, Some(73), "{}", output.stderr);
    assert!(output.stderr.contains("--force"), "{}", output.stderr);
    assert_eq!(fs::read(world().join("earlier/metrics.json")).unwrap(), before);
    assert_eq!(evaluate(&format!("{words} --stride 3 --force")).status, Some(0));
    assert_ne!(fs::read(world().join("earlier/metrics.json")).unwrap(), before);
}

/// Folders of latents and evaluations have the same states as runs.
#[test]
fn timekeep_reports_finished_and_failed_evaluations() {
    fs::create_dir(world().join("failed")).unwrap();
    assert_eq!(evaluate("nowhere -o failed").status, Some(66));
    assert_eq!(evaluate("codec --steps 4 -o done").status, Some(0));
    let expected = Command::new(env!("CARGO_BIN_EXE_timekeep"))
        .args(["status", "--json", "latents", "done", "failed"])
        .current_dir(world())
        .output()
        .unwrap();
    let text = String::from_utf8(expected.stdout).unwrap();
    let runs: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stands: Vec<_> = runs.iter().map(|run| [&run["task"], &run["state"]]).collect();
    assert_eq!(
        stands,
        [["latents", "finished"], ["evaluation", "finished"], ["evaluation", "failed"]]
    );
    assert!(runs[..2].iter().all(|run| run["update"].as_u64().unwrap() > 0), "{text}");
    assert!(runs[..2].iter().all(|run| run["update"] == run["updates"]), "{text}");
    assert!(runs[2]["reason"].as_str().unwrap().contains("nowhere"), "{text}");
    // After the fix it completes in the same folder.
    assert_eq!(evaluate("codec --steps 4 -o failed").status, Some(0));
}

/// SIGTERM, SIGINT and the others: it ends soon, writes nothing, and can be restarted.
#[test]
fn a_signal_ends_it_with_75_and_leaves_nothing() {
    // Enough rollouts that a signal arrives long before they are done.
    let made = shell(
        world(),
        "ds-prep gen burgers --parameter 0.01,0.1 --samples 300 --grid 72 --frames 21 --seed 2 -o many
         ds-prep split many/*.hdf5 --seed 1 --train 1% --validation 1% --test 98% -o many/split.json",
    );
    assert_eq!(made.status, Some(0), "{}", made.stderr);
    let stopped = |signal: &str, to: &str| {
        let mut evaluate = Command::new(env!("CARGO_BIN_EXE_evaluate"));
        evaluate.args(["score", "operator", "--data", "many/split.json"]);
        evaluate.args(["--steps", "4", "--starts", "0", "-o", to]).current_dir(world());
        let mut evaluate = run::spawn(world(), evaluate);
        evaluate.wait_for_handlers();
        if evaluate.is_alive() {
            evaluate.signal(signal);
        }
        evaluate.end()
    };
    for signal in ["TERM", "INT", "HUP", "USR1"] {
        // On a machine under load this test may itself be delayed.
        let mut tries = (0..20).map(|n| format!("told-{signal}-{n}"));
        let expected = tries.find_map(|to| {
            let (status, stderr) = stopped(signal, &to);
            assert!(status == Some(75) || status == Some(0), "{signal}: {status:?} {stderr}");
            (status == Some(75)).then_some((to, stderr))
        });
        let (to, stderr) = expected.expect("it was always faster than the signal");
        assert!(
            stderr
                .contains(&format!("stopped by SIG{signal}; run the same command again to resume")),
            "{stderr}"
        );
        assert!(!world().join(&to).join("metrics.json").exists(), "{signal}");
        if signal == "USR1" {
            let words = "operator --steps 4 --starts 0";
            assert_eq!(evaluate(&format!("{words} -o {to}")).status, Some(0));
        }
    }
}

#[test]
fn rollouts_that_do_not_fit_are_refused_before_models_exist() {
    // 21 frames, strides 1 and 2, 4 steps per validation.
    let check = |words: &str| {
        shell(world(), &format!("evaluate check -c operator.yaml --data data/split.json {words}"))
    };
    let output = check("--steps 10");
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    // 20 steps of one frame fit from the first frame, 16 from the fifth.
    let output = check("--steps 8 --from 4");
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    for words in ["--steps 11", "--steps 10 --stride 3", "--steps 8 --from 5", "--from 21"] {
        let output = check(words);
        assert_eq!(output.status, Some(2), "{words}");
        assert!(
            output.stderr.contains("do not fit into trajectories of 21 frames"),
            "{}",
            output.stderr
        );
    }
    for (key, split) in [("horizons: [1, 11]", "train"), ("validation_steps: 11", "validation")] {
        let file = format!("{split}.yaml");
        let text = fs::read_to_string(world().join("operator.yaml")).unwrap();
        fs::write(world().join(&file), text.replace("validation_steps: 4", key)).unwrap();
        let words = format!("evaluate check -c {file} --data data/split.json --steps 1");
        let output = shell(world(), &words);
        let expected = format!("split.json, {split}: ");
        assert!(output.status == Some(2) && output.stderr.contains(&expected), "{}", output.stderr);
    }
}

#[test]
fn models_that_do_not_belong_together_are_refused() {
    for (words, status, says) in [
        ("operator --with codec=other-codec", 65, "trained with a different codec"),
        ("operator --with codec=operator", 65, "task operator, expected codec"),
        ("operator --with codec=nowhere", 66, "--with codec=RUN"),
        ("codec --with codec=codec", 2, "does not need a codec"),
        ("nowhere", 66, "nowhere"),
        ("codec --steps 20 --stride 2", 2, "do not fit"),
        ("codec --steps 0", 2, "do not fit"),
        ("codec --split tests", 2, "validation"),
    ] {
        let output = evaluate(&format!("{words} -o refused"));
        assert_eq!(output.status, Some(status), "{words}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{words}: {}", output.stderr);
        assert!(!world().join("refused").exists(), "{words}");
    }
}

#[test]
fn a_damaged_best_checkpoint_falls_back_to_the_newest_good_one() {
    let damage = r#"
cp -r codec damaged
best=damaged/ckpt/$(readlink damaged/ckpt/best)
printf x | dd of="$best/ema.safetensors" bs=1 seek=900 conv=notrunc status=none
echo "$best"
"#;
    let made = shell(world(), damage);
    assert_eq!(made.status, Some(0), "{}", made.stderr);
    let best = Path::new(made.stdout.trim());
    let output = evaluate("damaged --steps 1 -o passed-over");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("ema.safetensors"), "{}", output.stderr);
    let used = json("passed-over/metrics.json")["models"]["codec"]["checkpoint"].clone();
    assert!(used != best.to_str().unwrap(), "{used}");
    // When no other checkpoint is left, there is nothing to evaluate.
    fs::remove_dir_all(world().join(used.as_str().unwrap())).unwrap();
    let output = evaluate("damaged --steps 1 -o nothing");
    assert_eq!(output.status, Some(65), "{}", output.stderr);
    assert!(output.stderr.contains("ema.safetensors"), "{}", output.stderr);
}

/// The codec is looked up where it was when the latents were made; if it was moved, `--with` names its new place.
#[test]
fn a_moved_codec_is_named_by_with() {
    // In a separate folder, with a codec that was trained and moved there.
    let moved = r#"
mkdir apart
cp -r codec apart/codec
latent-cache make apart/codec --data data/split.json -o apart/latents
train-stage operator -c operator.yaml -s data.train=apart/latents/train \
    -s data.validation=apart/latents/validation --run apart/operator
mv apart/codec apart/moved
"#;
    assert_eq!(shell(world(), moved).status, Some(0));
    let missing = evaluate("apart/operator --steps 2 -o of-moved");
    let found = evaluate("apart/operator --steps 2 -o of-moved --with codec=apart/moved");
    assert_eq!(missing.status, Some(66), "{}", missing.stderr);
    assert!(missing.stderr.contains("--with codec=RUN"), "{}", missing.stderr);
    assert_eq!(found.status, Some(0), "{}", found.stderr);
    let used = json("of-moved/metrics.json")["models"]["codec"]["checkpoint"].clone();
    assert!(used.as_str().unwrap().starts_with("apart/moved/ckpt"), "{used}");
}
