//! Decoders to and from folders of transformers and PEFT. tests/interop/decoders.py opens such folders with these programs.

use super::exchange::{json, tensors, weights};
use crate::common::shell;
use crate::records::{done, refused};
use learn::foreign;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tensor::{Dtype, Tensor};

const TRAIN: &str = "train-stage sft -c sft.yaml -s schedule=[] -s training.validate_every=50 -s training.batch_size=4 \
    -s training.updates=3 -s checkpoint.every=50";
/// A model with more rows than the tokenizer has ids, and widths that blocks of 64 divide.
const SMALL: &str = "-s model.decoder.vocab_size=330 -s model.decoder.hidden_size=64 -s model.decoder.intermediate_size=128 \
    -s model.decoder.num_hidden_layers=2 -s model.decoder.max_position_embeddings=96";
/// Updates that change nothing.
const STILL: &str = "-s training.updates=1 -s optimizer.learning_rate=1e-30";

/// Tokens of conversations, and the example of a configuration.
fn tokens(folder: &Path) {
    done(
        folder,
        "ds-prep gen dialogues -o data --samples 80 --seed 3
         ds-prep import data/dialogues.jsonl --columns data/columns.yaml -o store
         ds-prep split store --train 60% --validation 20% --test 20% --seed 1 -o split.json
         ds-prep vocabulary split.json --size 320 -o tok
         ds-prep tokenize split.json --tokenizer tok --max-length 96 -o tokens
         train-stage sft --example > sft.yaml",
    );
}

/// A decoder in the folder `hf`.
fn exported(folder: &Path, kind: &str) {
    tokens(folder);
    done(folder, &format!("{TRAIN} {SMALL} {kind} --run run; ckpt export run --format hf -o hf"));
}

fn bytes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    files.map(|entry| (name(&entry), fs::read(entry.path()).unwrap())).collect()
}

/// The comparison that `ckpt export --json` prints.
fn compared(folder: &Path, options: &str) -> Value {
    let output = done(folder, &format!("ckpt export --json {options}"));
    let record: Value = serde_json::from_str(&output.stdout).unwrap();
    record["compared"].clone()
}

#[test]
fn decoders_go_to_transformers_and_come_back_to_the_bit() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    tokens(folder);
    let llama3 = "{rope_type: llama3, rope_theta: 1e4, factor: 8, low_freq_factor: 1, high_freq_factor: 4, \
        original_max_position_embeddings: 32}";
    for (kind, options, class) in [
        ("qwen3", "-s model.decoder.tie_word_embeddings=true".to_string(), "Qwen3ForCausalLM"),
        ("qwen2", "-s model.decoder.tie_word_embeddings=false".into(), "Qwen2ForCausalLM"),
        ("llama", format!("-s 'model.decoder.rope_parameters={llama3}'"), "LlamaForCausalLM"),
    ] {
        let options = format!("{SMALL} -s model.decoder.model_type={kind} {options}");
        done(folder, &format!("{TRAIN} {options} --run {kind}"));
        let found = compared(folder, &format!("{kind} --format hf -o {kind}-hf"));
        assert_eq!((&found["largest_difference"], &found["tolerance"]), (&0.0.into(), &0.0.into()));
        assert!(found["largest_logit"].as_f64().unwrap() > 0.1, "{found}");
        let (hf, again) = (format!("{kind}-hf"), format!("{kind}-again"));
        assert_eq!(tensors(&folder.join(&hf).join("model.safetensors")), weights(folder, kind));
        let config = json(&folder.join(&hf).join("config.json"));
        assert_eq!(
            (&config["architectures"][0], &config["dtype"]),
            (&class.into(), &"float32".into())
        );
        assert_eq!(
            (&config["vocab_size"], &config["tie_word_embeddings"]),
            (&330.into(), &(kind != "qwen2").into())
        );
        let own = bytes(&folder.join(&hf));
        let names: Vec<&str> = own.keys().map(String::as_str).collect();
        let expected = [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        assert_eq!(names, expected);
        let generation = json(&folder.join(&hf).join("generation_config.json"));
        let tokenizer = json(&folder.join(&hf).join("tokenizer_config.json"));
        assert_eq!(tokenizer["eos_token"], "<|im_end|>");
        assert_eq!(tokenizer["pad_token"], "<|endoftext|>");
        // Special tokens are the last of the 320.
        assert_eq!(
            (&generation["eos_token_id"], &generation["pad_token_id"]),
            (&319.into(), &317.into())
        );
        assert_eq!(config["eos_token_id"], 319);

        // Training on from it, and exporting that, gives the same folder; the tokens are still those of its tokenizer.
        done(
            folder,
            &format!(
                "ckpt config {hf} > {kind}.yaml
                 {TRAIN} -c {kind}.yaml {STILL} --run {again}
                 ckpt export {again} --format hf -o {again}-hf"
            ),
        );
        assert_eq!(weights(folder, &again), weights(folder, kind));
        assert!(bytes(&folder.join(format!("{again}-hf"))) == own);
    }
    let refused = |script: &str, status: i32, text: &str| refused(folder, script, status, text);
    refused("ckpt export qwen3 --format hf -o qwen3-hf", 73, "qwen3-hf");
    refused("ckpt export qwen3 --format peft -o x", 2, "model.lora is null");
    refused("ckpt export qwen3 --format hf --encoder-only -o x", 2, "--encoder-only");
    refused("ckpt config qwen3-hf --head", 2, "--head");
    done(folder, "mv tokens moved");
    refused("ckpt export qwen3 --format hf -o x", 66, "--tokens");
    done(folder, "ckpt export qwen3 --format hf --tokens moved -o moved-hf; mv moved tokens");
    assert!(bytes(&folder.join("moved-hf")) == bytes(&folder.join("qwen3-hf")));

    // The files are not the model.
    let before = fs::read_dir(folder).unwrap().count();
    let fail = "FAIL=export.written:1=flip ckpt export qwen3 --format hf -o x";
    refused(fail, 1, "x is not written: the files give logits that differ by up to");
    assert_eq!(fs::read_dir(folder).unwrap().count(), before);

    // Tokens of another tokenizer.
    done(
        folder,
        "ds-prep vocabulary split.json --size 300 -o small
         ds-prep tokenize split.json --tokenizer small --max-length 96 -o others",
    );
    refused("ckpt export qwen3 --format hf --tokens others -o x", 65, "the tokenizer differs");
    refused(
        &format!("{TRAIN} -c qwen3.yaml -s data.tokens=others --run x"),
        78,
        "model.tokenizer_hash",
    );
}

