//! `examples/opcheck`, which `cargo test -p tensor` builds along with the tests, has a row for every op and every
//! update on the emulator. `cargo test --test device` alone does not rebuild it.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn every_op_and_update_has_a_row_on_the_emulator() {
    let here = std::env::current_exe().unwrap();
    let program = here.ancestors().nth(2).unwrap().join("examples/opcheck");
    let updates = concat!(env!("CARGO_MANIFEST_DIR"), "/src/updates");
    let folders = std::fs::read_dir(updates).unwrap().map(Result::unwrap);
    let updates = folders.filter(|entry| entry.file_type().unwrap().is_dir());
    let updates = updates.map(|entry| entry.file_name().into_string().unwrap());
    let ops = tensor::ops::ALL.iter().map(|(name, _)| name.to_string());
    let expected: BTreeSet<String> = updates.chain(ops).collect();
    for element in ["f32", "bf16"] {
        let words = ["--json", "--device", "emu", "--below", "20001", "--element", element];
        let output = Command::new(&program).args(words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{element}: {error}");
        let text = String::from_utf8(output.stdout).unwrap();
        let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let timed = |row: &Value| row["forward_us"].as_f64().is_some_and(|time| time > 0.0);
        let rows: Vec<Value> = rows.filter(timed).collect();
        let names = rows.iter().map(|row| row["name"].as_str().unwrap().to_string());
        let found: BTreeSet<String> = names.collect();
        // Some ops compute only in f32, and so do updates, whatever the dtype of the gradients.
        let missing: Vec<&String> = expected.difference(&found).collect();
        assert!(missing.is_empty() || element != "f32", "{missing:?}");
        assert!(found.len() > expected.len() / 2, "{element}: {found:?}");
    }
}
