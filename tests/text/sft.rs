//! Fine-tuning of decoders, as users run it: from conversations to scores and answers.

use crate::common::shell;
use crate::records::{done, refused};
use report::evaluation::MetricsFile;
use serde_json::Value;
use std::fs;
use std::path::Path;

const DATA: &str = "ds-prep gen dialogues --samples 600 --difficulty easy --seed 2 -o raw
    ds-prep import raw/dialogues.jsonl --columns raw/columns.yaml -o store
    ds-prep split store --train 80% --validation 10% --test 10% --seed 1 -o split.json
    ds-prep vocabulary split.json --size 300 -o tokenizer
    ds-prep tokenize split.json --tokenizer tokenizer --max-length 96 -o tokens
    train-stage sft --example > sft.yaml";
const SMALL: &str = "train-stage sft -c sft.yaml -s training.log_every=1 -s schedule=[] -s optimizer.groups=[] \
    -s model.decoder.hidden_size=32 -s model.decoder.intermediate_size=48 -s model.decoder.num_hidden_layers=2 \
    -s model.decoder.head_dim=8 -s training.batch_size=8";

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn weights(folder: &Path, run: &str, update: usize) -> Vec<u8> {
    let newest = folder.join(run).join(format!("ckpt/step-{update:08}"));
    fs::read(newest.join("model.safetensors")).unwrap()
}

#[test]
fn a_decoder_learns_formats_answers_prompts_and_resumes_to_the_bit() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(folder, DATA);
    let length = "-s training.updates=24 -s training.validate_every=12 -s checkpoint.every=8";
    for (name, options) in [
        ("whole", ""),
        (
            "adapted",
            "-s 'model.lora={r: 4, alpha: 8, dropout: 0.1, targets: all-linear}' -s checkpoint.frozen=true \
             -s optimizer.method.kind=adamw8bit -s training.mem_budget=0",
        ),
    ] {
        let run = format!("{SMALL} {length} {options}");
        done(folder, &format!("{run} --run {name}"));
        let killed = shell(folder, &format!("FAIL=log.write:19=kill {run} --run {name}-killed"));
        assert_eq!(killed.status, Some(137), "{}", killed.stderr);
        done(folder, &format!("{run} --run {name}-killed -s training.threads=1"));
        assert!(
            weights(folder, name, 24) == weights(folder, &format!("{name}-killed"), 24),
            "{name}"
        );
    }

    quantised_bases_resume(folder);

    // A model that has learned to write numbers in another notation, but no more.
    let run = format!(
        "{SMALL} -s training.updates=500 -s training.validate_every=100 -s training.batch_size=32"
    );
    done(folder, &format!("{run} -s optimizer.learning_rate=4e-3 --run run"));
    done(folder, "evaluate score run --data tokens -o scores --max-new-tokens 24");
    let scores = MetricsFile::read(&folder.join("scores")).unwrap();
    let value = |method: &str, metric: &str| scores.scores.methods[method][metric].value;
    assert!(value("sft", "loss") < 0.6 * value("unigram", "loss"), "{:?}", scores.scores);
    assert!((value("sft", "loss").exp() / value("sft", "perplexity") - 1.0).abs() < 1e-9);
    let kinds: Vec<&str> = scores.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(kinds, ["format", "lookup", "sum"]);
    let rows = lines(&fs::read_to_string(folder.join("scores/predictions.jsonl")).unwrap());
    let exact = rows.iter().filter(|row| row["exact_match"] == true).count();
    assert_eq!(exact as f64 / rows.len() as f64, value("sft", "exact_match"));
    assert!(rows.iter().all(|row| (row["text"] == row["answer"]) == (row["exact_match"] == true)));
    let ends = scores.details["answers"].as_object().unwrap();
    let names: Vec<&str> = ends.keys().map(String::as_str).collect();
    assert_eq!(names, ["stop", "length", "runaway", "no_room", "no_answer"]);
    let ends: u64 = ends.values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(ends, scores.scores.samples);
    done(folder, "evaluate score run --data tokens -o losses --max-new-tokens 0");
    let only = MetricsFile::read(&folder.join("losses")).unwrap();
    assert_eq!(only.subject.metric, "loss");
    assert_eq!(only.scores.methods["sft"]["loss"].value, value("sft", "loss"));

    answers_are_generated_for_the_worst(folder, &rows);

    // Answers to prompts are those of the evaluation.
    let predict = "evaluate predict run --inputs raw/dialogues.jsonl --max-new-tokens 24";
    let answers = lines(&done(folder, &format!("{predict} -o -")).stdout);
    assert_eq!(answers.len(), 600);
    for row in &rows {
        let own = answers.iter().find(|own| own["id"] == row["id"]).unwrap();
        assert_eq!((&own["text"], &own["finish"]), (&row["text"], &row["finish"]));
    }
    // Drawn answers depend on the seed, not on the place of a prompt in a batch.
    let drawn = format!("{predict} --temperature 1.5 --top-p 0.95 --min-p 0.01");
    let [one, two, other] = ["0", "0", "1"]
        .map(|seed| done(folder, &format!("{drawn} --sampling-seed {seed} -o -")).stdout);
    assert!(one == two && one != other);
    done(folder, "head -n 3 raw/dialogues.jsonl > first.jsonl");
    let first = done(folder, &format!("{} -o -", drawn.replace("raw/dialogues", "first"))).stdout;
    assert_eq!(lines(&first), lines(&one)[..3]);
}

