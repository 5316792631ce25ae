//! Fine-tuning on a base in 4 bits. tests/interop/quantised.py compares such models with transformers, PEFT and
//! bitsandbytes.

use super::exchange::{TRAIN, exported, weights};
use crate::common::run::records;
use crate::common::shell;
use crate::records::{done, refused};
use learn::foreign;
use std::fs;
use std::path::Path;
use tensor::safetensors::MappedTensors;
use tensor::{Dtype, Tensor};

const LORA: &str = "-s 'model.lora={r: 4, alpha: 8, rslora: true, dropout: 0.1, targets: all-linear}' \
    -s 'optimizer.method={kind: adamw8bit}' -s training.accumulation=2 -s training.updates=12 -s checkpoint.every=3";

/// The tensors of a file, as they are stored.
fn stored(path: &Path) -> Vec<(String, Tensor)> {
    // SAFETY: nothing writes to the file while it is mapped.
    let file = unsafe { MappedTensors::open(&fs::File::open(path).unwrap()) }.unwrap();
    let read = |entry: &tensor::safetensors::Entry| {
        let mut tensor = Tensor::empty(&entry.shape, entry.dtype.dtype().unwrap());
        tensor.as_bytes_mut().copy_from_slice(file.bytes(entry));
        (entry.name.clone(), tensor)
    };
    file.header().entries.iter().map(read).collect()
}

#[test]
fn a_base_in_four_bits_is_trained_killed_and_evaluated() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    exported(folder);
    let run = format!("{TRAIN} -c nf4.yaml {LORA}");
    let made = done(folder, "ckpt quantize hf -o nf4; ckpt config nf4 > nf4.yaml");
    assert!(made.stdout.contains("12 matrices of hf in 4 bits"), "{}", made.stdout);
    refused(folder, "ckpt quantize hf -o nf4", 73, "nf4");
    refused(folder, "ckpt quantize nf4 -o x", 65, "already quantised");
    refused(folder, "ckpt quantize tokenizer -o x", 66, "config.json");

    // As if the file had been in bf16 before.
    done(
        folder,
        "ckpt quantize hf --bf16 -o small; cp -R hf rounded; rm rounded/model.safetensors",
    );
    let rounded = |(name, tensor): (String, Tensor)| (name, tensor.to_dtype(Dtype::Bf16));
    let all: Vec<_> =
        stored(&folder.join("hf/model.safetensors")).into_iter().map(rounded).collect();
    foreign::write(&folder.join("rounded/model.safetensors"), &all).unwrap();
    done(folder, "ckpt quantize rounded -o expected; ckpt config small > /dev/null");
    let weights_of = |of: &str| fs::read(folder.join(of).join("model.safetensors")).unwrap();
    assert!(weights_of("small") == weights_of("expected"));
    let config = fs::read_to_string(folder.join("small/config.json")).unwrap();
    assert!(config.contains("\"dtype\": \"bfloat16\""), "{config}");

    let whole = done(folder, &format!("{run} --run whole"));
    // 2 layers of 4·64² + 2·64·128, and all else; LoRA also of the pooler.
    assert!(whole.stderr.contains("(65536 in 4 bits, 37184 in f32)"), "{}", whole.stderr);
    assert!(whole.stderr.contains("LoRA of 13 layers"), "{}", whole.stderr);
    let state = |run: &str| {
        let newest = folder.join(run).join("ckpt/step-00000012");
        ["model.safetensors", "optim-0-of-1.safetensors"]
            .map(|file| fs::read(newest.join(file)).unwrap())
    };
    for attempt in ["log.write:4", "save.after_shard:2", "log.write:7"] {
        let killed = shell(
            folder,
            &format!("FAIL={attempt}=kill {run} -s training.log_every=1 --run killed"),
        );
        assert_eq!(killed.status, Some(137), "{attempt}: {}", killed.stderr);
    }
    done(folder, &format!("{run} --run killed -s training.threads=1"));
    assert!(state("whole") == state("killed"));
    // With checkpoints that hold the base, it need not be there.
    let script = format!(
        "evaluate score whole/ckpt/latest --data tokens -o scores
         ckpt export whole --format peft -o adapter
         ckpt export whole --format hf -o merged
         {run} --run own -s checkpoint.frozen=true -s training.updates=6
         mv nf4 gone
         {run} --run own -s checkpoint.frozen=true --accept-config-change
         evaluate score own/ckpt/latest --data tokens -o own-scores"
    );
    let done_with_own = done(folder, &script);
    let resumed = done_with_own.stderr.rfind("frozen: ").unwrap();
    assert!(
        done_with_own.stderr[resumed..].contains("65536 in 4 bits"),
        "{}",
        done_with_own.stderr
    );
    assert_eq!(weights(folder, "own"), weights(folder, "whole"));
    let predictions =
        |scores: &str| fs::read(folder.join(scores).join("predictions.jsonl")).unwrap();
    assert!(predictions("scores") == predictions("own-scores"));
    let frozen = stored(&folder.join("own/ckpt/latest/frozen.safetensors"));
    assert!(frozen.iter().any(|(name, tensor)| {
        name == "bert.encoder.layer.0.output.dense.weight" && tensor.dtype() == Dtype::U8
    }));
    done(
        folder,
        &format!(
            "mv gone nf4
             FAIL=save.end:1=kill {run} --run stopped && exit 1; test $? = 137
             mv nf4 gone"
        ),
    );
    // A base of another seed.
    done(
        folder,
        &format!(
            "{TRAIN} -s training.updates=1 -s seed=5 --run other
             ckpt export other --format hf -o other-hf
             ckpt quantize other-hf -o nf4"
        ),
    );
    refused(folder, "evaluate score whole --data tokens -o x", 78, "init.from have changed");
    refused(folder, &format!("{run} --run stopped"), 78, "frozen parameters: hash was");
}

