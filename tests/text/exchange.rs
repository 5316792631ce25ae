//! Encoders and adapters to and from folders of transformers and PEFT. tests/interop/text.py opens such folders with
//! these programs.

use crate::records::{done, refused};
use learn::foreign;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tensor::{Dtype, Tensor};

pub(super) const TRAIN: &str =
    "train-stage classify -c classify.yaml -s schedule=[] -s training.validate_every=20";
/// Updates that change nothing.
const STILL: &str = "-s training.updates=1 -s optimizer.learning_rate=1e-30";

/// A trained classifier in `run`, its tokens, and the folder `hf` to which it was exported.
pub(super) fn exported(folder: &Path) {
    done(
        folder,
        &format!(
            "ds-prep gen criteria -o data --samples 300 --seed 3
             ds-prep import data/annotations.csv --columns data/columns.yaml -o store
             ds-prep split store --train 60% --validation 20% --test 20% --seed 1 -o split.json
             ds-prep vocabulary split.json -o tokenizer
             ds-prep tokenize split.json --tokenizer tokenizer --max-length 32 -o tokens
             train-stage classify --example > classify.yaml
             {TRAIN} -s training.updates=20 --run run
             ckpt export run --format hf -o hf"
        ),
    );
}

pub(super) fn tensors(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f64>)> {
    let file = foreign::open(path).unwrap();
    let read = |entry: &foreign::TensorEntry| {
        let value = file.read(entry, Dtype::F64).unwrap();
        (entry.name.clone(), (entry.shape.clone(), value.to_f64()))
    };
    file.tensors().iter().map(read).collect()
}

/// Those of the newest checkpoint of a run.
pub(super) fn weights(folder: &Path, run: &str) -> BTreeMap<String, (Vec<usize>, Vec<f64>)> {
    tensors(&folder.join(run).join("ckpt/latest/model.safetensors"))
}

pub(super) fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_classifier_goes_to_transformers_and_comes_back() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    exported(folder);
    let config = json(&folder.join("hf/config.json"));
    assert_eq!(config["architectures"][0], "BertForSequenceClassification");
    assert_eq!((&config["model_type"], &config["hidden_size"]), (&"bert".into(), &64.into()));
    assert_eq!(config["problem_type"], "single_label_classification");
    let labels = config["id2label"].as_object().unwrap();
    for (class, label) in labels {
        assert_eq!(config["label2id"][label.as_str().unwrap()].to_string(), *class);
    }
    let tokenizer = json(&folder.join("hf/tokenizer_config.json"));
    assert_eq!(tokenizer["pad_token"], "[PAD]");
    assert_eq!(tokenizer["model_max_length"], config["max_position_embeddings"]);
    let same =
        |a: &str, b: &str| fs::read(folder.join(a)).unwrap() == fs::read(folder.join(b)).unwrap();
    assert!(same("hf/tokenizer.json", "tokens/tokenizer.json"));
    let ours = weights(folder, "run");
    assert!(ours.contains_key("bert.pooler.dense.weight"));
    assert_eq!(tensors(&folder.join("hf/model.safetensors")), ours);

    // Back, with and without the head.
    done(
        folder,
        &format!(
            "ckpt config hf --head > whole.yaml
             ckpt config hf > encoder.yaml
             {TRAIN} -c whole.yaml {STILL} --run whole
             {TRAIN} -c encoder.yaml {STILL} --run encoder"
        ),
    );
    assert_eq!(weights(folder, "whole"), ours);
    for (name, value) in weights(folder, "encoder") {
        assert_eq!(value == ours[&name], !name.starts_with("classifier"), "{name}");
    }

    // The encoder alone has no prefix; so read, it is the same encoder.
    done(
        folder,
        &format!(
            "ckpt export run --format hf --encoder-only -o alone
             ckpt config alone > alone.yaml
             {TRAIN} -c alone.yaml {STILL} --run alone-again"
        ),
    );
    let alone = tensors(&folder.join("alone/model.safetensors"));
    assert!(alone.contains_key("embeddings.word_embeddings.weight"));
    assert_eq!(json(&folder.join("alone/config.json"))["architectures"][0], "BertModel");
    let again = weights(folder, "alone-again");
    assert!(alone.iter().all(|(name, value)| again[&format!("bert.{name}")] == *value));

    let refused = |script: &str, status: i32, text: &str| refused(folder, script, status, text);
    refused("ckpt export run --format hf -o hf", 73, "hf");
    refused("ckpt export run --format hf --what ema -o x", 66, "ema");
    refused("ckpt export run --format peft -o x", 2, "model.lora is null");
    refused("ckpt export run --encoder-only -o x", 2, "--encoder-only needs --format hf");
    refused("ckpt config alone --head", 65, "it has no head");
    done(folder, &format!("{TRAIN} {STILL} -s model.head.pooling=mean --run mean"));
    refused("ckpt export mean --format hf -o x", 2, "--encoder-only exports");
    done(folder, "ckpt export mean --format hf --encoder-only -o mean-encoder; mv tokens moved");
    refused("ckpt export run --format hf -o x", 66, "--tokens");
    done(folder, "ckpt export run --format hf --tokens moved -o moved-hf");
    assert!(same("moved-hf/model.safetensors", "hf/model.safetensors"));
    assert!(!folder.join("x").exists());
}

