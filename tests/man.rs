//! The manual pages agree with the programs and the configuration, and their examples work.

mod config;
mod study;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::shell;
use crate::records::{done, npy, values_of};
use serde_json::Value;
use tasks::TASKS;

const PROGRAMS: [&str; 7] =
    ["ckpt", "ds-prep", "evaluate", "hpo", "latent-cache", "timekeep", "train-stage"];

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("man").join(name);
    fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()))
}

/// The stdout of a program, which must succeed.
fn stdout(words: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = shell(folder.path(), words);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""), "{words}");
    output.stdout
}

#[test]
fn the_pages_of_the_programs_are_those_committed() {
    for program in PROGRAMS {
        let is = stdout(&format!("{program} --generate man"));
        assert!(is == page(&format!("{program}.1")), "man/{program}.1 is old: run `make man`");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES", "SEE ALSO"] {
            assert!(is.contains(&format!(".SH {section}\n")), "{program}: no {section}");
        }
    }
}

#[test]
fn every_command_can_write_json() {
    for program in PROGRAMS {
        let page = page(&format!("{program}.1"));
        let commands: Vec<&str> = page.split("\n.SS ").skip(1).collect();
        let commands = if commands.is_empty() { vec![page.as_str()] } else { commands };
        for command in commands {
            assert!(command.contains("\\-\\-json"), "{program}: no --json in {command}");
        }
    }
}

#[test]
fn the_pages_have_no_faults() {
    if !test_support::require_program("mandoc", &["/dev/null"]) {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let is_page = |path: &PathBuf| {
        path.extension().and_then(|e| e.to_str()).is_some_and(|e| ["1", "5", "7"].contains(&e))
    };
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pages: Vec<PathBuf> = entries.filter(is_page).collect();
    assert_eq!(pages.len(), PROGRAMS.len() + 6);
    let lint = Command::new("mandoc").args(["-Tlint", "-W", "warning"]).args(&pages).output();
    assert_eq!(String::from_utf8(lint.unwrap().stdout).unwrap(), "");
}

#[test]
fn help_version_and_completions() {
    for program in PROGRAMS {
        let help = stdout(&format!("{program} --help"));
        assert!(help.contains(&format!("Usage: {program}")) && help.contains("EXAMPLES"), "{help}");
        let version = stdout(&format!("{program} --version"));
        let commit = version.trim_end().strip_prefix(&format!("{program} 0.1.0 (")).unwrap();
        let commit = commit.strip_suffix(')').unwrap();
        let is_hash = commit.len() == 12 && commit.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(is_hash || commit == "unknown", "{version}");
        for shell in ["bash", "zsh", "fish"] {
            let completion = stdout(&format!("{program} --generate {shell}"));
            assert!(completion.contains(program) && completion.contains("json"), "{completion}");
        }
    }
}

/// Makes the folder `pretrained`, a split manifest of texts and classify.yaml.
const PRETRAINED: &str = "mkdir texts; cd texts
ds-prep gen criteria -o data --samples 200 --seed 3
ds-prep import data/annotations.csv --columns data/columns.yaml -o store
ds-prep split store --train 60% --validation 20% --test 20% --seed 1 -o split.json
ds-prep vocabulary split.json -o tokenizer
ds-prep tokenize split.json --tokenizer tokenizer --max-length 64 -o first
train-stage classify --example | sed 's/updates: 600/updates: 3/; s/updates: 60,/updates: 1,/' > classify.yaml
train-stage classify -c classify.yaml -s data.tokens=first --run run
ckpt export run --format hf -o pretrained
cd ..; mv texts/pretrained texts/split.json texts/store texts/classify.yaml .";

/// Makes the folder `qwen`, a split manifest of conversations and sft.yaml.
const DECODER: &str = "
mkdir chat; cd chat
ds-prep gen dialogues -o data --samples 80 --seed 3
ds-prep import data/dialogues.jsonl --columns data/columns.yaml -o chats
ds-prep split chats --train 60% --validation 20% --test 20% --seed 1 -o chats.json
ds-prep vocabulary chats.json --size 320 -o tok
ds-prep tokenize chats.json --tokenizer tok --max-length 96 -o tokens
train-stage sft --example | sed 's/updates: 1000/updates: 2/; s/batch_size: 32/batch_size: 4/' > sft.yaml
train-stage sft -c sft.yaml -s model.decoder.num_hidden_layers=1 --run run
ckpt export run --format hf -o qwen
cd ..; mv chat/qwen chat/chats chat/chats.json chat/sft.yaml .
";

/// The options of the model of tests/golden/mmdit.pt, on texts with vectors of three numbers.
const LGDLM: &str = "data: {tokens: lgdlm-tokens}
model: {hidden: 6, depth: 1, heads: 2, head_size: 4, condition: 4, qk_norm: false, pooled_latent: false, tied: false,
  time_embedding: sinusoidal, max_length: 7, hyper_connections: {streams: 2, kind: manifold}}
loss: {}
training: {updates: 10, batch_size: 4}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
";

/// Makes these texts and vectors, and lgdlm.yaml.
pub fn prepare_lgdlm(folder: &Path) -> &'static str {
    let word = |i: usize| ["a", "b", "c", "d"][i % 4];
    let texts: String = (0..60)
        .map(|i| format!("{{\"text\": \"{} {} {}\"}}\n", word(i), word(i / 4), word(i / 16)))
        .collect();
    fs::write(folder.join("texts.jsonl"), texts).unwrap();
    fs::write(folder.join("texts.yaml"), "text: text\n").unwrap();
    fs::write(folder.join("lgdlm.yaml"), LGDLM).unwrap();
    let values: Vec<f32> = (0..180).map(|i| (i as f32).sin()).collect();
    npy(&folder.join("vectors.npy"), &[60, 3], &values);
    fs::write(folder.join("latest.pt"), include_bytes!("golden/mmdit.pt")).unwrap();
    "
ds-prep import texts.jsonl --columns texts.yaml --vectors vectors.npy -o pairs
ds-prep split pairs -o pairs.json
ds-prep vocabulary pairs.json -o pairs-tokenizer
ds-prep tokenize pairs.json --tokenizer pairs-tokenizer --max-length 6 -o lgdlm-tokens"
}