#[test]
fn every_form_of_storage_learns_a_batch_and_damaged_ones_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    exported(folder);
    // A dozen texts, which are one batch.
    let run = format!(
        "{TRAIN} -c base.yaml -s 'model.lora={{r: 64, alpha: 64, targets: [query, dense]}}' -s data.tokens=few-tokens \
         -s training.updates=300 -s training.batch_size=7 -s training.log_every=20 -s training.validate_every=300 \
         -s optimizer.learning_rate=3e-3 -s model.encoder.hidden_dropout_prob=0 \
         -s model.encoder.attention_probs_dropout_prob=0 -s model.head.dropout=0"
    );
    done(
        folder,
        "head -13 data/annotations.csv > few.csv
         ds-prep import few.csv --columns data/columns.yaml -o few
         ds-prep split few --train 60% --validation 20% --test 20% --seed 1 -o few.json
         ds-prep tokenize few.json --tokenizer tokenizer --max-length 32 -o few-tokens
         ckpt quantize hf -o nf4; cp -r hf half; ckpt config hf > base.yaml",
    );
    let dense = stored(&folder.join("hf/model.safetensors"));
    let half: Vec<_> = dense.iter().map(|(n, t)| (n.clone(), t.to_dtype(Dtype::Bf16))).collect();
    fs::remove_file(folder.join("half/model.safetensors")).unwrap();
    foreign::write(&folder.join("half/model.safetensors"), &half).unwrap();
    // The file has the form already, or takes it when it is read.
    for (from, storage, form, optimizer) in [
        ("half", "null", "102720 in bf16", "adamw"),
        ("hf", "bf16", "in bf16", "adamw"),
        ("hf", "nf4", "69632 in 4 bits", "adamw"),
        ("nf4", "null", "65536 in 4 bits", "adamw8bit"),
        ("nf4", "bf16", "in bf16", "adamw"),
        ("hf", "null", "102720 in f32", "adamw"),
    ] {
        let name = format!("{from}-{storage}");
        let script = format!(
            "{run} -s init.from={from}/model.safetensors -s init.storage={storage} \
             -s 'optimizer.method={{kind: {optimizer}}}' --run {name}"
        );
        let trained = done(folder, &script);
        assert!(trained.stderr.contains(form), "{name}: {}", trained.stderr);
        let records = records(&folder.join(&name));
        let last = records.iter().rfind(|record| record["kind"] == "update").unwrap();
        let loss = last["loss"].as_f64().unwrap();
        assert!(loss < 1e-3, "{name}: {loss}");
    }
    // An update that is merged is not rounded to the form of the base.
    done(folder, "ckpt export half-null --format hf -o merged");
    let merged = stored(&folder.join("merged/model.safetensors"));
    assert!(merged.iter().all(|(_, tensor)| tensor.dtype() == Dtype::F32));
    refused(
        folder,
        &format!("{TRAIN} -c base.yaml -s init.storage=nf4 --run x"),
        78,
        "no parameter is frozen",
    );

    let good = stored(&folder.join("nf4/model.safetensors"));
    let weight = "bert.encoder.layer.1.output.dense.weight";
    let damaged = |ending: &str, change: &dyn Fn(&Tensor) -> Option<Tensor>| {
        let name = format!("{weight}{ending}");
        let file = folder.join("nf4/model.safetensors");
        fs::remove_file(&file).unwrap();
        let changed = good.iter().filter_map(|(own, tensor)| match *own == name {
            true => Some((own.clone(), change(tensor)?)),
            false => Some((own.clone(), tensor.clone())),
        });
        foreign::write(&file, &changed.collect::<Vec<_>>()).unwrap();
        let x = format!("{run} -s init.from=nf4/model.safetensors --run x");
        move |text: &str| refused(folder, &x, 65, text)
    };
    let shorter = |tensor: &Tensor| {
        let bytes = &tensor.as_bytes()[..tensor.bytes() - 1];
        Some(Tensor::from_slice(bytes, &[bytes.len(), 1]))
    };
    damaged("", &shorter)("needs u8 [4096, 1]");
    damaged(".quant_map", &|_| None)(".quant_map is not");
    damaged(".quant_state.bitsandbytes__nf4", &|_| None)("no description");
    let unsorted = |tensor: &Tensor| {
        let mut tensor = tensor.clone();
        tensor.write::<f32>().swap(100, 101);
        Some(tensor)
    };
    damaged(".nested_quant_map", &unsorted)("is not in ascending order");
    let infinite = |tensor: &Tensor| Some(Tensor::full(tensor.shape(), f64::INFINITY, Dtype::F32));
    damaged(".nested_absmax", &infinite)("not finite");

    // Also where no weight gets 4 bits.
    let table = "bert.embeddings.word_embeddings.weight";
    let mut dense = dense;
    let own = dense.iter_mut().find(|(name, _)| name == table).unwrap();
    own.1.write::<f32>()[3] = f32::NAN;
    fs::remove_file(folder.join("hf/model.safetensors")).unwrap();
    foreign::write(&folder.join("hf/model.safetensors"), &dense).unwrap();
    refused(folder, "ckpt quantize hf -o x", 65, &format!("{table}: some values are not finite"));
}

/// Such as that of a masked language model: it is frozen with the values that it started with.
#[test]
fn a_pooler_that_the_base_lacks_is_drawn_again() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    exported(folder);
    done(
        folder,
        &format!(
            "{TRAIN} -s training.updates=1 -s model.head.pooling=mean --run mean
             ckpt export mean --format hf --encoder-only -o encoder
             ckpt config encoder > encoder.yaml
             {TRAIN} -c encoder.yaml {LORA} -s seed=3 --run tuned
             evaluate score tuned --data tokens -o scores
             ckpt export tuned --format hf -o merged"
        ),
    );
    let file = foreign::open(&folder.join("merged/model.safetensors")).unwrap();
    let pooler = file.tensors().iter().find(|t| t.name == "bert.pooler.dense.weight").unwrap();
    assert!(file.read(pooler, Dtype::F64).unwrap().to_f64().iter().any(|x| *x != 0.0));
}
