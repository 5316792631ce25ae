//! Tests of `diff`.

use learn::checkpoint::write;

use super::*;

#[test]
fn a_copy_does_not_differ() {
    let (folder, run) = run();
    let (from, to) = (run.join("ckpt/step-00000020"), folder.path().join("copy"));
    assert!(Command::new("cp").arg("-r").args([&from, &to]).status().unwrap().success());
    let output = ckpt(&["diff"], &[&from, &to]);
    assert_eq!((output.status, output.stdout.as_str(), output.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn tensors_by_relative_change_and_fields_by_name() {
    let (folder, run) = run();
    let mut other = state(30);
    let model = other.tensors.get_mut("model").unwrap();
    // ‖a‖ ignores the NaN; the bias changes by a tenth.
    model[0].1 = Tensor::from_slice(&[1.0_f32, -2.0, f32::NAN, 4.0, 5.0, -6.5], &[2, 3]);
    model[1].1 = Tensor::from_slice(&[0.55_f64], &[1]);
    model[2] = ("more".into(), Tensor::from_slice(&[1.0_f32], &[1]));
    other.tensors.get_mut("optim-0-of-1").unwrap()[0].1 =
        Tensor::from_slice(&[0.0_f32; 6], &[3, 2]);
    other.seed = 18;
    other.config = json!({"training": {"updates": 5}});
    let path = write(folder.path(), &other, 1).unwrap();

    let output = ckpt(&["diff", "--json"], &[&run, &path]);
    assert_eq!((output.status, output.stderr.as_str()), (Some(1), ""));
    let rows = output.json();
    let field = |name: &str| rows.iter().find(|row| row["field"] == name).cloned();
    assert_eq!(
        field("seed").map(|row| (row["a"].clone(), row["b"].clone())),
        Some((json!("17"), json!("18")))
    );
    assert!(field("created").unwrap()["circumstance"].as_bool().unwrap());
    assert!(field("update").is_none());
    let tensors: Vec<&Value> = rows.iter().filter(|row| row["tensor"].is_string()).collect();
    let of = |name: &str| *tensors.iter().find(|row| row["tensor"] == name).unwrap();
    assert_eq!(tensors.len(), 5, "{}", output.stdout);
    let bias = of("core.bias");
    assert!((bias["relative"].as_f64().unwrap() - 0.1).abs() < 1e-12, "{bias}");
    assert!((bias["max_abs"].as_f64().unwrap() - 0.05).abs() < 1e-12, "{bias}");
    assert_eq!(tensors.last().unwrap()["tensor"], "core.bias", "what has no number may be larger");
    assert_eq!(
        (&of("core.weight")["relative"], &of("core.weight")["max_abs"]),
        (&json!(null), &json!(0.5))
    );
    assert_eq!((&of("none")["change"], &of("none")["b"]), (&json!("removed"), &json!(null)));
    assert_eq!(of("more")["change"], "added");
    let moment = of("core.weight.m");
    assert_eq!(
        (&moment["change"], &moment["a"], &moment["b"]),
        (&json!("reshaped"), &json!("F32 [2, 3]"), &json!("F32 [3, 2]"))
    );

    let output = ckpt(&["diff"], &[&run, &path]);
    assert!(output.stdout.contains("seed: 17 -> 18\n"), "{}", output.stdout);
    assert!(output.stdout.contains("config: null -> "), "{}", output.stdout);
}

#[test]
fn damaged_checkpoints_are_not_compared() {
    let (_folder, run) = run();
    flip(&run.join("ckpt/step-00000030/model.safetensors"), 3);
    let output = ckpt(&["diff"], &[&run.join("ckpt/step-00000020"), &run]);
    assert_eq!(output.status, Some(65));
    assert!(output.stderr.contains("tensor core.weight was changed"), "{}", output.stderr);
    assert_eq!(ckpt(&["diff"], &[&run, &run.join("none")]).status, Some(66));
}

#[test]
fn long_lists_are_summarised_for_people_and_complete_in_json() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = |second: f64| {
        let mut state = state(20);
        let mut numbers: Vec<f64> = (0..400).map(f64::from).collect();
        numbers[1] = second;
        state.progress = json!({"numbers": numbers});
        state
    };
    let a = write(one.path(), &state(1.0), 1).unwrap();
    let b = write(other.path(), &state(7.5), 1).unwrap();
    let shown = ckpt(&["show"], &[&a]);
    let line = "progress.numbers: [0.0, 1.0, 2.0, …] (400 numbers from 0 to 399)\n";
    assert!(shown.stdout.contains(line), "{}", shown.stdout);
    let output = ckpt(&["diff"], &[&a, &b]);
    let line = "progress.numbers: 1 of 400 elements differ, first [1]: 1.0 -> 7.5\n";
    assert!(output.stdout.contains(line), "{}", output.stdout);
    let rows = ckpt(&["diff", "--json"], &[&a, &b]).json();
    let row = rows.iter().find(|row| row["field"] == "progress.numbers").unwrap();
    assert_eq!(row["b"].as_array().unwrap().len(), 400);
}
