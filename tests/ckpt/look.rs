//! Tests of the read-only subcommands: `ls`, `show`, `verify`.

use std::io::Write;

use learn::checkpoint::write;

use super::*;

#[test]
fn ls_lists_checkpoints() {
    let (_folder, run) = run();
    fs::remove_file(run.join("ckpt/step-00000010/model.safetensors")).unwrap();
    let output = ckpt(&["ls"], &[&run]);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{}", output.stdout);
    assert!(lines[0].starts_with("checkpoint") && lines[0].contains("nrmse"), "{}", lines[0]);
    assert!(lines[1].ends_with("model.safetensors is missing"), "{}", lines[1]);
    assert!(lines[2].contains("step-00000020") && lines[2].contains("best"), "{}", lines[2]);
    assert!(lines[3].contains("latest") && lines[3].ends_with("good"), "{}", lines[3]);

    let output = ckpt(&["ls", "--json"], &[&run.join("ckpt")]);
    let rows = output.json();
    assert_eq!(
        rows.iter().map(|r| r["update"].as_u64()).collect::<Vec<_>>(),
        [Some(10), Some(20), Some(30)]
    );
    assert_eq!((&rows[0]["good"], &rows[1]["good"]), (&json!(false), &json!(true)));
    assert_eq!((&rows[1]["best"], &rows[1]["latest"]), (&json!(true), &json!(false)));
    assert_eq!(rows[2]["metrics"], json!({"nrmse": 0.1}));
    assert!(rows[2]["bytes"].as_u64().unwrap() > 24 + 8 + 24);
    assert!(rows[2]["age"].as_u64().unwrap() < 600);
}

#[test]
fn ls_without_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let output = ckpt(&["ls"], &[folder.path()]);
    assert_eq!((output.status, output.stdout.as_str(), output.stderr.as_str()), (Some(0), "", ""));
    let output = ckpt(&["ls"], &[&folder.path().join("none")]);
    assert_eq!(output.status, Some(66));
    assert!(output.stderr.contains("none"), "{}", output.stderr);
    assert_eq!(ckpt(&["ls"], &[]).status, Some(2));
}

#[test]
fn show_describes_a_checkpoint() {
    let (_folder, run) = run();
    let output = ckpt(&["show", "--json"], &[&run]);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    let rows = output.json();
    assert_eq!((&rows[0]["update"], &rows[0]["task"]), (&json!(30), &json!("codec")));
    assert_eq!(rows[0]["progress"], json!({"samples": 480}));
    assert_eq!(rows[0]["files"]["model.safetensors"]["blake3"].as_str().unwrap().len(), 64);
    assert_eq!(rows.len(), 5);
    let weight = &rows[1];
    assert_eq!(weight["tensor"], "core.weight");
    assert_eq!((&weight["dtype"], &weight["shape"]), (&json!("F32"), &json!([2, 3])));
    assert_eq!((&weight["nan"], &weight["infinite"]), (&json!(1), &json!(0)));
    assert_eq!((&weight["min"], &weight["max"]), (&json!(-6.0), &json!(5.0)));
    assert!((weight["mean"].as_f64().unwrap() - 0.4).abs() < 1e-15);
    assert!((weight["norm"].as_f64().unwrap() - 82.0_f64.sqrt()).abs() < 1e-12);
    assert_eq!(rows[3]["mean"], Value::Null);

    let best = run.join("ckpt/best");
    let output = ckpt(&["show", "--tensor", "core.bias"], &[&best]);
    assert!(output.stdout.contains("update: 20\n"), "{}", output.stdout);
    assert!(output.stdout.contains("metrics.nrmse: 0.0\n"), "{}", output.stdout);
    let table: Vec<&str> = output.stdout.split("\n\n").nth(1).unwrap().lines().collect();
    assert_eq!(table.len(), 2, "{}", output.stdout);
    assert!(table[1].contains("core.bias") && table[1].contains("F64"), "{}", output.stdout);

    let rows = ckpt(&["show", "--json", "--pattern", "core.weight*"], &[&best]).json();
    assert_eq!(rows.len(), 3);
    assert_eq!(ckpt(&["show", "--tensor", "absent"], &[&best]).status, Some(2));
}

#[test]
fn verify_names_file_and_tensor() {
    let (_folder, run) = run();
    let output = ckpt(&["verify"], &[&run]);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    assert_eq!(output.stdout.matches("good: 4 tensors in 2 files").count(), 3, "{}", output.stdout);

    // The file ends with the empty tensor and core.weight; core.bias, which is f64, comes first.
    flip(&run.join("ckpt/step-00000020/model.safetensors"), 3);
    flip(&run.join("ckpt/step-00000030/manifest.json"), 90);
    let output = ckpt(&["verify", "--json"], &[&run]);
    assert_eq!(output.status, Some(65));
    assert!(output.stderr.contains("2 of 3 checkpoints are damaged"), "{}", output.stderr);
    let rows = output.json();
    let damage = |name: &str| {
        let row = rows.iter().find(|row| row["path"].as_str().unwrap().ends_with(name));
        row.unwrap()["damage"].as_array().unwrap().clone()
    };
    assert!(damage("step-00000010").is_empty());
    let model = &damage("step-00000020")[0];
    assert_eq!(
        (&model["file"], &model["tensor"]),
        (&json!("model.safetensors"), &json!("core.weight"))
    );
    assert_eq!(damage("step-00000030")[0]["file"], "manifest.json");

    let output = ckpt(&["verify"], &[&run.join("ckpt/step-00000020")]);
    assert_eq!(output.status, Some(65));
    assert!(output.stdout.contains("core.weight"), "{}", output.stdout);
    let output = ckpt(&["show"], &[&run.join("ckpt/step-00000030")]);
    assert_eq!(output.status, Some(65));
    assert!(output.stderr.contains("manifest.json was changed"), "{}", output.stderr);
}

#[test]
fn verify_of_missing_checkpoints() {
    let (folder, run) = run();
    let absent = folder.path().join("absent");
    let output = ckpt(&["verify"], &[&absent, &run]);
    assert_eq!(output.status, Some(66));
    assert!(output.stderr.contains("absent"), "{}", output.stderr);
    assert_eq!(output.stdout.matches("good").count(), 3, "the others are verified all the same");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(ckpt(&["verify"], &[&empty]).status, Some(66));
    fs::remove_file(run.join("ckpt/step-00000010/manifest.json")).unwrap();
    let output = ckpt(&["verify"], &[&run.join("ckpt/step-00000010")]);
    assert_eq!(output.status, Some(65));
    assert!(output.stdout.contains("manifest.json is missing"), "{}", output.stdout);
}

#[test]
fn names_come_from_stdin_and_a_closed_pipe_is_quiet() {
    let (_folder, run) = run();
    let mut child = command(&["verify", "-"], &[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let step = run.join("ckpt/step-00000010");
    writeln!(child.stdin.take().unwrap(), "{}", step.display()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().matches("good").count(), 1);

    let mut child = command(&["ls", "--json"], &[&run])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

/// Read-only subcommands change nothing, and work in read-only folders.
#[test]
fn read_only_subcommands_write_nothing() {
    let (_folder, run) = run();
    write(&run.join("ckpt"), &state(40), 1).unwrap();
    fs::create_dir(run.join("ckpt/.tmp-step-00000050-x")).unwrap();
    let listing = || {
        let output =
            Command::new("find").arg(&run).args(["-printf", "%p %s %T@\n"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let before = listing();
    for words in [&["ls"][..], &["show"], &["verify"]] {
        assert_eq!(ckpt(words, &[&run]).status, Some(0));
    }
    assert_eq!(listing(), before);
}