/// The conversations with the largest losses are those among all, given the rows of all of them, on one rank and on two.
fn answers_are_generated_for_the_worst(folder: &Path, rows: &[Value]) {
    let mut expected: Vec<&Value> = rows.iter().collect();
    expected.sort_by(|a, b| b["loss"].as_f64().unwrap().total_cmp(&a["loss"].as_f64().unwrap()));
    let score = "evaluate score run --data tokens --max-new-tokens 24 --answers worst --worst 20";
    done(folder, &format!("{score} -o worst"));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let found = lines(&read("worst/worst.jsonl"));
    assert_eq!(found.len(), 20);
    for (own, row) in found.iter().zip(expected) {
        for key in ["id", "loss", "answer", "text", "cer", "wer"] {
            assert_eq!(own[key], row[key], "{own} {row}");
        }
    }
    let metrics = MetricsFile::read(&folder.join("worst")).unwrap();
    assert!(!metrics.scores.methods["sft"].contains_key("cer"));
    let other = MetricsFile::read(&folder.join("losses")).unwrap();
    assert_eq!(metrics.subject.differences(&other.subject), Vec::<String>::new());
    assert!(lines(&read("worst/predictions.jsonl")).iter().all(|row| row.get("text").is_none()));
    assert_eq!(read("worst/worst.html").matches("<figure class=\"comparison\">").count(), 20);
    if test_support::require_program("mpirun", &["--version"]) {
        let ranks = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RAYON_NUM_THREADS=1 mpirun --bind-to none \
                     --oversubscribe -n 2";
        done(folder, &format!("{ranks} {score} -o ranks"));
        assert_eq!(read("ranks/worst.jsonl"), read("worst/worst.jsonl"));
    }
    for option in ["--answers worst", "--normalise nfc"] {
        let command = format!("evaluate score run --data tokens -o x --max-new-tokens 0 {option}");
        refused(folder, &command, 2, "no effect with --max-new-tokens 0");
    }
    done(
        folder,
        "evaluate score run --data tokens -o same --max-new-tokens 24 --normalise spaces,nfc,spaces",
    );
    let same = MetricsFile::read(&folder.join("same")).unwrap();
    let all = MetricsFile::read(&folder.join("scores")).unwrap();
    let difference = "normalise is none and nfc,spaces";
    assert_eq!(all.subject.differences(&same.subject), [difference]);
}

