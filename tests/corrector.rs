//! Correctors, their students and critics: resumed they end with the same bits, they correct and rank what they were
//! trained for, and other operators, teachers and latents are refused.

use crate::common::run::{newest_update, records};
use crate::common::{Captured, shell};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use test_support::{Random, logged, seed};

const CORRECTOR: &str = "seed: 3
data: {operator: operator, train: latents/train, validation: latents/validation, random_shift: true}
model: {backbone: {kind: mlp, hidden: 24}, condition: concatenated}
loss: {closed_loop: 1, validation_steps: 2, validation_members: 2, sampling: {churn: {amount: 1}}}
training: {updates: 90, batch_size: 8, ema: 0.9, validate_every: 30, validation_samples: 4, log_every: 1}
optimizer: {method: {kind: adamw}, learning_rate: 3e-3}
checkpoint: {every: 10}
";

const DISTILL: &str = "seed: 4
data: {corrector: corrector, train: latents/train, validation: latents/validation}
model: {steps: 2}
loss: {intervals: [4, 8], validation_steps: 2, validation_members: 2}
training: {updates: 60, batch_size: 8, ema: 0.9, validate_every: 30, validation_samples: 4, log_every: 1}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 10}
";

const CRITIC: &str = "seed: 5
data: {corrector: corrector, train: latents/train, validation: latents/validation}
model: {backbone: {kind: pdet_stack, hidden: 16, depth: 1, kernel_size: 3}}
loss: {validation_steps: 2, validation_members: 4}
training: {updates: 150, batch_size: 8, ema: 0.9, validate_every: 50, validation_samples: 8, log_every: 1}
optimizer: {method: {kind: adamw}, learning_rate: 3e-3}
checkpoint: {every: 10}
";

