//! What is refused, and with which message.

use super::{Folder, SMALL};

#[test]
fn all_violations_at_once_each_with_its_file() {
    let folder = Folder::new(&[
        (
            "a.yaml",
            "stepz: 5\nmodel: {kind: pdet_stak, hidden: 3}\ndata: {files: a.h5, fraction: 1.5}\n\
             clip: tight\nname: 2024\n",
        ),
        (
            "b.yaml",
            "optimizer: {lerning_rate: 1, betas: [0.9], threads: 256}\n\
             schedule: [{kind: linear, updates: -1}, {}]\nweights: {u: x}\nlearning_rate: 3\n",
        ),
    ]);
    let expected = [
        "15 problems in the configuration:",
        "a.yaml: stepz: unknown key; did you mean steps?",
        "b.yaml: learning_rate: unknown key; there is optimizer.learning_rate",
        "a.yaml: steps: missing; it takes integer ≥ 1",
        "a.yaml: model.kind: expected one of pdet_stack, unet, plain; found the text \"pdet_stak\"; \
         did you mean pdet_stack?",
        "a.yaml: data.files: expected list of text; found the text \"a.h5\"",
        "a.yaml: data.fraction: expected number ≥ 0 and ≤ 1; found the number 1.5",
        "a.yaml: clip: expected number, or null; found the text \"tight\"",
        "a.yaml: name: expected text; found the number 2024; put it in quotes: \"2024\"",
        "b.yaml: optimizer.lerning_rate: unknown key; did you mean learning_rate?",
        "b.yaml: optimizer.betas: expected list of 2: number; found 1 elements",
        "b.yaml: optimizer.threads: expected integer from 0 to 255; found the number 256",
        "b.yaml: schedule.0.updates: expected integer ≥ 0, or null; found the number -1",
        "b.yaml: schedule.1.kind: missing; it takes one of linear, cosine",
        "b.yaml: weights.u: expected number; found the text \"x\"",
    ];
    let found = folder.violations(&["a.yaml", "b.yaml"], &[]);
    for line in &expected[1..] {
        assert!(found.iter().any(|f| f == line), "missing: {line}\nfound: {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn single_faults() {
    let folder = Folder::new(&[("a.yaml", SMALL)]);
    let cases = [
        ("steps=0", "-s: steps: expected integer ≥ 1; found the number 0"),
        ("steps=1.5", "-s: steps: expected integer ≥ 1; found the number 1.5"),
        ("steps=", "-s: steps: expected integer ≥ 1; found nothing"),
        ("steps=1e30", "-s: steps: expected integer ≥ 1; found the number 1e+30"),
        ("clip=.inf", "-s: clip: expected number, or null; found the text \".inf\""),
        ("steps.x=1", "-s steps.x=1: steps is the number 100, it has no keys"),
        (
            "data.files.7=b",
            "-s data.files.7=b: data.files is a list of 1, numbered from 0: no 7 in it",
        ),
        ("steps", "-s steps: write it as KEY=VALUE, with dots between keys: model.hidden=64"),
        ("a..b=1", "-s a..b=1: write it as KEY=VALUE, with dots between keys: model.hidden=64"),
        ("model.hidden=3", "-s: model.hidden: unknown key; there is model[pdet_stack].hidden"),
        ("name=a b", "-s: name: a blank in \"a b\""),
        ("amount={share: x}", "-s: amount.share: expected number; found the text \"x\""),
        (
            "notes=${NOT_SET}",
            "-s: notes: the environment variable NOT_SET is not set: set it, write \
          it to .env, or give a default as ${NOT_SET:-…}",
        ),
        (
            "steps=${NOT_SET}",
            "-s: steps: the environment variable NOT_SET is not set: set it, write \
          it to .env, or give a default as ${NOT_SET:-…}",
        ),
        (
            "amount=[]",
            "-s: amount: expected integer ≥ 0, or mapping of share, or null; found a list",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(folder.violations(&["a.yaml"], &[text]), [expected], "{text}");
    }
}

/// The type's own check runs even when the schema has found violations.
#[test]
fn semantic_checks_run_beside_the_schema() {
    let folder =
        Folder::new(&[("a.yaml", SMALL), ("b.yaml", "schedule: [{kind: linear, updates: 101}]")]);
    let found = folder.violations(&["a.yaml", "b.yaml"], &["colour=red"]);
    let expected = ["b.yaml: schedule: 101 updates in 100 steps"];
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(found[1].starts_with("-s: colour: unknown key; known here: steps, name"), "{found:#?}");
    assert_eq!(found[2..], expected);
}

#[test]
fn invalid_files_are_refused() {
    let folder = Folder::new(&[
        ("broken.yaml", "a: [1,\nb: 2\n"),
        ("list.yaml", "- 1"),
        ("twice.yaml", "steps: 1\nsteps: 2"),
        ("tag.yaml", "steps: !python/object 1"),
        ("empty.yaml", "# nothing yet"),
    ]);
    let found = folder.violations(&["broken.yaml", "list.yaml", "twice.yaml", "tag.yaml"], &["=1"]);
    assert_eq!(found.len(), 6, "{found:#?}");
    for (line, start) in found[1..].iter().zip([
        "broken.yaml: did not find",
        "list.yaml: expected keys",
        "twice.yaml: the key \"steps\" is given twice",
        "tag.yaml: steps: YAML tags",
        "-s =1: write it as KEY=VALUE",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
    let empty = folder.violations(&["empty.yaml"], &[]);
    assert!(empty[0].starts_with("empty.yaml: the file is empty"), "{empty:#?}");
    assert_eq!(folder.load(&["absent.yaml"], &[]).unwrap_err().exit, unix::Exit::NoInput);
    std::fs::write(folder.path().join("binary.yaml"), [0xff, 0xfe, 0]).unwrap();
    assert_eq!(folder.violations(&["binary.yaml"], &[]), ["binary.yaml: not UTF-8 text"]);
    let error = folder.load(&["."], &[]).unwrap_err();
    assert!(error.to_string().contains("folder"), "{error}");
}

#[test]
fn secrets_stay_out_of_messages() {
    let folder = Folder::new(&[("a.yaml", SMALL)]);
    let overrides =
        ["steps=${TRACKER_TOKEN}", "model.kind=${TRACKER_TOKEN}", "name=a b${DOOR_PASSWORD}"];
    let found = folder.violations(&["a.yaml"], &overrides).join("\n");
    assert!(!found.contains("hunter2") && !found.contains("7341"), "{found}");
    assert!(found.contains("${TRACKER_TOKEN}"), "{found}");
}