/// QLoRA from the run `whole`, killed and resumed on one rank and on two.
fn quantised_bases_resume(folder: &Path) {
    done(
        folder,
        "ckpt export whole --format hf -o hf; ckpt quantize hf -o nf4; ckpt config nf4 > nf4.yaml",
    );
    let run = "train-stage sft -c sft.yaml -c nf4.yaml -s 'model.lora={r: 4, dropout: 0.1, targets: all-linear}' \
         -s checkpoint.frozen=true -s training.log_every=1 -s schedule=[] -s optimizer.groups=[] -s training.batch_size=8 \
         -s training.deterministic=true -s training.updates=24 -s training.validate_every=12 -s checkpoint.every=8";
    done(folder, &format!("{run} --run quantised"));
    let ranks = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RAYON_NUM_THREADS=1 mpirun --bind-to none \
                 --oversubscribe -n 2";
    let has_ranks = test_support::require_program("mpirun", &["--version"]);
    let launchers = [("one", ""), ("two", ranks)];
    for (number, launcher) in launchers.into_iter().take(1 + usize::from(has_ranks)) {
        let command = format!("{launcher} {run} --run quantised-{number}");
        let killed = shell(folder, &format!("FAIL=log.write:19=kill {command}"));
        assert_ne!(killed.status, Some(0), "{}", killed.stderr);
        done(folder, &command);
        let same =
            weights(folder, "quantised", 24) == weights(folder, &format!("quantised-{number}"), 24);
        assert!(same, "{command}");
    }
    quantised_answers_resume(folder, has_ranks.then_some(ranks));
}

/// Answers of the run `quantised`, killed after every block and resumed on one rank, and on four.
fn quantised_answers_resume(folder: &Path, launcher: Option<&str>) {
    done(folder, "head -n 130 raw/dialogues.jsonl > some.jsonl");
    let predict = "evaluate predict quantised --inputs some.jsonl --max-new-tokens 3 -o";
    done(folder, &format!("{predict} whole.jsonl"));
    let answers = |name: &str| fs::read(folder.join(name)).unwrap();
    let mut kills = 0;
    let killed = format!("FAIL=save.after_shard:1=kill {predict} killed.jsonl");
    while shell(folder, &format!("{killed} || exit $?")).status != Some(0) {
        kills += 1;
        assert!(kills < 9, "{killed}");
    }
    assert!(kills > 0 && answers("killed.jsonl") == answers("whole.jsonl"), "{kills}");
    if let Some(launcher) = launcher {
        let launcher = launcher.replace("-n 2", "-n 4");
        done(folder, &format!("{launcher} {predict} four.jsonl"));
        assert!(answers("four.jsonl") == answers("whole.jsonl"));
    }
}