/// Fields, a codec, latents and an operator; and an operator that has not seen one of two folds, for each of them.
fn prepare(folder: &Path) {
    let files = [("corrector.yaml", CORRECTOR), ("distill.yaml", DISTILL), ("critic.yaml", CRITIC)];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    succeed(
        folder,
        "ds-prep gen burgers --parameter 0.01,0.1 --samples 10 --grid 64 --frames 21 --seed 5 -o data
         ds-prep split data/*.hdf5 --seed 5 -o split.json
         ds-prep stats split.json -o stats.json
         cat > codec.yaml <<'END'
         data: {split: split.json, stats: stats.json}
         model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}
         loss: {}
         training: {updates: 60, batch_size: 8}
         optimizer: {method: {kind: adamw}, learning_rate: 3e-3}
END
         cat > operator.yaml <<'END'
         seed: 3
         data: {train: latents/train, validation: latents/validation}
         model: {backbone: {kind: pdet_stack, hidden: 16, depth: 1, kernel_size: 3}}
         loss: {validation_steps: 2}
         training: {updates: 60, batch_size: 8}
         optimizer: {method: {kind: adamw}, learning_rate: 3e-3}
END
         train-stage codec -c codec.yaml --run codec
         latent-cache make codec --data split.json -o latents
         train-stage operator -c operator.yaml --run operator
         for fold in 0 1; do
           train-stage operator -c operator.yaml -s data.held_out.folds=2 -s data.held_out.fold=$fold --run fold-$fold
         done",
    );
}

fn succeed(folder: &Path, script: &str) -> Captured {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    output
}

/// The log, and hashes of the tensors of the last checkpoint.
fn outcome(folder: &Path, run: &str, last: u64) -> (Vec<String>, Vec<String>) {
    let checkpoint = folder.join(run).join(format!("ckpt/step-{last:08}"));
    let files = std::fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let mut hashes: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .map(|path| format!("{:?} {}", path.file_name(), unix::publish::hash_file(&path).unwrap()))
        .collect();
    hashes.sort();
    (logged(&folder.join(run)), hashes)
}

/// Kills a run a few times at random moments; it ends as `whole` did.
fn killed_it_ends_with_the_same_bits(folder: &Path, task: &str, whole: &str, updates: u64) {
    let seed = seed();
    let mut random = Random(seed);
    let (mut killed, mut runs, mut target) = (0, 0, 0);
    let mut name = String::new();
    while killed < 3 {
        if target == 0 || newest_update(&folder.join(&name)) >= updates {
            runs += 1;
            assert!(runs < 20, "seed {seed}: only {killed} attempts could be killed");
            (name, target) = (format!("{task}-killed-{runs}"), 0);
        }
        target += 1 + (0.3 * updates as f64 * random.uniform()) as u64;
        let mut child = Command::new(env!("CARGO_BIN_EXE_train-stage"))
            .args([task, "-c", &format!("{task}.yaml"), "--run", &name])
            .current_dir(folder)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while newest_update(&folder.join(&name)) < target && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "seed {seed}: no update {target} of {name}");
            std::thread::sleep(Duration::from_millis(1));
        }
        killed += usize::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    succeed(folder, &format!("train-stage {task} -c {task}.yaml --run {name}"));
    let same = outcome(folder, whole, updates) == outcome(folder, &name, updates);
    assert!(same, "seed {seed}: {name} ended differently");
}

/// One line that contains `words`, and status `status`.
fn refused(folder: &Path, script: &str, status: i32, words: &str) {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(status), "{script}: {}", output.stderr);
    let errors: Vec<&str> = output.stderr.lines().filter(|line| line.contains(words)).collect();
    assert_eq!(errors.len(), 1, "{script}: {}", output.stderr);
}

fn metrics(folder: &Path, report: &str) -> Value {
    let text = std::fs::read(folder.join(report).join("metrics.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// The last validation of a run.
fn validated(folder: &Path, run: &str) -> Value {
    let log = records(&folder.join(run));
    log.iter().rev().find(|record| record["kind"] == "validation").unwrap().clone()
}

/// A critic ranks the candidates of a corrector, and a search by it gives the same numbers on any number of threads and
/// after an interruption.
fn a_critic_ranks_candidates(folder: &Path, score: &str) {
    succeed(folder, "train-stage critic -c critic.yaml --run critic");
    killed_it_ends_with_the_same_bits(folder, "critic", "critic", 150);
    // By chance it would be 0, with a standard deviation of 1/√(3·16) = 0.14 over 16 states of 4 candidates.
    let last = validated(folder, "critic");
    assert!(last["rank_correlation"].as_f64() > Some(0.3), "{last}");

    let search = format!("{score} corrector --search enhanced --candidates 3 --beam 2");
    let by_critic = format!("{search} --reward critic --critic");
    succeed(folder, &format!("{by_critic} critic -o by-critic --threads 1"));
    let report = metrics(folder, "by-critic");
    assert_eq!(report["settings"]["search"]["reward"], "critic");
    assert!(report["models"]["critic"]["blake3"].is_string(), "{}", report["models"]);
    let rank = &report["methods"]["search"]["reward_rank_correlation"]["value"];
    assert!(rank.as_f64() > Some(0.1), "{rank}");
    let times = std::fs::read(folder.join("by-critic/times.json")).unwrap();
    let times: Value = serde_json::from_slice(&times).unwrap();
    assert!(times["operator_evaluations_per_reward"].as_f64() > Some(0.0), "{times}");
    let again = format!("{by_critic} critic -o critic-killed --threads 2");
    let killed = shell(folder, &format!("FAIL=save.after_shard:1=kill {again}"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    succeed(folder, &again);
    let [whole, killed] = ["by-critic", "critic-killed"]
        .map(|report| std::fs::read(folder.join(report).join("metrics.csv")).unwrap());
    assert_eq!(whole, killed);
    // The rewards of a rollout do not depend on the others: matrix products of other sizes only round differently.
    succeed(folder, &format!("{by_critic} critic -o critic-one --starts 1"));
    let first = |report: &str| {
        let of_starts = &metrics(folder, report)["details"]["parameters"][1]["by_start"];
        of_starts["search"][0].as_f64().unwrap()
    };
    let ratio = first("critic-one") / first("by-critic");
    assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");

    // Candidates of a student, and of an operator that is told guesses of the parameter.
    let train = "train-stage critic -c critic.yaml -s training.updates=20";
    succeed(folder, &format!("{train} -s data.corrector=distill --run of-student"));
    let guesses = "--search default --reward critic --critic of-student";
    succeed(folder, &format!("{score} operator {guesses} -o guessed-by-critic"));

    let other = format!("{score} of-other -o x --search default --reward critic --critic critic");
    refused(folder, &other, 65, "a critic of another operator");
    refused(folder, &format!("{by_critic} corrector -o x"), 65, "expected critic");
    refused(folder, &format!("{search} -o x --reward critic"), 2, "add --critic");
    refused(folder, &format!("{search} -o x --critic critic"), 2, "add --reward critic");
    refused(folder, &format!("{score} critic -o x"), 2, "a critic predicts no fields");
    let predict = "evaluate predict critic --inputs data/*0.1.hdf5 -o x.hdf5";
    refused(folder, predict, 2, "a critic predicts no fields");
    let operator = format!("{train} --run x -s data.corrector=operator");
    refused(folder, &operator, 65, "expected corrector or distill");
    refused(folder, &format!("{train} --run x -s data.corrector=zero"), 78, "are all equal");
    succeed(folder, "mv corrector kept && cp -r crossed corrector");
    let student = format!("{train} --run x -s data.corrector=distill");
    refused(folder, &student, 65, "the student of another corrector");
    succeed(folder, "rm -r corrector && mv kept corrector");
}

#[test]
fn correctors_and_students_resume_to_the_bit_and_know_what_they_belong_to() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    succeed(folder, "train-stage corrector -c corrector.yaml --run corrector");
    killed_it_ends_with_the_same_bits(folder, "corrector", "corrector", 90);
    succeed(folder, "train-stage distill -c distill.yaml --run distill");
    killed_it_ends_with_the_same_bits(folder, "distill", "distill", 60);

    // Residuals on data that the operators have not seen.
    succeed(
        folder,
        "train-stage corrector -c corrector.yaml -s 'data.cross_fit=[fold-0, fold-1]' --run crossed",
    );
    let last = validated(folder, "crossed");
    assert!(last["residual_rms_unseen"].as_f64() > Some(0.0), "{last}");

    // The student beside its teacher and their operator; views of the student.
    let score = "evaluate score --data split.json --steps 3";
    succeed(folder, &format!("{score} distill -o student --views 2"));
    let report = metrics(folder, "student");
    let field = &report["methods"];
    for model in ["student", "corrector", "operator", "views", "persistence"] {
        assert!(field[model]["nrmse"]["value"].as_f64() > Some(0.0), "{model}: {field}");
    }
    let evaluations = |model: &str| field[model]["denoiser_evaluations_per_step"]["value"].clone();
    assert_eq!([evaluations("student"), evaluations("views")], [2.0, 4.0]);
    // The noise of a rollout depends neither on the other rollouts nor on threads.
    let of_first_start = |report: &str| {
        let of_starts = &metrics(folder, report)["details"]["parameters"][1]["by_start"];
        of_starts["corrector"][0].as_f64().unwrap()
    };
    succeed(folder, &format!("{score} corrector --starts 2 -o two --threads 1"));
    succeed(folder, &format!("{score} corrector --starts 1 -o one --threads 2"));
    // Matrix products of other sizes round differently; other noise would change every digit.
    let ratio = of_first_start("one") / of_first_start("two");
    assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");

    // An ensemble: its members differ, and a student keeps the spread of its teacher.
    let spread = |run: &str| {
        succeed(folder, &format!("{score} {run} -o {run}-members --members 4"));
        let report = metrics(folder, &format!("{run}-members"));
        let ensemble = &report["methods"]["ensemble"];
        assert!(ensemble["energy_score"]["value"].as_f64() > Some(0.0), "{ensemble}");
        ensemble["spread_skill"]["value"].as_f64().unwrap()
    };
    let (teacher, student) = (spread("corrector"), spread("distill"));
    assert!(student > 0.3 * teacher && teacher > 0.0, "{student} {teacher}");
    refused(folder, &format!("{score} operator -o x --members 2"), 2, "--members");

    // A search among samples: beside it what costs as much, and the best that any reward could choose.
    let options = "--search enhanced --candidates 3 --beam 2 --reward solver --budget 27";
    succeed(folder, &format!("{score} corrector -o searched {options}"));
    let field = metrics(folder, "searched")["methods"].clone();
    let first = |model: &str| field[model]["rmse"]["by_step"][1].as_f64().unwrap();
    // Of the first step: later ones start from other states. The mean may be better than any candidate.
    assert!(first("oracle") <= first("corrector") && first("oracle") <= first("search"));
    assert!(first("candidate_mean").is_finite() && first("search") < first("corrector"));
    // Three candidates, then three for each of two paths, at three steps.
    let evaluations = &field["search"]["denoiser_evaluations_per_step"]["value"];
    assert_eq!(*evaluations, 2.0 * 9.0, "{field}");
    let rank = field["search"]["reward_rank_correlation"]["value"].as_f64().unwrap();
    assert!(rank > 0.3, "{rank}");
    // Penalties change what is chosen, not what there is to choose from.
    succeed(folder, &format!("{score} corrector -o penalised {options} --penalty 10"));
    let penalised = metrics(folder, "penalised")["methods"].clone();
    assert_ne!(penalised["search"], field["search"]);
    assert_eq!(penalised["oracle"], field["oracle"]);
    let share = field["search"]["oracle_gain_captured"]["value"].as_f64();
    let gain = |model: &str| {
        let of = |model: &str| field[model]["nrmse"]["value"].as_f64().unwrap();
        of("operator") - of(model)
    };
    let expected = (gain("oracle") > 0.0).then(|| gain("search") / gain("oracle"));
    assert_eq!(share, expected);
    // Views of a search.
    succeed(folder, &format!("{score} corrector -o viewed {options} --views 2"));
    let viewed = metrics(folder, "viewed")["methods"].clone();
    assert_eq!(viewed["search"], field["search"]);
    let evaluations = &viewed["search_views"]["denoiser_evaluations_per_step"]["value"];
    assert_eq!(*evaluations, 2.0 * 2.0 * 9.0);
    assert_ne!(viewed["search_views"]["rmse"], field["search"]["rmse"]);
    // Killed after the first regime and started again, with everything at once.
    let all = format!("{score} corrector {options} --views 2 --members 3");
    succeed(folder, &format!("{all} -o whole"));
    let killed = shell(folder, &format!("FAIL=save.after_shard:1=kill {all} -o killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    assert!(folder.join("killed/partial.json").exists());
    succeed(folder, &format!("{all} -o killed"));
    let [whole, killed] = ["whole", "killed"]
        .map(|report| std::fs::read(folder.join(report).join("metrics.csv")).unwrap());
    assert_eq!(whole, killed);
    // The candidates of an operator are its predictions for each parameter value.
    succeed(folder, &format!("{score} operator -o guessed --search default --reward solver"));
    let guessed = metrics(folder, "guessed")["methods"].clone();
    assert_eq!(guessed["search"]["evaluations_per_step"]["value"], 2.0);
    let first = |model: &str| guessed[model]["rmse"]["by_step"][1].as_f64().unwrap();
    // One of the guesses is true; its prediction is that of the operator, up to the rounding of larger products.
    assert!(first("oracle") <= 1.0001 * first("operator") && first("oracle") <= first("search"));
    let times = std::fs::read(folder.join("guessed/times.json")).unwrap();
    let times: Value = serde_json::from_slice(&times).unwrap();
    assert!(times["operator_evaluations_per_reward"].as_f64() > Some(0.0), "{times}");
    let one =
        "ds-prep gen burgers --parameter 0.1 --samples 10 --grid 64 --frames 21 --seed 6 -o one
               ds-prep split one/*.hdf5 -o one.json && ds-prep stats one.json -o one-stats.json";
    succeed(folder, one);
    let of_one = "evaluate score operator --data one.json --steps 3 -o x --search default";
    refused(folder, of_one, 2, "the data has only one parameter value");
    refused(folder, &format!("{score} corrector -o x --search default --budget 0"), 2, "--budget");

    // Without steps a corrector is its operator, bit for bit.
    succeed(
        folder,
        "train-stage corrector -c corrector.yaml -s loss.sampling.steps=0 -s training.updates=20 --run zero",
    );
    succeed(folder, &format!("{score} zero -o zero-score"));
    let field = metrics(folder, "zero-score")["methods"].clone();
    assert_eq!(field["corrector"], field["operator"]);

    // Other operators, teachers and latents.
    succeed(
        folder,
        "train-stage operator -c operator.yaml -s seed=9 --run other
         train-stage corrector -c corrector.yaml -s data.operator=other -s training.updates=10 --run of-other
         train-stage codec -c codec.yaml -s seed=9 --run codec-2
         latent-cache make codec-2 --data split.json -o latents-2",
    );
    let other = format!("{score} corrector --with operator=other -o x");
    refused(folder, &other, 65, "trained with a different operator");
    let other = format!("{score} distill --with corrector=of-other -o x");
    refused(folder, &other, 65, "trained with a different corrector");
    let train = "train-stage corrector -c corrector.yaml --run x";
    let latents = format!("{train} -s data.train=latents-2/train");
    refused(folder, &latents, 65, "latents of another codec");
    refused(
        folder,
        &format!("{train} -s data.operator=codec"),
        65,
        "task codec, expected operator",
    );
    refused(folder, &format!("{train} -s 'data.cross_fit=[other]'"), 78, "data.held_out");
    let train = "train-stage distill -c distill.yaml --run x";
    refused(folder, &format!("{train} -s data.corrector=operator"), 65, "expected corrector");
    a_critic_ranks_candidates(folder, score);
    // The operator was replaced after the corrector was trained.
    succeed(folder, "rm -r operator && cp -r other operator");
    refused(folder, train, 65, "corrects another operator");
}
