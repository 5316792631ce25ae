//! Texts and vectors in one network, as users run it: from generated sentences to samples in both directions.

use crate::common::{run, shell};
use crate::man::prepare_lgdlm;
use crate::records::{done, npy, refused};
use learn::checkpoint::load;
use learn::foreign;
use report::evaluation::MetricsFile;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tensor::Dtype;

/// Pairs, texts and vectors without a partner, and test records.
fn prepare(folder: &Path) {
    done(
        folder,
        "ds-prep gen sentences --samples 3000 --paired 2000 --test 100 --seed 1 -o data
         for part in pairs test; do
             ds-prep import data/$part.jsonl --columns data/columns.yaml --vectors data/$part.npy -o $part
         done
         ds-prep import data/texts.jsonl --columns data/columns.yaml -o texts
         ds-prep import --vectors data/vectors.npy -o vectors
         ds-prep split pairs --test-from test --validation 5% -o split.json
         ds-prep vocabulary split.json -o tokenizer
         for part in texts vectors; do ds-prep split $part --validation 5% --test 0 --train 95% -o $part.json; done
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 22 -o tokens
         for part in texts vectors; do
             ds-prep tokenize $part.json --tokenizer tokenizer --max-length 22 -o $part-tokens
         done
         train-stage cycle-vae --example > cycle-vae.yaml",
    );
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_network_learns_both_directions_and_predicts_in_all() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    done(
        folder,
        "train-stage cycle-vae -c cycle-vae.yaml -s training.updates=250 -s training.validate_every=250 --run run
         evaluate score run --data tokens --similarity data/similar.jsonl --texts 50 --text-steps 1,8 --drafts 2 \
             -o scores",
    );
    let results = MetricsFile::read(&folder.join("scores")).unwrap();
    let value = |method: &str, metric: &str| results.scores.methods[method][metric].value;
    let own = |metric: &str| value("cycle-vae", metric);
    // A network that does not read the text has cosine 0 and the recall of chance.
    assert!(own("cosine") > 0.3 && own("recall_10") > 5.0 * value("chance", "recall_10"));
    assert!(own("group_recall_1") > value("chance", "group_recall_1"));
    // A uniform guess of 22 tokens of a vocabulary of about 200 has 117 nats.
    assert!(own("nelbo") < 60.0 && own("nelbo") > value("entropy", "nelbo"), "{}", own("nelbo"));
    assert!(own("similarity_spearman") > 0.3 && own("token_f1_8") > 0.2);
    assert!(own("slots_reranked") > 0.0 && own("cosine_round_trip") > 0.1);
    for method in ["ridge_words", "ridge_bigrams"] {
        assert!(value(method, "cosine") > 0.5, "{method}");
    }
    assert!(
        value("linear_slots", "slots_8") > 0.5 && value("nearest_text", "grammatical_8") == 1.0
    );

    // Vectors of texts, texts of these vectors, and both in one.
    let vectors = done(
        folder,
        "head -n 5 data/test.jsonl | evaluate predict run --direction t2l --inputs - -o - | tee vectors.jsonl",
    );
    let found = lines(&vectors.stdout);
    assert_eq!(found.len(), 5);
    assert_eq!(found[4]["vector"].as_array().unwrap().len(), 32);
    assert_eq!((&found[4]["line"], &found[4]["id"]), (&5.into(), &"test-000004".into()));
    let there = done(folder, "evaluate predict run --direction l2t --inputs vectors.jsonl -o -");
    let both = done(
        folder,
        "head -n 5 data/test.jsonl | evaluate predict run --direction t2l2t --inputs - -o -",
    );
    let texts = |text: &str| lines(text).iter().map(|own| own["text"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(&there.stdout), texts(&both.stdout));
    // The same vectors as an array.
    let rows: Vec<Vec<f32>> =
        found.iter().map(|own| serde_json::from_value(own["vector"].clone()).unwrap()).collect();
    npy(&folder.join("vectors.npy"), &[5, 32], &rows.concat());
    let from_array = "evaluate predict run --direction l2t --inputs vectors.npy -o rows.jsonl";
    done(folder, from_array);
    let from_array = lines(&fs::read_to_string(folder.join("rows.jsonl")).unwrap());
    assert_eq!(
        from_array.iter().map(|own| own["text"].clone()).collect::<Vec<_>>(),
        texts(&there.stdout)
    );
    assert_eq!((&from_array[4]["row"], &from_array[4]["line"]), (&4.into(), &Value::Null));
    npy(&folder.join("short.npy"), &[5, 31], &rows.concat()[..155]);
    let drawn = "evaluate predict run --direction unconditional --count 3 --temperature 1 --reveal ancestral -o -";
    assert_eq!(done(folder, drawn).stdout, done(folder, drawn).stdout);
    // A single step from noise would give the mean of all vectors three times.
    let drawn_vectors: Vec<Vec<f64>> = lines(
        &done(folder, &drawn.replace(" -o -", " -o all.jsonl > messages && cat all.jsonl")).stdout,
    )
    .iter()
    .map(|own| serde_json::from_value(own["vector"].clone()).unwrap())
    .collect();
    let distance =
        |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum() };
    let square: f64 = drawn_vectors[0].iter().map(|x| x * x).sum();
    assert!(distance(&drawn_vectors[0], &drawn_vectors[1]) > 0.2 * square, "{drawn_vectors:?}");
    assert_ne!(
        done(folder, drawn).stdout,
        done(folder, &format!("{drawn} --sampling-seed 1")).stdout
    );
    for (words, says) in [
        ("--direction t2l -o -", "--inputs: name a file with a text on each line"),
        ("--direction l2t --inputs data/test.jsonl -o -", "line 1: neither a JSON array"),
        ("--direction l2t --inputs short.npy -o -", "short.npy: vectors of 31 values"),
        ("--direction unconditional --inputs data/test.jsonl -o -", "reads none"),
        ("--direction l2t --inputs vectors.jsonl -o texts.txt", "FILE.jsonl"),
    ] {
        let output = shell(folder, &format!("evaluate predict run {words}"));
        assert!(matches!(output.status, Some(2 | 65)), "{words}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{words}: {}", output.stderr);
    }
    refused(
        folder,
        "echo '[1, 2]' | evaluate predict run --direction l2t --inputs - -o -",
        65,
        "has 2 values",
    );
}