#[test]
fn lora_trains_an_adapter_that_peft_reads_and_that_is_read_back() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    exported(folder);
    let lora = "-s 'model.lora={r: 3, alpha: 6, dropout: 0.1, targets: [query, output.dense]}'";
    let run = format!("{TRAIN} -c encoder.yaml {lora} -s training.updates=12");
    done(
        folder,
        &format!(
            "ckpt config hf > encoder.yaml
             {run} --run lora
             FAIL=log.write:6=kill {run} -s training.log_every=1 -s checkpoint.every=3 --run killed || test $? = 137
             {run} -s checkpoint.every=3 --run killed
             evaluate score lora --data tokens -o scores
             ckpt export lora --format peft -o adapter
             ckpt export lora --format hf -o merged"
        ),
    );
    let ours = weights(folder, "lora");
    assert_eq!(weights(folder, "killed"), ours);
    let module = "bert.encoder.layer.1.attention.output.dense";
    assert_eq!(ours[&format!("{module}.lora_A.weight")].0, [3, 64]);
    assert!(ours.keys().all(|name| {
        [".lora_A.", ".lora_B.", "classifier.", "bert.pooler."]
            .iter()
            .any(|part| name.contains(part))
    }));
    let prefixed = |(name, value): (&String, &(Vec<usize>, Vec<f64>))| {
        (format!("base_model.model.{name}"), value.clone())
    };
    let adapter = tensors(&folder.join("adapter/adapter_model.safetensors"));
    assert_eq!(adapter, ours.iter().map(prefixed).collect());
    let config = json(&folder.join("adapter/adapter_config.json"));
    assert_eq!((&config["r"], &config["lora_alpha"]), (&3.into(), &6.0.into()));
    assert_eq!(config["modules_to_save"], serde_json::json!(["classifier", "pooler"]));
    let base = config["base_model_name_or_path"].as_str().unwrap();
    assert_eq!(Path::new(base), fs::canonicalize(folder.join("hf")).unwrap());

    // W + (α/r) B A, by the definition.
    let (merged, base) = (
        tensors(&folder.join("merged/model.safetensors")),
        tensors(&folder.join("hf/model.safetensors")),
    );
    assert!(merged.keys().eq(base.keys()));
    let part = |name: &str| &ours[&format!("{module}.{name}.weight")].1;
    let (a, b) = (part("lora_A"), part("lora_B"));
    let name = format!("{module}.weight");
    for (at, (merged, base)) in merged[&name].1.iter().zip(&base[&name].1).enumerate() {
        let (row, column) = (at / 64, at % 64);
        let update: f64 = (0..3).map(|k| b[row * 3 + k] * a[k * 64 + column]).sum();
        assert!((merged - (base + 2.0 * update)).abs() < 1e-7, "{merged} {base} {update}");
    }
    assert_eq!(
        merged["bert.encoder.layer.0.output.dense.bias"],
        base["bert.encoder.layer.0.output.dense.bias"]
    );

    // Back, as a checkpoint with the same adapter, and with the same scores.
    done(
        folder,
        &format!(
            "ckpt config hf --adapter adapter > adapter.yaml
             {TRAIN} -c adapter.yaml {STILL} --run again
             evaluate score again --data tokens -o again-scores
             ckpt config merged --head > merged.yaml
             {TRAIN} -c merged.yaml {STILL} --run merged-run
             evaluate score merged-run --data tokens -o merged-scores"
        ),
    );
    assert_eq!(weights(folder, "again"), ours);
    let predictions =
        |scores: &str| fs::read_to_string(folder.join(scores).join("predictions.jsonl")).unwrap();
    assert_eq!(predictions("again-scores"), predictions("scores"));
    for (a, b) in predictions("scores").lines().zip(predictions("merged-scores").lines()) {
        let [a, b] = [a, b]
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["probabilities"].clone());
        for (label, p) in a.as_object().unwrap() {
            let (p, q) = (p.as_f64().unwrap(), b[label].as_f64().unwrap());
            assert!((p - q).abs() < 1e-5, "{p} {q}");
        }
    }

    let refused = |script: &str, status: i32, text: &str| refused(folder, script, status, text);
    let alone = format!("{TRAIN} {lora} {STILL} --run x");
    refused(&alone, 78, "model.lora.targets");
    refused(&format!("{run} -s model.lora.targets=[q_proj] --run x"), 78, "no linear layer");
    fs::write(
        folder.join("adapter/adapter_config.json"),
        config.to_string().replace("LORA", "IA3"),
    )
    .unwrap();
    refused("ckpt config hf --adapter adapter", 65, "peft_type");
    let dora = config.to_string().replace("\"bias\"", "\"use_dora\":true,\"bias\"");
    fs::write(folder.join("adapter/adapter_config.json"), dora).unwrap();
    refused("ckpt config hf --adapter adapter", 65, "use_dora true");
}

