//! `examples/opcheck`, which `cargo test -p tensor` builds along with the tests, has a row for every op and every
//! update on the emulator. `cargo test --test device` alone does not rebuild it.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Output};

fn command(words: &[&str]) -> Command {
    let here = std::env::current_exe().unwrap();
    let mut command = Command::new(here.ancestors().nth(2).unwrap().join("examples/opcheck"));
    command.args(words);
    command
}

fn opcheck(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

#[test]
fn every_op_and_update_has_a_row_on_the_emulator() {
    let updates = concat!(env!("CARGO_MANIFEST_DIR"), "/src/updates");
    let folders = std::fs::read_dir(updates).unwrap().map(Result::unwrap);
    let updates = folders.filter(|entry| entry.file_type().unwrap().is_dir());
    let updates = updates.map(|entry| entry.file_name().into_string().unwrap());
    let ops = tensor::ops::ALL.iter().map(|(name, _)| name.to_string());
    let expected: BTreeSet<String> = updates.chain(ops).collect();
    for element in ["f32", "bf16"] {
        let words = ["--json", "--device", "emu", "--below", "20001", "--element", element];
        let rows = rows(&opcheck(&words));
        let timed = |row: &Value| row["forward_us"].as_f64().is_some_and(|time| time > 0.0);
        let rows: Vec<Value> = rows.into_iter().filter(timed).collect();
        let names = rows.iter().map(|row| row["name"].as_str().unwrap().to_string());
        let found: BTreeSet<String> = names.collect();
        // Some ops compute only in f32, and so do updates, whatever the dtype of the gradients.
        let missing: Vec<&String> = expected.difference(&found).collect();
        assert!(missing.is_empty() || element != "f32", "{missing:?}");
        assert!(found.len() > expected.len() / 2, "{element}: {found:?}");
    }
}

/// Rates of a file, and rows of which some exceed a limit of memory.
#[test]
fn a_row_that_fails_leaves_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rates.json");
    std::fs::write(&file, "{\"copy_gb_s\": 2.5, \"f32_gflop_s\": 7}").unwrap();
    let file = file.to_str().unwrap();
    let words = ["--json", "--device", "emu", "--below", "3000", "--filter", "norm"];
    let words = [&words[..], &["--ceilings", file]].concat();
    let all = rows(&opcheck(&words));
    assert_eq!((&all[0]["copy_gb_s"], &all[0]["product_gflop_s"]), (&2.5.into(), &7.0.into()));
    let mut limited = command(&words);
    let output = limited.env("LONGHAUL_DEVICE_MEMORY", "20000").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found.len(), all.len(), "{text}");
    for (row, all) in found.iter().zip(&all) {
        assert_eq!((&row["name"], &row["inputs"]), (&all["name"], &all["inputs"]));
    }
    let failed: Vec<&Value> = found.iter().filter(|row| !row["failed"].is_null()).collect();
    assert!(failed.len() > 1 && failed.len() < found.len() - 1, "{text}");
    assert!(failed[0]["failed"].as_str().unwrap().contains("LONGHAUL_DEVICE_MEMORY"), "{text}");
    let from = rows(&opcheck(&[&words[..], &["--from", "2"]].concat()));
    assert_eq!(from.len(), all.len() - 2);
    let output = opcheck(&[&words[..], &["--element", "bf16"]].concat());
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(talk.contains("rates.json: bf16_gflop_s is not a positive number"), "{talk}");
}

#[test]
fn times_are_modelled_from_the_machine_code() {
    let words = ["--json", "--device", "emu", "--model", "h100"];
    let small = opcheck(&[&words[..], &["--below", "20001"]].concat());
    // Some cases launch nothing, such as dropout of nothing.
    let small = rows(&small);
    let takes_time = |row: &&Value| row["forward_modelled_us"].as_f64().is_some_and(|us| us > 0.0);
    let count = small.iter().filter(takes_time).count();
    assert!(count > small.len() * 9 / 10, "{count} of {} cases take time", small.len());
    let large = ["--large", "--filter", "linear", "--below", "200000000000", "--element", "bf16"];
    let large = opcheck(&[&words[..], &large].concat());
    let square =
        rows(&large).into_iter().find(|row| row["inputs"] == "4096x4096 4096x4096").unwrap();
    // 512 parts on 132 multiprocessors: four on the busiest. Each has 64 tiles along k, for which two warpgroups have four wgmma of
    // 128 cycles each, at 1.7 GHz.
    let expected = 4.0 * 64.0 * 2.0 * 4.0 * 128.0 / 1.7e3;
    let found = square["forward_modelled_us"].as_f64().unwrap();
    assert!((found / expected - 1.0).abs() < 1e-3, "{found} is not {expected}");
    assert_eq!(square["forward_limit"], "tensor");
    let refused = opcheck(&["--model", "h100"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--model needs --device"));
}