#[test]
fn cycles_over_data_without_partners_keep_their_bits() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let run = "train-stage cycle-vae -c cycle-vae.yaml -s training.updates=12 -s training.validate_every=12 \
        -s training.log_every=1 -s schedule=[] -s checkpoint.every=5 -s training.batch_size=16 \
        -s training.deterministic=true -s model.hidden=16 \
        -s 'data.additional=[{tokens: texts-tokens}, {tokens: vectors-tokens}]' \
        -s 'loss.cycle_text={weight: 1.0, start: 3, ramp: 4}' \
        -s 'loss.cycle_latent={weight: 0.5, start: 6, sampling: categorical}'";
    done(folder, &format!("{run} --run whole"));
    let updates = records(&folder.join("whole"), "update");
    // Update 3, counted from 0, has weight 0 of a ramp that begins there; update 4 has the first part of it.
    for (name, first) in [("t2l2t", 4), ("l2t2l", 6)] {
        let has: Vec<bool> =
            updates.iter().map(|own| own["loss_terms"][name].is_number()).collect();
        let expected: Vec<bool> = (0..12).map(|update| update >= first).collect();
        assert_eq!(has, expected, "{name}");
    }
    // The cycle learns from texts without a vector, unless there are none; those of weight 1e-9 are not drawn.
    for (name, additional, expected) in
        [("rare", "[{tokens: texts-tokens, weight: 1e-9}]", false), ("paired", "[]", true)]
    {
        let words = format!(
            "-s 'data.additional={additional}' -s loss.cycle_text.start=0 -s loss.cycle_text.ramp=0"
        );
        done(folder, &format!("{run} {words} -s training.updates=2 --run {name}"));
        for update in records(&folder.join(name), "update") {
            assert_eq!(update["loss_terms"]["t2l2t"].is_number(), expected, "{name}: {update}");
        }
    }
    let killed = shell(folder, &format!("FAIL=log.write:11=kill {run} --run killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    done(folder, &format!("{run} --run killed -s training.threads=1"));
    done(folder, &format!("{run} --run recomputed -s training.mem_budget=0"));
    let mut runs = vec!["killed", "recomputed"];
    if test_support::require_program("mpirun", &["--version"]) {
        let ranks = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --bind-to none --oversubscribe -n";
        for count in [2, 4] {
            done(folder, &format!("{ranks} {count} {run} --run ranks-{count}"));
        }
        runs.extend(["ranks-2", "ranks-4"]);
    }
    let weights = |run: &str| {
        fs::read(folder.join(run).join("ckpt/step-00000012/model.safetensors")).unwrap()
    };
    for other in runs {
        assert!(weights("whole") == weights(other), "{other}");
    }
    for (words, says) in [
        ("-s data.tokens=texts-tokens", "no vectors"),
        ("-s model.latent_tokens=5", "model.latent_tokens: 5 does not divide the dimension 32"),
        ("-s loss.text_share=2", "loss.text_share"),
    ] {
        refused(folder, &format!("{run} {words} --run other"), 78, says);
    }
}

#[test]
fn resources_on_absent_gpus_are_those_of_the_shapes() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let dry = "train-stage cycle-vae -c cycle-vae.yaml --run run --dry-run --json -s model.hidden=128 -s model.depth=3";
    let estimate = |words: &str| lines(&done(folder, &format!("{dry} {words}")).stdout).remove(0);
    let number = |value: &Value| value.as_f64().unwrap();
    // A CPU keeps the same tensors as a GPU in f32: the memory of an update that is run here.
    let (here, there) = (estimate(""), estimate("--on 24GB"));
    let expected = number(&there["memory_bytes"]) - number(&there["memory"]["context"]);
    let measured = number(&here["memory_bytes"]);
    assert!((expected / measured - 1.0).abs() < 0.15, "{expected} {measured}");
    assert_eq!(here["parameters"], there["parameters"]);
    assert!(there["seconds"].is_null() && !folder.join("run").exists());
    // The operations of a forward and a backward pass: six for each use of a weight. Tokens of texts use about a third of
    // the weights, most others one row of a sample.
    let (one, two) = (estimate("--on h100"), estimate("--on h100:2"));
    let uses = 64.0 * 22.0 * number(&one["parameters"]);
    let flops = number(&one["flops"]) / (6.0 * uses);
    assert!((0.2..0.6).contains(&flops), "{flops}");
    assert!((number(&one["flops"]) / number(&two["flops"]) - 2.0).abs() < 0.1);
    assert!(number(&one["seconds"]) > 0.0 && number(&two["communication"]) > 0.0);
    let amp = estimate("--on h100 -s training.amp=true");
    assert!(number(&amp["memory"]["activations"]) < 0.7 * number(&one["memory"]["activations"]));
    refused(folder, &format!("{dry} --on h100:3"), 78, "64 samples cannot be divided among 3 GPUs");
    refused(folder, &format!("{dry} --on v100"), 2, "none of h200, h100");
}

