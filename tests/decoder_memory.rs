//! Memory, operations and cost of fine-tuning a decoder, as `--dry-run` estimates them for GPUs that are not there.

use crate::records::done;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Conversations of 128 tokens, of which the default split leaves enough for batches of 16.
fn prepare(folder: &Path) {
    done(folder, "ds-prep gen dialogues --samples 320 -o asked");
    let asked = folder.join("asked/dialogues.jsonl");
    let rows: Vec<Value> = lines(&fs::read_to_string(&asked).unwrap());
    let mut long = String::new();
    for part in rows.chunks(8) {
        let messages: Vec<&Value> =
            part.iter().flat_map(|row| row["messages"].as_array().unwrap()).collect();
        let row = serde_json::json!({"id": part[0]["id"], "kind": "long", "messages": messages});
        writeln!(long, "{row}").unwrap();
    }
    fs::write(&asked, long).unwrap();
    done(
        folder,
        "ds-prep import asked/dialogues.jsonl --columns asked/columns.yaml -o store
         ds-prep split store -o split.json
         ds-prep vocabulary split.json --size 512 -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 128 -o tokens
         train-stage sft --example > sft.yaml",
    );
}

/// A CPU keeps the same tensors as a GPU in f32: the estimate is compared with the peak of updates that are run here, for
/// blocks that are all kept or all computed again, with and without LoRA.
#[test]
fn memory_of_decoders_on_absent_gpus_is_that_of_their_updates() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    let dry = "train-stage sft -c sft.yaml --run run --dry-run --json -s training.batch_size=16 -s training.validation_samples=1";
    let lora = "-s model.lora='{r: 8, targets: all-linear}' -s checkpoint.frozen=true";
    let estimate = |words: &str| lines(&done(folder, &format!("{dry} {words}")).stdout).remove(0);
    let number = |value: &Value| value.as_f64().unwrap();
    for (adapter, budget) in ["", lora].iter().flat_map(|own| [0.0, 1.0].map(|b| (own, b))) {
        let words = format!("{adapter} -s training.mem_budget={budget}");
        let (here, there) = (estimate(&words), estimate(&format!("{words} --on 24GB")));
        let expected = number(&there["memory_bytes"]) - number(&there["memory"]["context"]);
        let measured = number(&here["memory_bytes"]);
        assert!(
            (expected / measured - 1.0).abs() < 0.15,
            "{words}: {expected} {measured} {}",
            there["memory"]
        );
    }
}

