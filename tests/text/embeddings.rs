//! Sentence embeddings by a trained encoder, as users run them: the vectors are those that its head reads, they do not
//! depend on interruptions or ranks, and a network of texts and vectors trains on them.

use crate::common::shell;
use crate::records::{done, refused};
use data::split::SplitName;
use data::text::TokenSet;
use learn::foreign;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tensor::Dtype;

/// Texts, their tokens, and a run of a classifier of the mean of the states.
fn prepare(folder: &Path) {
    done(
        folder,
        "ds-prep gen criteria -o data --samples 200 --seed 3
         ds-prep import data/annotations.csv --columns data/columns.yaml -o store
         ds-prep split store --train 60% --validation 20% --test 20% --seed 1 -o split.json
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 32 -o tokens
         train-stage classify --example > classify.yaml
         train-stage classify -c classify.yaml -s schedule=[] -s training.updates=20 -s training.validate_every=20 \
             -s model.head.pooling=mean --run run",
    );
}

/// The vectors of a split, [N, D].
fn vectors(folder: &Path, name: SplitName) -> Vec<Vec<f32>> {
    let set = TokenSet::open(folder, name).unwrap();
    (0..set.len()).map(|i| set.vector(i).unwrap().to_vec()).collect()
}

/// All files of the splits but the time of the work.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for split in ["train", "validation", "test"] {
        for entry in fs::read_dir(folder.join(split)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name != "source.json" {
                found.insert(format!("{split}/{name}"), fs::read(path).unwrap());
            }
        }
    }
    found
}

#[test]
fn vectors_are_what_the_head_reads() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    done(
        folder,
        "latent-cache make run --data tokens -o mean
         latent-cache verify mean/train mean/validation mean/test
         evaluate score run --data tokens -o scores",
    );
    // softmax(W mean + b) is what the classifier predicts.
    let file = foreign::open(&folder.join("run/ckpt/latest/model.safetensors")).unwrap();
    let read = |name: &str| {
        let entry = file.tensors().iter().find(|entry| entry.name.ends_with(name)).unwrap();
        file.read(entry, Dtype::F64).unwrap().to_f64()
    };
    let (weight, bias) = (read("classifier.weight"), read("classifier.bias"));
    let found = vectors(&folder.join("mean"), SplitName::Test);
    let text = fs::read_to_string(folder.join("scores/predictions.jsonl")).unwrap();
    let mut different = false;
    for (line, vector) in text.lines().zip(&found) {
        let row: Value = serde_json::from_str(line).unwrap();
        let logit = |class: usize| {
            let row = &weight[class * vector.len()..][..vector.len()];
            bias[class] + row.iter().zip(vector).map(|(w, x)| w * f64::from(*x)).sum::<f64>()
        };
        let logits: Vec<f64> = (0..bias.len()).map(logit).collect();
        let sum: f64 = logits.iter().map(|z| z.exp()).sum();
        let probabilities = row["probabilities"].as_object().unwrap();
        for (z, (_, own)) in logits.iter().zip(probabilities) {
            assert!((z.exp() / sum - own.as_f64().unwrap()).abs() < 1e-5, "{line}");
        }
        different |= vector != &found[0];
    }
    assert!(different && text.lines().count() == found.len());

    // Truncated, then normalised; of an exported encoder and of a manifest they are the same.
    done(
        folder,
        "latent-cache make run --data tokens --normalize --dimensions 5 -o unit
         ckpt export run --format hf --encoder-only -o encoder
         latent-cache make encoder --data split.json --max-length 32 -o exported
         latent-cache make run --data tokens --pooling cls -o cls
         latent-cache make run --data tokens --pooling max --split test -o max
         latent-cache make run --data tokens --split test --device cpu --amp -o amp
         evaluate score run --data tokens --device cpu --amp -o amp-scores",
    );
    for (short, long) in vectors(&folder.join("unit"), SplitName::Test).iter().zip(&found) {
        let norm = long[..5].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        assert_eq!(short.len(), 5);
        for (own, x) in short.iter().zip(long) {
            assert!((f64::from(*own) - f64::from(*x) / norm).abs() < 1e-6);
        }
    }
    assert!(vectors(&folder.join("exported"), SplitName::Test) == found);
    assert!(folder.join("exported/tokens/train").is_dir() && !folder.join("max/train").exists());
    // Operands have 8 significant bits, and each state passes through two blocks and a normalization.
    let rounded = vectors(&folder.join("amp"), SplitName::Test);
    let errors = rounded.iter().flatten().zip(found.iter().flatten()).map(|(a, b)| (a - b).abs());
    let largest = errors.fold(0.0, f32::max);
    assert!(largest > 0.0 && largest < 0.05, "{largest:e}");
    let amp = |file: &str| {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        text.replace(": ", ":").contains(r#""amp":true"#)
    };
    assert!(amp("amp/test/index.json") && amp("amp-scores/metrics.json"));
    assert!(!amp("mean/test/index.json") && !amp("scores/metrics.json"));
    // The maximum is at least the mean and at least the first state.
    let [cls, max] = ["cls", "max"].map(|name| vectors(&folder.join(name), SplitName::Test));
    for ((max, mean), cls) in max.iter().zip(&found).zip(&cls) {
        assert!(max.iter().zip(mean).all(|(max, mean)| *max >= mean - 1e-5));
        assert!(max.iter().zip(cls).all(|(max, cls)| max >= cls) && max != cls);
    }
}