/// Records of a kind in the log of a run.
fn records(run: &Path, kind: &str) -> Vec<Value> {
    run::records(run).into_iter().filter(|record| record["kind"] == kind).collect()
}

#[test]
fn an_objective_that_needs_no_text_is_noticed_and_modes_freeze_their_parts() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let run = "train-stage cycle-vae -c cycle-vae.yaml -s training.updates=200 -s training.validate_every=200";
    done(folder, &format!("{run} -s loss.compat=upstream --run upstream"));
    let warnings = |name: &str| -> String {
        let all = records(&folder.join(name), "warning");
        all.iter().map(|record| record["text"].to_string()).collect()
    };
    let found = warnings("upstream");
    assert!(found.contains("input is that noise"), "{found}");
    assert!(found.contains("without reading the texts"), "{found}");
    // Its samplers run, and know nothing about texts.
    done(
        folder,
        "evaluate score upstream --data tokens --texts 20 --text-steps 1 --drafts 0 -o scores",
    );
    let results = MetricsFile::read(&folder.join("scores")).unwrap();
    let own = |metric: &str| results.scores.methods["cycle-vae"][metric].value;
    assert!(own("cosine").abs() < 0.1 && own("recall_10") < 0.3, "{}", own("cosine"));

    // Pairs of unrelated texts and vectors: the errors of both stay as high as without the other.
    done(folder, &format!("{run} -s data.shuffled=true --run shuffled"));
    done(folder, &format!("{run} --run usual"));
    assert_eq!((warnings("shuffled"), warnings("usual")), (String::new(), String::new()));
    let terms = |name: &str| {
        let all = records(&folder.join(name), "update");
        all.iter().rev().find(|own| own["loss_terms"]["t2l_other_text"].is_number()).unwrap()["loss_terms"].clone()
    };
    let ratio = |name: &str| {
        let terms = terms(name);
        terms["t2l_other_text"].as_f64().unwrap() / terms["t2l"].as_f64().unwrap()
    };
    assert!(
        ratio("usual") > 1.2 && ratio("shuffled") < 1.2,
        "{} {}",
        terms("usual"),
        terms("shuffled")
    );
    // Times are spread evenly over [0.02, 1] and [0, 1], and a token is masked with the probability of its time.
    let usual = terms("usual");
    for (name, expected, tolerance) in [
        ("text_time", 0.51, 0.02),
        ("latent_time", 0.5, 0.02),
        ("masked", 0.51, 0.1),
        ("t2l_zero", 1.0, 0.3),
    ] {
        let found = usual[name].as_f64().unwrap();
        assert!((found - expected).abs() < tolerance, "{name}: {found}");
    }
    assert!(usual["latent_norm"].as_f64().unwrap() > 0.5, "{usual}");
    refused(
        folder,
        &format!("{run} -s loss.compat=upstream -s loss.latent_target=v --run other"),
        78,
        "loss.latent_target: loss.compat sets it",
    );

    let modes = "-s 'loss.modes=[{mode: l2t, updates: 3}, {mode: t2l, updates: 2}]' -s training.updates=5 -s schedule=[] \
        -s training.log_every=1 -s checkpoint.every=3 -s model.hidden=16";
    done(folder, &format!("{run} {modes} --run modes"));
    let trained: Vec<[bool; 2]> = records(&folder.join("modes"), "update")
        .iter()
        .map(|own| ["l2t", "t2l"].map(|part| own["loss_terms"][part].is_number()))
        .collect();
    assert_eq!(
        trained,
        [[true, false], [true, false], [true, false], [false, true], [false, true]]
    );
    // Between the checkpoints, latents are learned from texts: what only texts use does not change.
    let diff = shell(folder, "ckpt diff modes/ckpt/step-00000003 modes/ckpt/step-00000005 --json");
    let changed: Vec<String> = lines(&diff.stdout)
        .iter()
        .filter(|row| row["file"] == "model")
        .map(|row| row["tensor"].as_str().unwrap().to_string())
        .collect();
    let has = |part: &str| changed.iter().any(|name| name.starts_with(part));
    assert!(has("latent.") && has("latent_head.") && has("blocks.") && has("time."), "{changed:?}");
    assert!(!has("text.") && !has("text_head.") && !has("norm.text."), "{changed:?}");
}