#[test]
fn adapters_of_dense_and_quantised_decoders_are_exported_merged_and_read_back() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    exported(folder, "");
    let made = done(folder, "ckpt quantize hf -o nf4").stdout;
    assert!(made.contains("14 matrices of hf in 4 bits, 10 tensors dense"), "{made}");
    let config = json(&folder.join("nf4/config.json"));
    let skipped = config["quantization_config"]["llm_int8_skip_modules"].as_array().unwrap();
    assert!(skipped.contains(&"lm_head".into()) && skipped.contains(&"model.embed_tokens".into()));
    let all = "{r: 3, alpha: 6, targets: all-linear}";
    let some = "{r: 2, alpha: 8, rslora: true, targets: '.*layers\\.1\\..*_proj'}";
    for (base, lora) in [("hf", all), ("nf4", all), ("hf", some)] {
        let run = format!("{base}-{}", if lora == all { "all" } else { "some" });
        done(
            folder,
            &format!(
                "ckpt config {base} > {run}.yaml
                 {TRAIN} -c {run}.yaml -s 'model.lora={lora}' -s optimizer.learning_rate=2e-2 --run {run}"
            ),
        );
        let found = compared(folder, &format!("{run} --format peft -o {run}-adapter"));
        assert_eq!(found["largest_difference"], 0.0);
        // Rounding, and no more than it explains.
        let found = compared(folder, &format!("{run} --format hf -o {run}-merged"));
        let number = |key: &str| found[key].as_f64().unwrap();
        let (difference, tolerance) = (number("largest_difference"), number("tolerance"));
        assert!(difference > 0.0 && difference < tolerance, "{found}");
        assert!(tolerance < 2e-5 * number("largest_logit"), "{found}");
        let config = json(&folder.join(format!("{run}-adapter/adapter_config.json")));
        assert_eq!(
            (&config["task_type"], &config["modules_to_save"]),
            (&"CAUSAL_LM".into(), &Value::Null)
        );
        // PEFT fails on the activations that an expression may match.
        let layers = config["target_modules"].as_array().unwrap();
        assert_eq!(layers.len(), if lora == all { 14 } else { 7 });
        let named = config["base_model_name_or_path"].as_str().unwrap();
        assert_eq!(Path::new(named), fs::canonicalize(folder.join(base)).unwrap());
        // Back, as a run with the same adapter.
        done(
            folder,
            &format!(
                "ckpt config {base} --adapter {run}-adapter > {run}.yaml
                 {TRAIN} -c {run}.yaml {STILL} --run {run}-again
                 ckpt export {run}-again --format hf -o {run}-merged-again
                 ckpt config {run}-merged > merged.yaml
                 {TRAIN} -c merged.yaml {STILL} --run {run}-merged-run"
            ),
        );
        assert_eq!(weights(folder, &format!("{run}-again")), weights(folder, &run));
        let merged = bytes(&folder.join(format!("{run}-merged")));
        assert!(merged == bytes(&folder.join(format!("{run}-merged-again"))));
        let merged = tensors(&folder.join(format!("{run}-merged/model.safetensors")));
        assert_eq!(weights(folder, &format!("{run}-merged-run")), merged);
    }
    // An update that is lost, or merged twice, is not what rounding explains.
    let fail = "FAIL=export.written:1=flip ckpt export nf4-all --format hf -o x";
    refused(folder, fail, 1, "is not written");
    assert!(!folder.join("x").exists());

    let path = folder.join("hf-all-adapter/adapter_model.safetensors");
    let mut adapter = stored(&path);
    for (name, _) in &mut adapter {
        *name = name.replace("layers.1.mlp.up_proj", "lm_head");
    }
    replace(&path, &adapter);
    refused(folder, "ckpt config hf --adapter hf-all-adapter", 65, "lm_head is adapted, but");
}