#[test]
fn folders_that_do_not_fit_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    exported(folder);
    let refused = |script: &str, status: i32, text: &str| refused(folder, script, status, text);
    let write = |name: &str, tensors: &[(String, Tensor)]| {
        let path = folder.join(name);
        _ = fs::remove_file(&path);
        foreign::write(&path, tensors).unwrap();
    };
    let source = foreign::open(&folder.join("hf/model.safetensors")).unwrap();
    let read = |entry: &foreign::TensorEntry| {
        (entry.name.clone(), source.read(entry, Dtype::F32).unwrap())
    };
    let all: Vec<(String, Tensor)> = source.tensors().iter().map(read).collect();

    // Another tokenizer; or one with more ids than the table has rows.
    done(
        folder,
        "ds-prep vocabulary split.json --size 150 -o small; ckpt config hf > encoder.yaml",
    );
    done(folder, "ds-prep tokenize split.json --tokenizer small --max-length 32 -o others");
    let run = format!("{TRAIN} -c encoder.yaml {STILL}");
    refused(&format!("{run} -s data.tokens=others --run x"), 78, "model.encoder.tokenizer_hash");
    let unchecked = "-s model.encoder.tokenizer_hash=null";
    refused(
        &format!("{run} {unchecked} -s model.encoder.vocab_size=20 --run x"),
        78,
        "model.encoder.vocab_size is 20",
    );
    // A table with more rows than the tokenizer has ids is good.
    done(folder, &format!("{run} {unchecked} -s data.tokens=others --run padded"));

    // A tensor is missing.
    done(folder, "mkdir less; cp hf/config.json less");
    let lost = "bert.encoder.layer.1.output.dense.weight";
    let rest: Vec<_> = all.iter().filter(|(name, _)| name != lost).cloned().collect();
    write("less/model.safetensors", &rest);
    done(folder, "ckpt config less > less.yaml");
    refused(&format!("{TRAIN} -c less.yaml {STILL} --run x"), 65, &format!("missing: {lost}"));

    // In two files with an index.
    done(folder, "mkdir two; cp hf/config.json two");
    write("two/a.safetensors", &all[..5]);
    write("two/b.safetensors", &all[5..]);
    let map = |names: &[(String, Tensor)], file: &str| -> Vec<(String, Value)> {
        names.iter().map(|(name, _)| (name.clone(), file.into())).collect()
    };
    let index = |more: Vec<(String, Value)>| {
        let all = [map(&all[..5], "a.safetensors"), map(&all[5..], "b.safetensors"), more].concat();
        let map: serde_json::Map<String, Value> = all.into_iter().collect();
        let path = folder.join("two/model.safetensors.index.json");
        fs::write(path, serde_json::json!({"metadata": {}, "weight_map": map}).to_string())
            .unwrap();
    };
    index(Vec::new());
    done(
        folder,
        &format!("ckpt config two --head > two.yaml; {TRAIN} -c two.yaml {STILL} --run two-run"),
    );
    assert_eq!(weights(folder, "two-run"), tensors(&folder.join("hf/model.safetensors")));
    index(vec![("more".into(), "b.safetensors".into())]);
    refused("ckpt config two", 65, "tensor more is missing in b.safetensors");
    index(vec![("more".into(), "../hf/model.safetensors".into())]);
    refused("ckpt config two", 65, "is not the name of a file in its folder");
    index(vec![("more".into(), "c.safetensors".into())]);
    refused("ckpt config two", 66, "c.safetensors");
    index(Vec::new());
    fs::remove_file(folder.join("two/a.safetensors")).unwrap();
    write("two/a.safetensors", &all[..6]);
    let twice = format!("tensor {} is in a.safetensors and in b.safetensors", all[5].0);
    refused("ckpt config two", 65, &twice);

    // A pickle that would run a program.
    let pickle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch/refused-system.pt");
    done(folder, "mkdir bad; cp hf/config.json bad");
    fs::copy(pickle, folder.join("bad/pytorch_model.bin")).unwrap();
    refused("ckpt config bad", 65, "posix.system");
    done(folder, "rm bad/pytorch_model.bin");
    refused("ckpt config bad", 66, "model.safetensors");
    let config = fs::read_to_string(folder.join("hf/config.json")).unwrap();
    for (from, to, text) in [
        (
            "\"bert\"",
            "\"gpt2\"",
            "supported are bert, roberta, xlm-roberta, distilbert, qwen3, qwen2, llama and qwen3_vl",
        ),
        ("\"gelu\"", "\"gelu_new\"", "gelu_new"),
        ("\"hidden_size\"", "\"hidden\"", "hidden 64: the key is not known"),
    ] {
        fs::write(folder.join("bad/config.json"), config.replace(from, to)).unwrap();
        refused("ckpt config bad", 65, text);
    }
}
