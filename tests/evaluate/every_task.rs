//! Every verb of `evaluate` with a run of every task, and evaluations that are interrupted or shared by ranks.

use super::world;
use crate::common::{Captured, shell};
use report::evaluation::MetricsFile;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// Runs of the other tasks, beside the codec and the operator.
const MAKE: &str = "
short='-s training.updates=2 -s training.validate_every=2 -s schedule=[]'
for task in corrector distill critic; do train-stage $task --example > $task.yaml; done
train-stage corrector -c corrector.yaml $short -s loss.validation_steps=2 --run corrector
train-stage distill -c distill.yaml $short -s data.corrector=corrector -s loss.validation_steps=2 --run distill
train-stage critic -c critic.yaml $short -s data.corrector=corrector -s loss.validation_steps=2 --run critic
ds-prep gen darcy --parameter 1 --samples 20 --grid 16 --seed 1 -o rock
ds-prep split rock/*.hdf5 --seed 1 -o rock/split.json
ds-prep stats rock/split.json
train-stage regression --example > darcy.yaml
train-stage regression -c darcy.yaml $short -s data.split=rock/split.json -s data.stats=rock/stats.json --run steady
medium=rock/2D_DarcyFlow_beta1.0.hdf5:nu
ds-prep import $medium --axes nxy --target $medium --target-axes nxy --noise 0.3 -o pairs
ds-prep split pairs --seed 1 --train 20% --validation 10% --test 70% -o pairs.json
ds-prep stats pairs.json -o pairs-stats.json
train-stage regression -c darcy.yaml $short -s data.split=pairs.json -s data.stats=pairs-stats.json --run records
ds-prep gen criteria --samples 900 --seed 1 -o texts
small='-s model.encoder.hidden_size=16 -s model.encoder.intermediate_size=16 -s optimizer.groups=[]'
for task in classify:columns span:spans joint:joint; do
    kind=${task#*:} task=${task%:*}
    ds-prep import texts/annotations.csv --columns texts/$kind.yaml -o $task-store
    ds-prep split $task-store --seed 1 --train 20% --validation 10% --test 70% -o $task.json
    ds-prep vocabulary $task.json -o $task-tokenizer
    ds-prep tokenize $task.json --tokenizer $task-tokenizer --max-length 48 -o $task-tokens
    train-stage $task --example > $task.yaml
    train-stage $task -c $task.yaml $short $small -s data.tokens=$task-tokens --run $task
done
ds-prep gen sentences --samples 300 --test 20 --seed 1 -o sentences
for part in pairs test; do
    ds-prep import sentences/$part.jsonl --columns sentences/columns.yaml --vectors sentences/$part.npy -o cycle-$part
done
ds-prep split cycle-pairs --test-from cycle-test --validation 10% -o cycle.json
ds-prep vocabulary cycle.json -o cycle-tokenizer
ds-prep tokenize cycle.json --tokenizer cycle-tokenizer --max-length 22 -o cycle-tokens
train-stage cycle-vae --example > cycle-vae.yaml
train-stage cycle-vae -c cycle-vae.yaml $short -s data.tokens=cycle-tokens --run cycle-vae
ds-prep gen dialogues --samples 150 --seed 1 -o chats
ds-prep import chats/dialogues.jsonl --columns chats/columns.yaml -o chat-store
ds-prep split chat-store --seed 1 --train 30% --validation 10% --test 60% -o chat.json
ds-prep vocabulary chat.json --size 300 -o chat-tokenizer
ds-prep tokenize chat.json --tokenizer chat-tokenizer --max-length 128 -o chat-tokens
train-stage sft --example > sft.yaml
sft='train-stage sft -c sft.yaml -s data.tokens=chat-tokens -s model.decoder.num_hidden_layers=1'
$sft $short --run sft-base
$sft $short -s init.from=sft-base -s init.storage=nf4 -s 'model.lora={targets: all-linear}' --run sft";

/// Name of a run, its data, how it is scored, and the inputs and the output of predictions.
type Case = (&'static str, &'static str, [&'static str; 2]);

const CASES: [Case; 11] = [
    ("codec", "--data data/split.json --steps 4 --worst 2", ["data/*u0.1.hdf5", "npy"]),
    ("operator", "--data data/split.json --steps 4", ["data/*u0.1.hdf5 --steps 3", "npy"]),
    ("corrector", "--data data/split.json --steps 2", ["data/*u0.1.hdf5 --steps 2", "npy"]),
    ("distill", "--data data/split.json --steps 2", ["data/*u0.1.hdf5 --steps 2", "npy"]),
    ("steady", "--data rock/split.json", ["rock/*.hdf5", "hdf5"]),
    ("records", "--data pairs.json", ["rock/2D_DarcyFlow_beta1.0.hdf5:nu --axes nxy", "npy"]),
    (
        "classify",
        "--data classify-tokens",
        ["texts/annotations.csv --columns texts/columns.yaml", "jsonl"],
    ),
    ("span", "--data span-tokens", ["texts/annotations.csv --columns texts/spans.yaml", "jsonl"]),
    ("joint", "--data joint-tokens", ["texts/annotations.csv --columns texts/joint.yaml", "jsonl"]),
    (
        "cycle-vae",
        "--data cycle-tokens --texts 10 --text-steps 1,4 --drafts 2",
        ["sentences/test.jsonl --direction t2l", "jsonl"],
    ),
    (
        "sft",
        "--data chat-tokens --max-new-tokens 4",
        ["chats/dialogues.jsonl --max-new-tokens 4", "jsonl"],
    ),
];

fn runs() -> &'static Path {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| _ = done(world(), MAKE));
    world()
}

fn done(folder: &Path, script: &str) -> Captured {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(0), "{script}: {}", output.stderr);
    output
}

#[test]
fn every_verb_takes_a_run_of_every_task() {
    let folder = runs();
    let done = |script: &str| done(folder, script);
    for (run, score, [inputs, ending]) in CASES {
        done(&format!("evaluate score {run} {score} -o {run}-scores"));
        let file = MetricsFile::read(&folder.join(format!("{run}-scores"))).unwrap();
        let (task, metric) = (&file.subject.task, &file.subject.metric);
        let (method, own) = file.scores.methods.first().unwrap();
        assert!(
            (method == task || run == "distill") && own[metric].direction.is_some(),
            "{run}: {method} {metric}"
        );
        assert!(file.scores.samples > 0 && file.scores.methods.len() > 1, "{run}");
        done(&format!("evaluate score {run} {score} -o {run}-again"));
        let compared = done(&format!(
            "evaluate compare {run}-scores {run}-again --html every-{run}.html --json"
        ));
        for kind in ["metric", "baseline", "difference"] {
            // No baseline gives both classes and answers.
            if (run, kind) == ("joint", "baseline") {
                continue;
            }
            assert!(compared.stdout.contains(&format!("\"kind\":\"{kind}\"")), "{run} {kind}");
        }
        done(&format!("evaluate leaderboard add {run}-scores --board board.jsonl --label {run}"));
        // A result never competes with itself.
        let gate = format!("evaluate gate {run}-again --board board.jsonl --baseline {run}");
        assert_eq!(shell(folder, &gate).status, Some(66), "{run}");
        done(&format!("{gate} --first-passes --summary {run}-gate.json"));
        done(&format!("evaluate analyze {run}; evaluate plot {run} -o every-{run}.svg"));
        done(&format!(
            "evaluate export {run} --format csv -o every-tables --evaluation {run}-scores"
        ));
        done(&format!("evaluate predict {run} --inputs {inputs} -o every-{run}.{ending}"));
        let again = shell(
            folder,
            &format!("evaluate predict {run} --inputs {inputs} -o every-{run}.{ending}"),
        );
        assert_eq!(again.status, Some(73), "{run}: {}", again.stderr);
        let again = shell(folder, &format!("evaluate score {run} {score} -o {run}-scores"));
        assert_eq!(again.status, Some(73), "{run}: {}", again.stderr);
    }
    let board = done("evaluate leaderboard show --board board.jsonl --json").stdout;
    assert_eq!(board.lines().count(), CASES.len(), "{board}");
    for verb in ["score critic --data data/split.json -o x", "predict critic --inputs x -o x.npy"] {
        let refused = shell(folder, &format!("evaluate {verb}"));
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("a critic predicts no fields"), "{}", refused.stderr);
    }
    done("evaluate analyze critic; evaluate plot critic -o every-critic.svg");
}

#[test]
fn options_of_other_tasks_are_refused_by_name_and_not_in_the_help() {
    let folder = runs();
    for (run, words, says) in [
        ("classify", "--data classify-tokens --steps 4", "--steps: not an option of task classify"),
        ("classify", "--data data/split.json", "ds-prep tokenize"),
        ("records", "--data pairs.json --views 2", "--views: no effect on records"),
    ] {
        let refused = shell(folder, &format!("evaluate score {run} {words} -o every-refused"));
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
    for (run, shown) in [("classify", false), ("operator", true)] {
        let help = done(folder, &format!("evaluate score {run} --help")).stdout;
        assert_eq!(help.contains("--steps"), shown, "{help}");
        assert!(help.contains("--worst"), "{help}");
    }
}

/// The content of every file below a folder that depends on the numbers alone.
fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    if path.is_file() {
        all.insert("file".into(), fs::read(path).unwrap());
        return all;
    }
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if ["times.json", "status.json", "lease"].contains(&&*name) {
            continue;
        }
        if path.is_dir() {
            all.extend(
                contents(&path).into_iter().map(|(own, text)| (format!("{name}/{own}"), text)),
            );
        } else {
            all.insert(name, fs::read(&path).unwrap());
        }
    }
    all
}

/// Of each family one run: killed whenever it has stored something, on one rank and on two, it ends with the bits of an
/// undisturbed command.
#[test]
fn killed_evaluations_and_predictions_end_with_the_bits_of_undisturbed_ones() {
    let folder = runs();
    let ranks = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RAYON_NUM_THREADS=1 mpirun --bind-to none \
                 --oversubscribe -n 2";
    let launchers = match test_support::require_program("mpirun", &["--version"]) {
        true => vec!["", ranks],
        false => vec![""],
    };
    // More items than one block has.
    let made = "ds-prep gen burgers --parameter 0.01,0.1 --samples 40 --grid 72 --frames 21 --seed 3 -o more
        ds-prep split more/*.hdf5 --seed 1 --train 1 --validation 1 --test 38 -o more/split.json";
    done(folder, made);
    for (run, score, [inputs, ending]) in [
        (
            "operator",
            "--data more/split.json --steps 4 --starts 6 --worst 1",
            ["more/*u0.1.hdf5 --steps 3", "hdf5"],
        ),
        ("records", "--data pairs.json", ["rock/2D_DarcyFlow_beta1.0.hdf5:nu --axes nxy", "npy"]),
        (
            "joint",
            "--data joint-tokens",
            ["texts/annotations.csv --columns texts/joint.yaml", "jsonl"],
        ),
        (
            "cycle-vae",
            "--data cycle-tokens --texts 5 --text-steps 2 --drafts 2 --draft-steps 2",
            ["sentences/test.jsonl --direction t2l2t --steps 2", "jsonl"],
        ),
        (
            "sft",
            "--data chat-tokens --max-new-tokens 4",
            ["chats/dialogues.jsonl --max-new-tokens 4", "jsonl"],
        ),
    ] {
        let commands = [
            (format!("evaluate score {run} {score} -o"), format!("{run}-folder")),
            (
                format!("evaluate predict {run} --inputs {inputs} -o"),
                format!("{run}-file.{ending}"),
            ),
        ];
        for (command, to) in commands {
            done(folder, &format!("{command} whole-{to}"));
            let expected = contents(&folder.join(format!("whole-{to}")));
            for (number, launcher) in launchers.iter().enumerate() {
                let killed = format!(
                    "FAIL=save.after_shard:1=kill {launcher} {command} killed-{number}-{to}"
                );
                let mut kills = 0;
                while shell(folder, &format!("{killed} || exit $?")).status != Some(0) {
                    kills += 1;
                    assert!(kills < 50, "{killed}");
                }
                let found = contents(&folder.join(format!("killed-{number}-{to}")));
                let differ: Vec<_> = expected
                    .keys()
                    .filter(|name| expected.get(*name) != found.get(*name))
                    .collect();
                assert!(
                    differ.is_empty() && found.len() == expected.len(),
                    "{killed}: {differ:?} {:?}",
                    found.keys()
                );
                assert!(kills > 0, "{killed}");
            }
        }
    }
}