/// Operations counted by hand: four layers of 128 with 4 heads of 32, 2 of keys and values, and 384 in their middle; 16
/// conversations of 128 tokens, of which all but the first are labels.
#[test]
fn operations_on_absent_gpus_are_those_of_the_gradients_that_are_needed() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    prepare(folder);
    done(
        folder,
        "ds-prep tokenize split.json --tokenizer tokenizer --max-length 128 --loss-on all -o all",
    );
    let dry = "train-stage sft -c sft.yaml --run run --dry-run --json -s data.tokens=all -s training.batch_size=16";
    let lora = "-s model.lora='{r: 8, targets: all-linear}' -s checkpoint.frozen=true";
    let estimate = |words: &str| lines(&done(folder, &format!("{dry} {words}")).stdout).remove(0);
    let (samples, tokens) = (16.0, 16.0 * 128.0);
    // Each number is of a forward pass, with two operations for a multiplication and addition.
    let layers = 2.0 * tokens * 4.0 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384) as f64;
    let first_qkv = 2.0 * tokens * (128 * 128 + 2 * 128 * 64) as f64;
    // Each token sees itself and those before it.
    let attention = samples * 4.0 * 4.0 * (4 * 32) as f64 * (128 * 129 / 2) as f64;
    let head = 2.0 * samples * 127.0 * (512 * 128) as f64;
    let low_rank = 2.0 * tokens * 4.0 * 8.0 * (2 * 256 + 2 * 192 + 3 * 512) as f64;
    // Attention and head compute scores and logits again in the backward pass; the embeddings are trained, too.
    let whole = 3.0 * layers + 3.5 * attention + 4.0 * head;
    // No gradients of frozen weights, nor of the frozen embeddings, which the first layer reads.
    let adapted = 2.0 * layers - first_qkv + 3.5 * attention + 3.0 * head + 3.0 * low_rank
        - 2.0 * tokens * 8.0 * (3 * 128) as f64;
    let again = layers + attention;
    for (words, expected) in [
        ("", whole),
        (lora, adapted),
        ("-s training.mem_budget=0", whole + again),
        (&format!("{lora} -s training.mem_budget=0"), adapted + again + low_rank),
    ] {
        let found = estimate(&format!("{words} --on h200"));
        let flops = found["flops"].as_f64().unwrap();
        // Ops that are no products have few operations.
        assert!((1.0..1.02).contains(&(flops / expected)), "{words}: {flops} {expected}");
        assert!(found["cost"].is_null(), "an H200 has no price: {found}");
    }
    let [one, two, own] = ["h100", "h100:2", "h200 -s cost.rate_per_hour=3"]
        .map(|gpu| estimate(&format!("--on {gpu}")))
        .map(|found| [found["cost"].as_f64().unwrap(), found["seconds"].as_f64().unwrap()])
        .map(|[cost, seconds]| cost / seconds * 3600.0);
    assert!((one - 2.5).abs() < 1e-9 && (two - 5.0).abs() < 1e-9 && (own - 3.0).abs() < 1e-9);
}

/// What keeping all blocks of a vision tower and a decoder costs, whose shares of the activations are named. On the CPU the
/// peak has a few more megabytes for either budget.
#[test]
fn memory_of_vision_and_text_on_absent_gpus_is_that_of_their_updates() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(
        folder,
        "ds-prep gen headers --samples 60 --rows 4..5 -o raw
         ds-prep import raw/pages.jsonl --columns raw/columns.yaml -o store
         ds-prep split store -o split.json
         ds-prep vocabulary split.json --size 262 --patch-size 8 -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 512 -o tokens
         train-stage sft --example > sft.yaml",
    );
    let dry = "train-stage sft -c sft.yaml --run run --dry-run --json -s training.batch_size=8 \
               -s training.validation_samples=1 -s model.decoder.hidden_size=64 -s model.decoder.head_dim=16 \
               -s 'model.vision={depth: 4, hidden_size: 64, num_heads: 2, intermediate_size: 256, patch_size: 8, \
               out_hidden_size: 64, num_position_embeddings: 64, deepstack_visual_indexes: [0], mrope_section: [4, 2, 2], \
               image_token_id: 261}'";
    let estimate = |words: &str| lines(&done(folder, &format!("{dry} {words}")).stdout).remove(0);
    let number = |value: &Value| value.as_f64().unwrap();
    let mut shares = Vec::new();
    for budget in [0.0, 1.0] {
        let words = format!("-s training.mem_budget={budget}");
        let (here, there) = (estimate(&words), estimate(&format!("{words} --on 24GB")));
        let memory = &there["memory"];
        let parts = &memory["activations_by_part"];
        let [tower, decoder] = ["vision tower", "decoder"].map(|name| number(&parts[name]));
        let named = (tower + decoder) / number(&memory["activations"]);
        assert!((0.8..=1.05).contains(&named), "{words}: {memory}");
        shares.push([
            tower,
            decoder,
            number(&there["memory_bytes"]),
            number(&here["memory_bytes"]),
        ]);
    }
    let [again, kept] = shares[..] else { panic!("{shares:?}") };
    assert!(again[0] < kept[0] / 2.0 && again[1] < kept[1] / 2.0, "{shares:?}");
    let [expected, measured] = [2, 3].map(|at| kept[at] - again[at]);
    assert!((expected / measured - 1.0).abs() < 0.1, "{shares:?}");
}