/// Sets up what the examples of a page assume.
fn before(program: &str, folder: &Path) -> String {
    match program {
        "ckpt" => {
            stdout("train-stage --generate examples")
                + "mkdir runs; mv codec runs/codec\n"
                + PRETRAINED
                + DECODER
                + prepare_lgdlm(folder)
        }
        _ => String::new(),
    }
}

/// Runs the examples of a page in an empty folder, stopping at the first failure.
fn run_examples(program: &str) {
    let examples = stdout(&format!("{program} --generate examples"));
    assert!(examples.contains(program), "{program} has no examples");
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{}\n{examples}", before(program, folder.path()));
    let output = shell(folder.path(), &script);
    assert_eq!(output.status, Some(0), "{program}: {}\n{}", output.stdout, output.stderr);
}

#[test]
fn the_examples_of_the_data_programs_run() {
    ["ds-prep", "timekeep", "latent-cache"].iter().for_each(|program| run_examples(program));
}

#[test]
fn the_examples_of_the_learning_programs_run() {
    ["train-stage", "ckpt", "evaluate", "hpo"].iter().for_each(|program| run_examples(program));
}

/// The commands of README's tour, with the comment after each.
fn tour(readme: &str) -> Vec<(&str, &str)> {
    let (_, tour) = readme.split_once("\n## A tour\n").unwrap();
    let tour = tour.split("\n## ").next().unwrap();
    let lines = tour.lines().filter_map(|line| line.strip_prefix("    "));
    lines.map(|line| line.split_once(" # ").unwrap_or((line, ""))).collect()
}

/// Typed line by line in an empty folder, every command succeeds, except the one whose status is shown. All models but the
/// operator, which is stopped after a second, are trained for fewer updates, on fewer trajectories.
#[test]
fn the_tour_in_the_readme_runs() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let tour = tour(&readme);
    assert!(tour.len() > 12, "{tour:?}");
    let folder = tempfile::tempdir().unwrap();
    for (at, (command, comment)) in tour.iter().enumerate() {
        if command.trim() == "echo $?" {
            continue;
        }
        let shown = tour.get(at + 1).filter(|(next, _)| next.trim() == "echo $?");
        let expected = shown.map_or("0", |(_, comment)| comment.split(':').next().unwrap());
        let fewer = [
            ("updates=300", "updates=20"),
            ("updates=150", "updates=10"),
            ("samples 120", "samples 40"),
        ];
        let less = fewer.iter().fold(command.to_string(), |text, (a, b)| text.replace(a, b));
        let output = shell(folder.path(), &less);
        for name in ["codec", "corrector", "distill"] {
            let path = folder.path().join(format!("{name}.yaml"));
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let lines = text.lines().map(|line| match line.trim_start().starts_with("updates: ") {
                true => "  updates: 40",
                false => line,
            });
            fs::write(path, lines.collect::<Vec<_>>().join("\n")).unwrap();
        }
        let status = output.status.map(|status| status.to_string());
        assert_eq!(status.as_deref(), Some(expected), "{command} # {comment}\n{}", output.stderr);
    }
    let metrics = fs::read_to_string(folder.path().join("report/metrics.json")).unwrap();
    assert!(metrics.contains("persistence"), "{metrics}");
}

