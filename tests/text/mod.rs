//! Classification of texts, as users run it: from a table of sentences to scores beside baselines.

mod answers;
mod chat;
mod decoders;
mod embeddings;
mod exchange;
mod images;
mod labels;
mod pages;
mod pairs;
mod quantised;
mod sft;

use crate::common::shell;
use crate::records::{done, refused};
use learn::foreign;
use report::evaluation::MetricsFile;
use serde_json::Value;
use std::fs;
use tensor::Dtype;

#[test]
fn a_small_encoder_learns_what_a_bag_of_words_cannot_and_resumes_to_the_bit() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(
        folder,
        "ds-prep gen criteria -o data --samples 1500 --seed 3
         ds-prep import data/annotations.csv --columns data/columns.yaml -o store
         ds-prep split store --train 70% --validation 15% --test 15% --seed 1 -o split.json
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 64 -o tokens
         train-stage classify --example > classify.yaml",
    );
    let run = "train-stage classify -c classify.yaml -s training.log_every=1";
    done(folder, &format!("{run} --run run -s training.updates=500"));
    done(folder, "evaluate score run --data tokens -o scores");
    let results = MetricsFile::read(&folder.join("scores")).unwrap();
    let f1 = |method: &str| results.scores.methods[method]["f1_macro"].value;
    let (ours, words) = (f1("classify"), f1("bag of words"));
    // With these sentences the words are the same and only their order differs.
    assert!(ours > 0.9 && words < 0.75, "{ours} {words}");
    let criteria = || results.groups.iter().filter(|group| group.kind == "criterion");
    let samples = results.scores.samples;
    assert_eq!(criteria().map(|group| group.scores.samples).sum::<u64>(), samples);
    let fatigue = criteria().find(|group| group.name == "FATIGUE").unwrap();
    assert!(fatigue.scores.methods["classify"]["f1_macro"].value > 0.7, "{fatigue:?}");
    let predictions = fs::read_to_string(folder.join("scores/predictions.jsonl")).unwrap();
    assert_eq!(predictions.lines().count() as u64, samples);

    // With dropout, killed between checkpoints and resumed: the same weights.
    let short = "-s training.updates=30 -s training.validate_every=20 -s checkpoint.every=10 -s schedule=[]";
    done(folder, &format!("{run} {short} --run whole"));
    let killed = shell(folder, &format!("FAIL=log.write:26=kill {run} {short} --run killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    done(folder, &format!("{run} {short} --run killed -s training.threads=1"));
    let weights = |run: &str| {
        fs::read(folder.join(run).join("ckpt/step-00000030/model.safetensors")).unwrap()
    };
    assert!(weights("whole") == weights("killed"));

    // Another tokenizer has another meaning for the same ids.
    done(
        folder,
        "ds-prep vocabulary split.json --size 150 -o small
         ds-prep tokenize split.json --tokenizer small --max-length 64 -o others",
    );
    refused(
        folder,
        "evaluate score run --data others -o other",
        65,
        "the tokenizer or the labels differ",
    );
    // Its texts begin with no classification token.
    let mut bare: Value =
        serde_json::from_slice(&fs::read(folder.join("tokenizer/tokenizer.json")).unwrap())
            .unwrap();
    bare["post_processor"] = Value::Null;
    fs::create_dir(folder.join("bare")).unwrap();
    fs::write(folder.join("bare/tokenizer.json"), bare.to_string()).unwrap();
    let bare = "ds-prep tokenize split.json --tokenizer bare -o x";
    refused(folder, bare, 65, "texts do not begin with the classification token");
    let stride = "ds-prep tokenize split.json --tokenizer tokenizer --stride 4 -o x";
    refused(folder, stride, 2, "--stride: no effect on texts");
    let long = format!("{run} --run long -s model.encoder.max_position_embeddings=32");
    refused(folder, &long, 78, "texts have up to 64 tokens");
}

/// Batches of texts of different lengths, divided among ranks whose optimizers hold a part of the state each.
#[test]
fn two_ranks_learn_texts_with_the_bits_of_one() {
    if !test_support::require_program("mpirun", &["--version"]) {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(
        folder,
        "ds-prep gen criteria -o data --samples 300 --seed 4 --per-post 1
         ds-prep import data/annotations.csv --columns data/joint.yaml -o store
         ds-prep split store --seed 1 -o split.json
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 48 --stride 12 -o tokens
         train-stage joint --example > joint.yaml",
    );
    let run = "train-stage joint -c joint.yaml -s training.updates=6 -s training.validate_every=3 -s schedule=[] \
        -s training.batch_size=8 -s model.encoder.hidden_size=16 -s model.encoder.intermediate_size=16 -s optimizer.groups=[]";
    let ranks = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
        RAYON_NUM_THREADS=1; mpirun --bind-to none -n 2";
    let weights = |run: String| -> Vec<f32> {
        let path = folder.join(run).join("ckpt/step-00000006/model.safetensors");
        let file = foreign::open(&path).unwrap();
        let read = |entry| file.read(entry, Dtype::F32).unwrap().read::<f32>().to_vec();
        file.tensors().iter().flat_map(read).collect()
    };
    let pair = |method: &str, deterministic: bool| {
        let options = format!(
            "-s 'optimizer.method={{kind: {method}}}' -s training.deterministic={deterministic}"
        );
        done(folder, &format!("{run} {options} --run {method}-1"));
        let shards = "-s optimizer.shard=true";
        done(folder, &format!("{ranks} {run} {options} {shards} --run {method}-2"));
        ["1", "2"].map(|ranks| weights(format!("{method}-{ranks}")))
    };
    for method in ["adam", "adamw8bit", "lion", "lamb", "adafactor"] {
        let [one, two] = pair(method, true);
        assert!(one == two, "{method}");
    }
    // Otherwise sums of gradients are in another order: a few roundings of weights of about 1.
    let [one, two] = pair("sgd", false);
    assert!(one != two);
    assert!(one.iter().zip(&two).all(|(a, b)| (a - b).abs() < 1e-6));
}