#[test]
fn interruptions_and_ranks_do_not_change_a_bit() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let make = "latent-cache make run --data tokens --normalize --shard 50";
    let made = done(folder, &format!("{make} --json -o whole")).stdout;
    let rows: Vec<Value> = made.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 3);
    let shards = rows[0]["shards_made"].as_u64().unwrap();
    assert!(shards > 2 && rows[0]["shards_kept"] == 0, "{made}");
    assert!(rows[0]["cut"].as_u64().unwrap() < rows[0]["texts"].as_u64().unwrap());

    let killed = shell(folder, &format!("FAIL=publish.renamed:12=kill {make} -o killed"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    let again = done(folder, &format!("{make} --json --threads 1 -o killed"));
    assert!(again.stderr.contains("resuming after"), "{}", again.stderr);
    let whole = files(&folder.join("whole"));
    assert!(files(&folder.join("killed")) == whole);
    let kept = done(folder, &format!("{make} --json -o killed")).stdout;
    assert!(kept.contains(&format!("\"shards_kept\":{shards},\"shards_made\":0")), "{kept}");
    if test_support::require_program("mpirun", &["--version"]) {
        let ranks = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --bind-to none --oversubscribe -n 2";
        done(folder, &format!("{ranks} {make} -o ranks"));
        assert!(files(&folder.join("ranks")) == whole);
    }
    // A damaged shard is found and replaced.
    let damage = "printf x | dd of=killed/train/shard-00001.safetensors bs=1 seek=900 conv=notrunc status=none";
    done(folder, damage);
    refused(folder, "latent-cache verify killed/train", 65, "latent-cache make");
    done(folder, &format!("{make} -o killed"));
    assert!(files(&folder.join("killed")) == whole);
}

#[test]
fn a_network_trains_on_the_vectors_of_one_encoder() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    done(
        folder,
        "latent-cache make run --data tokens --normalize --dimensions 8 -o embedded
         latent-cache make run --data tokens --pooling max --dimensions 8 -o other
         train-stage cycle-vae --example > cycle-vae.yaml
         train-stage cycle-vae -c cycle-vae.yaml -s data.tokens=embedded -s schedule=[] -s training.updates=4 \
             -s training.validate_every=4 --run network
         evaluate score network --data embedded --texts 5 --drafts 1 -o scores",
    );
    refused(
        folder,
        "evaluate score network --data other -o x",
        65,
        "vectors are of another encoder",
    );
    let mixed = "train-stage cycle-vae -c cycle-vae.yaml -s data.tokens=embedded -s 'data.additional=[{tokens: other}]' --run mixed";
    refused(folder, mixed, 78, "their pooling is max, not mean");

    done(
        folder,
        "train-stage classify -c classify.yaml -s schedule=[] -s training.updates=1 --run second
         ds-prep split store --train 60% --validation 20% --test 20% --seed 2 -o second.json
         ds-prep tokenize second.json --tokenizer tokenizer --max-length 32 -o second-tokens
         mkdir empty bad; cp -r tokens/tokenizer.json bad; echo '{}' > bad/config.json",
    );
    let make = "latent-cache make run --data tokens --normalize --dimensions 8 -o embedded";
    let with = |from: &str, to: &str| make.replacen(from, to, 1);
    for (command, status, says) in [
        (with("run", "second"), 73, "they are of the encoder"),
        (with("--normalize", ""), 73, "they are normalized"),
        (with("--normalize", "--normalize --pooling cls"), 73, "their pooling is mean, not cls"),
        (with("--dimensions 8", "--dimensions 7"), 73, "vectors of 8 numbers, not 7"),
        (with("--normalize", "--normalize --max-length 16"), 73, "up to 32 tokens, not 16"),
        (with("--normalize", "--normalize --amp"), 73, "they were made without --amp"),
        (with("tokens", "second-tokens"), 73, "vectors of other texts or tokens"),
        (with("embedded", "tokens"), 73, "no encoder made"),
        (with("tokens", "embedded").replace("-o embedded", "-o x"), 65, "have vectors already"),
        (with("--dimensions 8", "--dimensions 65"), 2, "have 64 numbers"),
        (with("--normalize", "--max-length 4000"), 2, "reads at most"),
        (with("run", "network"), 65, "a model of task cycle-vae does not encode texts"),
        (with("run", "nowhere"), 66, "nowhere"),
        (with("run", "empty"), 66, "empty"),
        (with("run", "bad"), 65, "bad/config.json"),
        (with("tokens", "empty"), 2, "neither a manifest of texts nor a folder of tokens"),
    ] {
        refused(folder, &command, status, says);
    }
    assert!(!folder.join("x").exists());
    done(folder, make);
}