/// Such a checkpoint has other tensors, a table with more rows than the tokenizer has tokens, and the state of an
/// optimizer. lib/tasks/tests/cycle_vae.rs shows that the function is the same.
#[test]
fn checkpoints_of_the_original_are_imported_by_name() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/mmdit.pt");
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(folder, prepare_lgdlm(folder));
    let run = "train-stage cycle-vae -c lgdlm.yaml -s training.updates=1";
    done(
        folder,
        &format!(
            "{run} -s loss.latent_target=epsilon --run like
             {run} -s model.time_embedding=fourier --run other"
        ),
    );
    let imported = done(folder, &format!("ckpt import {file} --like like -o imported"));
    assert!(imported.stderr.contains("loss.latent_target is epsilon"), "{}", imported.stderr);
    let made = load(&folder.join("imported")).unwrap().tensors("model").unwrap();
    let own = |name: &str| {
        made.iter().find(|(own, _)| own == name).unwrap_or_else(|| panic!("no {name}")).1.to_f64()
    };
    let source = foreign::open(Path::new(file)).unwrap();
    let original = |name: &str| {
        let name = format!("model.{name}");
        let entry = source.tensors().iter().find(|entry| entry.name == name).unwrap();
        source.read(entry, Dtype::F32).unwrap().to_f64()
    };
    let table = own("text.table.weight");
    assert!(
        table.len() < 128 * 6 && original("text_encoder.token_embed.weight").starts_with(&table)
    );
    // The gain of the attention of latents: 1 + g here, and the second of four there.
    let gains = original("mmdit.blocks.0.to_post_branch_gammas.2.bias");
    let gains: Vec<f64> = gains[6..12].iter().map(|gain| f64::from((gain - 1.0) as f32)).collect();
    assert_eq!(own("blocks.0.latent.modulation.bias")[12..18], gains);
    let scale = "residual_scale";
    let theirs = original(&format!("mmdit.blocks.0.ff_residual_fns.1.{scale}"));
    assert_eq!(own(&format!("blocks.0.latent.mlp_streams.{scale}")), theirs);
    let predicted =
        "head -n 2 texts.jsonl | evaluate predict imported --direction t2l --inputs - -o -";
    assert_eq!(lines(&done(folder, predicted).stdout)[1]["vector"].as_array().unwrap().len(), 3);

    refused(
        folder,
        &format!("ckpt import {file} --like other -o x"),
        65,
        "time_embedding: sinusoidal",
    );
    let pattern = "--ignore 'model.mmdit.norms.*'";
    let lacks = format!("ckpt import {file} --like like {pattern} -o x");
    refused(folder, &lacks, 65, "missing: model.mmdit.norms.0.g [6]");
    for (words, says) in [
        ("model.max_length=5", "model.max_length: 5 is less than the 6 tokens of a text"),
        ("model.hyper_connections.streams=5", "model.hyper_connections.streams"),
        ("model.frequencies=0", "model.frequencies"),
    ] {
        refused(folder, &format!("{run} -s {words} --run x"), 78, says);
    }
}