fn stored(path: &Path) -> Vec<(String, Tensor)> {
    let file = foreign::open(path).unwrap();
    let read =
        |entry: &foreign::TensorEntry| (entry.name.clone(), file.read(entry, Dtype::F32).unwrap());
    file.tensors().iter().map(read).collect()
}

fn replace(path: &Path, tensors: &[(String, Tensor)]) {
    _ = fs::remove_file(path);
    foreign::write(path, tensors).unwrap();
}

#[test]
fn folders_of_decoders_that_do_not_fit_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    exported(folder, "-s model.decoder.tie_word_embeddings=false");
    let config = |from: &str, to: &str| {
        let text = fs::read_to_string(folder.join("hf/config.json")).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(folder.join("bad/config.json"), text.replace(from, to)).unwrap();
    };
    let good = stored(&folder.join("hf/model.safetensors"));
    let weights = |change: &dyn Fn(&str, &Tensor) -> Option<Tensor>| {
        let changed =
            good.iter().filter_map(|(name, own)| Some((name.clone(), change(name, own)?)));
        replace(&folder.join("bad/model.safetensors"), &changed.collect::<Vec<_>>());
    };
    let fresh = || done(folder, "rm -rf bad; cp -r hf bad");
    let refused = |text: &str| refused(folder, "ckpt config bad", 65, text);

    // config.json: of an unknown model, or with the shapes of another.
    fresh();
    config("\"qwen3\"", "\"gpt2\"");
    refused(
        "bad/config.json: model_type \"gpt2\" is not supported; supported are bert, roberta, xlm-roberta, distilbert, qwen3, \
         qwen2, llama and qwen3_vl",
    );
    config("\"intermediate_size\": 128", "\"intermediate_size\": 120");
    refused(
        "shape: model.layers.1.mlp.up_proj.weight is [128, 64] in the file, [120, 64] by config.json",
    );
    config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    refused("missing: model.layers.2.self_attn.q_proj.weight [128, 64]");
    config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    refused("unknown: model.layers.1.input_layernorm.weight [64]");
    config("\"attention_bias\": false", "\"attention_bias\": true");
    refused("missing: model.layers.0.self_attn.q_proj.bias [128]");
    config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    refused(
        "lm_head.weight differs from model.embed_tokens.weight, but tie_word_embeddings in bad/config.json is true",
    );

    // Weights: without head, with a head that is the embeddings, with the frequencies that old versions stored.
    fresh();
    weights(&|name, own| (name != "lm_head.weight").then(|| own.clone()));
    refused(
        "missing: lm_head.weight [330, 64]; if the logits are computed with the embeddings, set tie_word_embeddings",
    );
    config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    let plain = done(folder, "ckpt config bad").stdout;
    assert!(!plain.contains("names"), "{plain}");
    let table = &good.iter().find(|(name, _)| name == "model.embed_tokens.weight").unwrap().1;
    weights(&|name, own| Some(if name == "lm_head.weight" { table.clone() } else { own.clone() }));
    let mut more = stored(&folder.join("bad/model.safetensors"));
    more.push((
        "model.layers.0.self_attn.rotary_emb.inv_freq".into(),
        Tensor::zeros(&[16], Dtype::F32),
    ));
    replace(&folder.join("bad/model.safetensors"), &more);
    done(folder, &format!("ckpt config bad > bad.yaml; {TRAIN} -c bad.yaml {STILL} --run tied"));
    assert!(!super::exchange::weights(folder, "tied").contains_key("lm_head.weight"));

    // Values that are not finite are refused where they are loaded.
    fresh();
    weights(&|name, own| {
        let mut own = own.clone();
        if name == "model.layers.1.mlp.down_proj.weight" {
            own.write::<f32>()[5] = f32::NAN;
        }
        Some(own)
    });
    done(folder, "ckpt config bad > bad.yaml");
    for lora in ["null", "{r: 2, targets: [q_proj]}"] {
        let run = shell(folder, &format!("{TRAIN} -c bad.yaml -s 'model.lora={lora}' --run x"));
        assert_eq!(run.status, Some(65), "{}", run.stderr);
        let text = "bad/model.safetensors: model.layers.1.mlp.down_proj.weight: some values are not finite";
        assert!(run.stderr.contains(text), "{}", run.stderr);
    }

    // A missing shard, and one without the tensor that the index names.
    fresh();
    fs::remove_file(folder.join("bad/model.safetensors")).unwrap();
    replace(&folder.join("bad/a.safetensors"), &good[..6]);
    let files = |at: usize| if at < 6 { "a.safetensors" } else { "b.safetensors" };
    let map: serde_json::Map<String, Value> =
        good.iter().enumerate().map(|(at, (name, _))| (name.clone(), files(at).into())).collect();
    let index = serde_json::json!({"metadata": {}, "weight_map": map}).to_string();
    fs::write(folder.join("bad/model.safetensors.index.json"), index).unwrap();
    let missing = shell(folder, "ckpt config bad");
    assert_eq!(missing.status, Some(66), "{}", missing.stderr);
    assert!(missing.stderr.contains("bad/b.safetensors"), "{}", missing.stderr);
    replace(&folder.join("bad/b.safetensors"), &good[7..]);
    refused(&format!("tensor {} is missing in b.safetensors", good[6].0));
    replace(&folder.join("bad/b.safetensors"), &good[6..]);
    done(folder, &format!("ckpt config bad > bad.yaml; {TRAIN} -c bad.yaml {STILL} --run shards"));
    assert_eq!(
        super::exchange::weights(folder, "shards"),
        tensors(&folder.join("hf/model.safetensors"))
    );

    // Tokenizers: with too many ids, without an end; a template may be missing until texts are tokenized.
    fresh();
    config("\"vocab_size\": 330", "\"vocab_size\": 319");
    refused("vocab_size 319 is less than the 320 ids of the tokenizer in the folder");
    fresh();
    let tokenizer = fs::read_to_string(folder.join("hf/tokenizer_config.json")).unwrap();
    let without = tokenizer.replace("\"eos_token\": \"<|im_end|>\",", "");
    assert!(without != tokenizer);
    fs::write(folder.join("bad/tokenizer_config.json"), without).unwrap();
    refused("bad/tokenizer_config.json: the tokenizer has no eos_token");
    let other = tokenizer.replace("\"eos_token\": \"<|im_end|>\"", "\"eos_token\": \"<|nope|>\"");
    fs::write(folder.join("bad/tokenizer_config.json"), other).unwrap();
    refused("bad/tokenizer.json: the vocabulary has no token <|nope|>, which is the eos_token");
    fresh();
    let warned = done(folder, "rm bad/chat_template.jinja; ckpt config bad");
    assert!(warned.stderr.contains("bad: it has no chat template"), "{}", warned.stderr);
    assert!(warned.stdout.contains("tokenizer_hash: "), "{}", warned.stdout);
    let plain = done(folder, "rm bad/tokenizer*; ckpt config bad");
    assert!(plain.stdout.contains("tokenizer_hash: null") && plain.stderr.is_empty());
}
