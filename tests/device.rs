//! Training on a device: losses follow those of the CPU, and the bits do not depend on how a forward and backward pass
//! is executed. On the emulator, or with LONGHAUL_TEST_DEVICE=cuda on a GPU (`make gpu-test`).

use crate::common::run::{records, spawn};
use crate::common::{Captured, programs, shell};
use std::path::Path;
use std::process::Command;
use test_support::{Random, seed};

/// The value of `--device`.
fn device() -> String {
    std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "emu".into())
}

/// Latents of a small codec, and the configuration of an operator with two blocks for them.
fn prepare() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "codec.yaml",
        "data: {split: split.json, stats: stats.json}
model: {patch: 8, latent: 3, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {reencoding: 0.1}
training: {updates: 20, batch_size: 5, log_every: 1, validate_every: 20, validation_samples: 8}
optimizer: {method: {kind: sgd, momentum: 0.9}, learning_rate: 1e-2}
",
    );
    write(
        "operator.yaml",
        "data: {train: latents/train, validation: latents/validation, random_shift: true}
model:
  backbone: {kind: pdet_stack, hidden: 12, depth: 2, kernel_size: 3, attention: {kind: multi_head, heads: 2}}
  condition_width: 5
loss: {horizons: [1, 2], validation_steps: 3, spectrum: 0.1}
training: {updates: 20, batch_size: 3, log_every: 1, validate_every: 10, validation_samples: 4, ema: 0.9,
  clip_grad_norm: 1.0}
optimizer: {method: {kind: adamw}, learning_rate: 2e-3}
checkpoint: {every: 5, keep_last: 9}
",
    );
    let output = shell(
        folder.path(),
        "ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 11 --seed 5 -o data
         ds-prep split data/*.hdf5 --seed 5 -o split.json
         ds-prep stats split.json -o stats.json
         train-stage codec -c codec.yaml --run codec --device cpu
         latent-cache make codec --data split.json --output latents",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    folder
}

/// A run on [`device`].
fn train(folder: &Path, run: &str, words: &str) -> Captured {
    train_on(&device(), folder, run, words)
}

fn train_on(device: &str, folder: &Path, run: &str, words: &str) -> Captured {
    let words = format!("--run {run} --device {device} {words}");
    let output = shell(folder, &format!("train-stage operator -c operator.yaml {words}"));
    assert!(output.status == Some(0) || output.status == Some(75), "{words}: {}", output.stderr);
    output
}

/// The losses of all updates.
fn losses(folder: &Path, run: &str) -> Vec<f64> {
    let updates = records(&folder.join(run)).into_iter().filter(|r| r["kind"] == "update");
    updates.map(|record| record["loss"].as_f64().unwrap()).collect()
}

/// The bytes of the parameters, their average and the optimizer state at the end.
fn outcome(folder: &Path, run: &str) -> Vec<Vec<u8>> {
    let last = folder.join(run).join("ckpt/step-00000020");
    ["model", "ema", "optim-0-of-1"]
        .map(|name| std::fs::read(last.join(format!("{name}.safetensors"))).unwrap())
        .to_vec()
}

/// The largest difference between two curves, relative to the second.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert!(a.len() == b.len() && !a.is_empty(), "{} and {} updates", a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn a_device_gives_the_losses_of_the_cpu() {
    let folder = prepare();
    let folder = folder.path();
    train_on("cpu", folder, "cpu", "");
    let expected = losses(folder, "cpu");
    // In f32 both devices round each of some hundred steps of an update, with a relative error of 6e-8, and twenty
    // consecutive updates amplify the differences. In 16 bits every value inside the model is off by up to 2⁻⁹ (bf16)
    // or 2⁻¹² (f16); the losses are means over all of them.
    let cases = [("", 1e-4), ("bf16", 0.1), ("f16", 0.01)];
    for (precision, tolerance) in cases {
        let run = format!("device-{precision}");
        let amp = match precision {
            "" => String::new(),
            _ => format!("-s training.amp=true -s training.precision={precision}"),
        };
        train(folder, &run, &amp);
        let found = distance(&losses(folder, &run), &expected);
        assert!(found < tolerance, "{run}: {found:e}");
        assert!(precision.is_empty() || found > 1e-7, "{run} computed in f32");
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn the_bits_do_not_depend_on_how_a_pass_is_executed() {
    let folder = prepare();
    let folder = folder.path();
    // In 16 bits, because another order of roundings is seen there.
    let train =
        |run: &str, words: &str| train(folder, run, &format!("-s training.amp=true {words}"));
    train("plain", "-s training.compile=false");
    let expected = outcome(folder, "plain");
    let ways = [
        ("recorded", "-s training.compile=true"),
        ("repeated", "-s training.mem_budget=0.3 -s training.compile=true"),
        ("verified", "-s training.verify_every=4"),
        ("by-three-workers", "-s training.workers=3"),
    ];
    for (run, words) in ways {
        train(run, words);
        assert!(outcome(folder, run) == expected, "{run} ended differently");
    }
}

/// How often a run waited for its device, according to its log.
fn waits(folder: &Path, run: &str) -> u64 {
    let records = records(&folder.join(run));
    records.last().unwrap()["device_waits"].as_u64().unwrap()
}

/// The log records of updates and of the end, without timings.
fn expected(folder: &Path, run: &str) -> Vec<serde_json::Value> {
    let mut records = records(&folder.join(run));
    records
        .retain(|r| ["update", "warning", "spike", "stop"].contains(&r["kind"].as_str().unwrap()));
    for record in &mut records {
        let fields = record.as_object_mut().unwrap();
        for key in [
            "time",
            "seconds",
            "data_wait_s",
            "data_wait_fraction",
            "samples_per_second",
            "device_waits",
        ] {
            fields.remove(key);
        }
    }
    records
}

/// Half precision.
const HALF: &str = "-s training.amp=true -s training.precision=f16";

/// A loss slightly above the last ones counts as a spike, and the run rewinds.
const SPIKES: &str = "-s training.on_spike=rewind -s training.spike.factor=6 -s training.spike.window=8 \
                      -s training.spike.skip=1 -s training.spike.rewinds=1000";

/// No rare events, only updates; two forward/backward passes each.
const RARE: &str =
    "-s training.validate_every=1000 -s checkpoint.every=1000 -s training.accumulation=2";

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn updates_are_submitted_without_waiting_for_the_device() {
    let folder = prepare();
    let folder = folder.path();
    let half = format!("{HALF} -s training.on_spike=rewind");
    for (kind, more, compile) in [("full", "", true), ("full", "", false), ("half", &half, true)] {
        let run = |name: &str, words: &str| {
            let run = format!("{kind}-{name}-{compile}");
            train(folder, &run, &format!("{RARE} -s training.compile={compile} {more} {words}"));
            run
        };
        // The start and the end wait, but the number of waits does not depend on the updates between, even though all
        // are logged.
        let short = run("short", "-s training.updates=6");
        let long = run("long", "");
        assert!(waits(folder, &short) > 0);
        assert_eq!(waits(folder, &long), waits(folder, &short), "{kind}, compile {compile}");
        if kind == "half" {
            // A hash needs the update before it, so every update is waited for; otherwise nothing differs.
            let halting = run("halting", "-s training.hash_every=1");
            assert!(waits(folder, &halting) >= waits(folder, &long) + 20);
            assert!(outcome(folder, &halting) == outcome(folder, &long));
            assert_eq!(expected(folder, &halting), expected(folder, &long));
        }
    }
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn a_rewind_is_the_same_whether_updates_are_waited_for_or_not() {
    let folder = prepare();
    let folder = folder.path();
    let seed = seed();
    let random = &mut Random(seed);
    let words = format!("{SPIKES} {HALF}");
    train(folder, "given", &words);
    let rewinds = records(&folder.join("given")).iter().filter(|r| r["kind"] == "rewind").count();
    assert!(rewinds > 1, "{rewinds}");
    train(folder, "halting", &format!("{words} -s training.hash_every=1"));
    assert!(waits(folder, "halting") >= waits(folder, "given") + 10);
    assert_eq!(expected(folder, "given"), expected(folder, "halting"));
    assert!(outcome(folder, "given") == outcome(folder, "halting"));
    // Stopped and killed, before spikes and while they are not yet detected.
    for signal in ["TERM", "KILL"] {
        let mut command = Command::new(programs().join("train-stage"));
        command.args(["operator", "-c", "operator.yaml", "--run", "stopped", "--device"]);
        command.arg(device()).args(words.split_whitespace()).current_dir(folder);
        let mut run = spawn(folder, command);
        run.wait_for_update(&folder.join("stopped"), 1 + random.below(18) as u64);
        run.signal(signal);
        run.end();
    }
    train(folder, "stopped", &words);
    assert!(outcome(folder, "stopped") == outcome(folder, "given"), "seed {seed}");
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn a_run_that_diverges_ends_at_the_same_update_whether_it_is_waited_for_or_not() {
    let folder = prepare();
    let folder = folder.path();
    let words = format!("{RARE} -s optimizer.learning_rate=1e37 -s training.non_finite_limit=4");
    let expected = ["given", "halting"].map(|run| {
        let more = if run == "given" { "" } else { "-s training.hash_every=1" };
        let words = format!("--run {run} --device {} {words} {more}", device());
        let output = shell(folder, &format!("train-stage operator -c operator.yaml {words}"));
        assert_eq!(output.status, Some(1), "{}", output.stderr);
        expected(folder, run)
    });
    let skipped = expected[0].iter().filter(|r| r["kind"] == "update" && r["skipped"] != 0).count();
    assert_eq!(skipped, 4, "{:?}", expected[0]);
    assert_eq!(expected[0], expected[1]);
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn captured_passes_accumulate_like_others() {
    let folder = prepare();
    let folder = folder.path();
    for compile in ["true", "false"] {
        let words = format!("-s training.accumulation=2 -s training.compile={compile}");
        train(folder, compile, &words);
    }
    assert!(outcome(folder, "true") == outcome(folder, "false"));
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn a_run_in_half_precision_resumes_exactly() {
    let folder = prepare();
    let folder = folder.path();
    let words = &format!("{HALF} -s optimizer.learning_rate=0.05 -s training.clip_grad_norm=null");
    train(folder, "whole", words);
    let cut = 5 * (1 + Random(seed()).below(3));
    train(folder, "parts", &format!("{words} --resume whole/ckpt/step-{cut:08}"));
    assert!(outcome(folder, "parts") == outcome(folder, "whole"), "cut at {cut}");
    // The loss scale, and the number of updates since it last changed.
    let scale = |run: &str| {
        let text =
            std::fs::read(folder.join(run).join("ckpt/step-00000020/manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
        manifest["progress"]["loss_scale"].clone()
    };
    assert!(scale("whole")["scale"].is_number(), "{}", scale("whole"));
    assert_eq!(scale("parts"), scale("whole"), "cut at {cut}");
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn out_of_memory_is_one_error_with_advice() {
    let folder = prepare();
    let words = format!("train-stage operator -c operator.yaml --run run --device {}", device());
    let output = shell(folder.path(), &format!("LONGHAUL_DEVICE_MEMORY=100000 {words} || exit $?"));
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    let expected = output.stderr.lines().last().unwrap();
    for word in ["has no memory for a tensor of", "training.batch_size", "mem_budget", "amp"] {
        assert!(expected.contains(word), "{word}: {}", output.stderr);
    }
}

/// Limits are for the emulator, whose tensors take exactly their size.
#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu")]
fn a_run_adapts_to_the_memory_of_its_device_and_stays_adapted() {
    let folder = prepare();
    let words = "--set training.batch_size=16 --set training.prefetch=1 --set training.updates=2 --set checkpoint.every=1 \
                 --set training.validation_samples=1";
    let train = |limit: usize, run: &str, more: &str| {
        let words = format!(
            "train-stage operator -c operator.yaml --device emu --run {run} {words} {more}"
        );
        shell(folder.path(), &format!("LONGHAUL_DEVICE_MEMORY={limit} {words} || exit $?"))
    };
    let adapts = "--set training.adapt_to_memory=true";
    let manifest = |run: &str| {
        let path = folder.path().join(run).join("ckpt/latest/manifest.json");
        serde_json::from_slice::<serde_json::Value>(&std::fs::read(path).unwrap()).unwrap()
    };
    let bits = |run: &str| {
        let path = folder.path().join(run).join("ckpt/step-00000002/model.safetensors");
        std::fs::read(path).unwrap()
    };
    assert_eq!(train(1 << 30, "whole", adapts).status, Some(0));
    assert_eq!(manifest("whole")["progress"].get("memory"), None);
    assert_eq!(train(500 << 10, "as-configured", "").status, Some(1));
    for (limit, run, recomputed) in [(500 << 10, "halved", false), (300 << 10, "recomputed", true)]
    {
        let output = train(limit, run, adapts);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        let said = output.stderr.matches("training.adapt_to_memory: another attempt").count();
        assert_eq!(said, 1 + usize::from(recomputed), "{}", output.stderr);
        let expected = serde_json::json!({"halved": true, "recomputed": recomputed});
        assert_eq!(manifest(run)["progress"]["memory"], expected);
        // Sums of 16 samples are rounded in another order.
        let difference = distance(&losses(folder.path(), run), &losses(folder.path(), "whole"));
        assert!(difference < 1e-5, "{run}: {difference}");
    }
    // An attempt with enough memory continues with the same passes, and so with the same bits.
    let expected = bits("recomputed");
    std::fs::remove_dir_all(folder.path().join("recomputed/ckpt/step-00000002")).unwrap();
    let output = train(1 << 30, "recomputed", adapts);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(output.stderr.contains("update 1 of 2"), "{}", output.stderr);
    assert!(bits("recomputed") == expected);
    // Two adaptations are all there are.
    let output = train(100 << 10, "lacking", adapts);
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    assert_eq!(output.stderr.matches("another attempt").count(), 2, "{}", output.stderr);
    assert!(output.stderr.lines().last().unwrap().contains("has no memory for a tensor of"));
}

/// On the CPU, amp rounds the operands of products.
#[test]
fn amp_on_the_cpu_resumes_to_the_bit_with_any_number_of_threads() {
    let folder = prepare();
    let folder = folder.path();
    let amp = "-s training.amp=true -s training.validation_amp=true";
    train_on("cpu", folder, "f32", "");
    train_on("cpu", folder, "whole", amp);
    let difference = distance(&losses(folder, "whole"), &losses(folder, "f32"));
    // Operands have 8 significant bits; an update changes what the next ones differ by.
    assert!((1e-5..0.1).contains(&difference), "{difference}");
    let command = format!("train-stage operator -c operator.yaml --device cpu {amp} --run");
    let killed = shell(folder, &format!("FAIL=log.write:22=kill {command} killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    for (run, threads) in [("killed", 1), ("threads", 4)] {
        let done = train_on("cpu", folder, run, &format!("{amp} -s training.threads={threads}"));
        assert_eq!(done.stderr.contains("update 0 of 20"), run != "killed", "{}", done.stderr);
        assert!(outcome(folder, run) == outcome(folder, "whole"), "{run}");
    }
    let recorded = |run: &str| {
        let text = std::fs::read(folder.join(run).join("env.json")).unwrap();
        let attempts: serde_json::Value = serde_json::from_slice(&text).unwrap();
        attempts[0]["bf16_products"].clone()
    };
    assert!(["portable", "avx512", "amx"].iter().any(|level| recorded("whole") == *level));
    assert_eq!(recorded("f32"), serde_json::Value::Null);

    shell(folder, &format!("FAIL=log.write:22=kill LONGHAUL_CPU=amx {command} requeued"));
    let level = recorded("requeued");
    let resumed = shell(folder, &format!("LONGHAUL_CPU=portable {command} requeued"));
    assert_eq!(resumed.status, Some(0), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("training.amp: operands of"), "{}", resumed.stderr);
    let says = format!("bf16_products {}, now portable", level.as_str().unwrap());
    assert_eq!(resumed.stderr.contains(&says), level != "portable", "{}", resumed.stderr);
    // A dry run measures updates with and without it.
    let dry = "LONGHAUL_CPU=portable train-stage operator -c operator.yaml --device cpu --run x --dry-run";
    let text = shell(folder, dry).stdout;
    let line =
        text.lines().find(|line| line.starts_with("amp ")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(" ms an update with training.amp (portable), "), "{line}");
    for (words, own) in [("", "f32_seconds"), (amp, "bf16_seconds")] {
        let output = shell(folder, &format!("{dry} --json {words}"));
        let found: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!(found["amp"]["instructions"], "portable", "{found}");
        assert_eq!(found["amp"][own], found["seconds_per_update"], "{found}");
        assert!(found["amp"].as_object().unwrap().len() == 3, "{found}");
    }
    let refused = shell(folder, &format!("LONGHAUL_CPU=sse {command} refused"));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("use portable, avx512 or amx"), "{}", refused.stderr);
}

#[test]
fn unsupported_device_options_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        shell(folder.path(), "train-stage operator -c none.yaml --run r --device gpu || exit $?");
    assert_eq!(output.status, Some(2), "{}", output.stderr);
    assert!(output.stderr.contains("use auto, cpu, cuda, cuda:N or emu"), "{}", output.stderr);
}