/// The example of a task as it is printed, and with it every required key.
#[test]
fn the_examples_of_the_tasks_load() {
    for name in ["codec", "operator", "regression"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("example.yaml");
        fs::write(&file, stdout(&format!("train-stage {name} --example"))).unwrap();
        let task = TASKS.iter().find(|task| task.spec.name == name).unwrap();
        let loaded = (task.load)(&[file], &[], &|_| None).err();
        assert!(loaded.is_none(), "{name}: {}", loaded.unwrap());
        let help = stdout(&format!("train-stage {name} --help"));
        assert!(help.contains("\ntraining.updates  integer from 1"), "{help}");
        for key in (task.keys)() {
            assert!(help.contains(&format!("\n{}  {}; ", key.path, key.takes)), "{}", key.path);
        }
        let schema = stdout(&format!("train-stage {name} --schema"));
        let schema: Value = serde_json::from_str(&schema).unwrap();
        assert!(schema["properties"]["training"].is_object(), "{schema}");
    }
}

/// Each file in configs/ is a configuration of exactly one task.
#[test]
fn the_configurations_of_the_demos_load() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let problems: Vec<String> = TASKS
            .iter()
            .filter_map(|task| (task.load)(std::slice::from_ref(&file), &[], &|_| None).err())
            .map(|error| error.to_string())
            .collect();
        let text = problems.join("\n");
        assert_eq!(problems.len(), TASKS.len() - 1, "{}: {text}", file.display());
    }
}

#[test]
fn longhaul_7_leads_to_every_page() {
    let page = page("longhaul.7");
    for program in PROGRAMS {
        assert!(page.contains(&format!(".It Xr {program} 1\n")), "{program} is not in the list");
    }
    for other in
        ["longhaul-config 5", "longhaul-files 5", "longhaul-recovery 7", "longhaul-slurm 7"]
    {
        assert!(page.contains(&format!(".Xr {other}")), "there is no reference to {other}");
    }
}

/// The literal blocks of a section of an mdoc page.
fn blocks<'a>(page: &'a str, section: &str) -> Vec<&'a str> {
    let (_, text) = page.split_once(&format!("\n.Sh {section}\n")).unwrap();
    let text = text.split("\n.Sh ").next().unwrap();
    let blocks = text.split(".Bd -literal -offset indent\n").skip(1);
    blocks.map(|block| block.split_once(".Ed").unwrap().0).collect()
}

/// The configurations and commands of longhaul(7), with other arrays of the same form and for fewer updates.
#[test]
fn the_regressions_in_longhaul_7_run() {
    let page = page("longhaul.7");
    let blocks = blocks(&page, "REGRESSION ON YOUR OWN ARRAYS");
    let [_, unet, train, compare, _, digits, classify, _] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let wave = |i: usize, class: usize| (i as f32 * (0.3 + 0.05 * class as f32)).sin();
    let noise = |i: usize| (i as f32 * 1.7).sin();

    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let pictures: Vec<f32> = (0..50 * 1024).map(|i| wave(i, 0)).collect();
    for name in ["x.npy", "y.npy", "new.npy"] {
        npy(&folder.join(name), &[50, 32, 32], &pictures);
    }
    assert!(unet.contains("updates: 300"), "{unet}");
    fs::write(
        folder.join("unet.yaml"),
        unet.replace("updates: 300", "updates: 31").replace("hidden: 16", "hidden: 4"),
    )
    .unwrap();
    done(folder, &format!("{train}{compare}"));
    assert!(folder.join("compare.html").is_file() && folder.join("curves.png").is_file());

    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let class = |record: usize| record % 10;
    let picture = |i: usize| wave(i % 64, class(i / 64)) + 0.3 * noise(i);
    let pictures: Vec<f32> = (0..300 * 64).map(picture).collect();
    let one_hot = |i: usize| f32::from(class(i / 10) == i % 10);
    npy(&folder.join("x.npy"), &[300, 8, 8], &pictures);
    npy(&folder.join("y.npy"), &[300, 10], &(0..3000).map(one_hot).collect::<Vec<f32>>());
    assert!(digits.contains("updates: 400"), "{digits}");
    fs::write(folder.join("digits.yaml"), digits.replace("updates: 400", "updates: 100")).unwrap();
    done(folder, classify);
    let split: Value =
        serde_json::from_slice(&fs::read(folder.join("split.json")).unwrap()).unwrap();
    let records = split["test"][0]["samples"].as_array().unwrap();
    let predicted = values_of(&folder.join("test.npy"));
    assert_eq!((predicted.len(), records.len()), (300, 30));
    let right = predicted.chunks(10).zip(records).filter(|(scores, record)| {
        let best = (0..10).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        best == Some(class(record.as_u64().unwrap() as usize))
    });
    assert!(right.count() > 27, "{predicted:?}");
}