/// With `data.train_subset`, other records than the first do not matter.
#[test]
fn a_subset_of_the_training_data_has_its_first_records() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(folder, DATA);
    // The same conversations but for the answers after the first 16.
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let rows = lines(&read("raw/dialogues.jsonl")).into_iter().enumerate().map(|(i, mut row)| {
        let answer = row["messages"].as_array_mut().and_then(|all| all.last_mut()).unwrap();
        if i >= 16 {
            answer["content"] = format!("{} 1", answer["content"].as_str().unwrap()).into();
        }
        row.to_string() + "\n"
    });
    fs::write(folder.join("changed.jsonl"), rows.collect::<String>()).unwrap();
    done(
        folder,
        "ds-prep import changed.jsonl --columns raw/columns.yaml -o changed-store
         for name in store changed-store; do
           ds-prep split $name --by index -o $name.json
           ds-prep tokenize $name.json --tokenizer tokenizer --max-length 96 -o $name-tokens
         done",
    );
    let run =
        format!("{SMALL} -s training.updates=6 -s training.validate_every=6 -s checkpoint.every=3");
    let of = |tokens: &str, subset: &str| {
        let name = format!("{tokens}-{subset}");
        let options = format!("-s data.tokens={tokens}-tokens -s data.train_subset={subset}");
        done(folder, &format!("{run} {options} --run {name}"));
        weights(folder, &name, 6)
    };
    let [first, more, all] = ["16", "17", "null"].map(|subset| of("store", subset));
    assert!(first != more && first != all);
    assert!(first == of("changed-store", "16"));
    assert!(more != of("changed-store", "17"));
    assert!(all == of("store", "1000000"));
    let log = lines(&read("store-16/log.jsonl"));
    let epochs: Vec<f64> = log.iter().filter_map(|record| record["epoch"].as_f64()).collect();
    assert_eq!(epochs.last(), Some(&3.0), "{epochs:?}");

    let other = |subset: &str| {
        format!("{run} -s data.tokens=store-tokens -s data.train_subset={subset} --run store-16")
    };
    refused(folder, &other("17"), 78, "data.train_subset");
    refused(folder, &other("0"), 78, "data.train_subset");
    done(folder, &format!("{} --accept-config-change -s training.updates=9", other("17")));
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    done(folder, DATA);
    let short = format!("{SMALL} -s training.updates=2 -s training.validate_every=2");
    done(folder, &format!("{short} --run run"));
    let refuse = |words: &str, status: i32, says: &str| {
        refused(folder, &format!("{short} --run other {words}"), status, says);
    };
    refuse("-s model.decoder.vocab_size=200", 78, "ids, but model.decoder.vocab_size is 200");
    refuse("-s model.decoder.max_position_embeddings=16", 78, "--max-length 16");
    refuse("-s model.tokenizer_hash=abc", 78, "model.tokenizer_hash is abc");
    refuse("-s model.decoder.num_key_value_heads=3", 78, "must divide num_attention_heads");
    refuse("-s 'model.lora={targets: [nothing]}' -s checkpoint.frozen=true", 78, "nothing");
    refuse("-s model.decoder.model_type=gpt2", 78, "qwen3, qwen2, llama");

    // Tokens of another template, of another tokenizer, and of texts.
    done(
        folder,
        "cp -r tokenizer renamed; sed -i 's/assistant/model/' renamed/chat_template.jinja
         ds-prep tokenize split.json --tokenizer renamed --max-length 96 -o renamed-tokens
         ds-prep vocabulary split.json --size 270 -o smaller
         ds-prep tokenize split.json --tokenizer smaller --max-length 96 -o smaller-tokens",
    );
    let score = |tokens: &str, says: &str| {
        refused(folder, &format!("evaluate score run --data {tokens} -o x"), 65, says);
    };
    score("renamed-tokens", "the chat template differs");
    score("smaller-tokens", "the tokenizer differs");
    let init = "-s data.tokens=smaller-tokens -s init.from=run";
    refuse(init, 78, "its tokenizer differs");
    done(
        folder,
        &format!("{short} -s data.tokens=renamed-tokens -s init.from=run --run continued"),
    );

    let prompts = |line: &str, options: &str, status: i32, says: &str| {
        fs::write(folder.join("prompts.jsonl"), format!("{line}\n")).unwrap();
        let predict = format!("evaluate predict run --inputs prompts.jsonl -o - {options}");
        refused(folder, &predict, status, says);
    };
    let question = "{\"prompt\": \"What is 1 + 1?\"}";
    prompts("{\"text\": \"a\"}", "", 65, "prompts.jsonl: line 1: it has neither");
    let long = format!("{{\"prompt\": \"{}\"}}", "many words ".repeat(200));
    prompts(&long, "", 65, "leaves no room for an answer");
    prompts(question, "--top-k 5", 2, "no effect without --temperature");
    prompts(question, "--temperature=-1", 2, "--temperature");
    prompts(question, "--temperature 1 --top-p 0", 2, "--top-p");
    prompts(question, "--max-new-tokens 0", 2, "--max-new-tokens");
    prompts(question, "--direction t2l", 2, "not an option of task sft");
}
