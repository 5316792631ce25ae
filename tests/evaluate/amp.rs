//! `--amp`: products of rounded operands on the CPU, and bf16 on a GPU. Results say how they were computed.

use super::predictions::{done, read};
use super::{evaluate, json, metric, world};
use crate::common::shell;
use data::fields::latents::LatentStore;
use serde_json::{Value, json};
use std::fs;

/// Operands have 8 significant bits, so a term of a product is off by at most 2⁻⁸, and some layers later a field by a few times
/// that, relative to its norm. An error relative to that norm (nrmse) is then off by at most as much.
const TOLERANCE: f64 = 1.0 / 64.0;

fn difference(a: &Value, b: &Value, method: &str) -> f64 {
    let [a, b] = [a, b].map(|scores| metric(scores, method, "nrmse"));
    (a - b).abs()
}

#[test]
fn scores_differ_in_the_last_digits_and_say_so() {
    let score = |words: &str, to: &str| {
        let output = evaluate(&format!("operator --steps 4 --device cpu {words} -o {to}"));
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        assert_eq!(output.stderr.contains("--amp: "), words.contains("--amp"), "{}", output.stderr);
        json(&format!("{to}/metrics.json"))
    };
    let (single, rounded) = (score("", "single"), score("--amp --threads 1", "rounded"));
    assert_eq!(
        (&single["settings"]["amp"], &rounded["settings"]["amp"]),
        (&Value::Null, &json!(true))
    );
    for method in ["operator", "codec"] {
        let found = difference(&rounded, &single, method);
        assert!((1e-7..TOLERANCE).contains(&found), "{method}: {found:e}");
    }
    // Only the products of models are rounded.
    assert_eq!(difference(&rounded, &single, "mean"), 0.0);
    assert_eq!(score("--amp --threads 3", "rounded-3"), rounded);

    // What was measured without --amp is not continued with it.
    let (words, to) = ("operator --steps 4 --device cpu", "interrupted");
    let killed = "FAIL=save.after_shard:1=kill evaluate score";
    let killed = shell(world(), &format!("{killed} {words} --data data/split.json -o {to}"));
    assert_eq!(killed.status, Some(137), "{}", killed.stderr);
    assert!(world().join(to).join("partial.json").is_file());
    let output = evaluate(&format!("{words} --amp -o {to}"));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(!output.stderr.contains("resuming after"), "{}", output.stderr);
    assert_eq!(json(&format!("{to}/metrics.json")), rounded);
}

#[test]
fn predictions_and_latents_say_so_too() {
    let predict = "evaluate predict codec --inputs data/*u0.1.hdf5 --device cpu -o";
    let make = "latent-cache make codec --data data/split.json --device cpu -o cached";
    done(&format!(
        "{predict} plain.safetensors; {predict} amp.safetensors --amp; {make} --amp; cp -r cached first"
    ));
    let says = |file: &str| {
        let bytes = fs::read(world().join(file)).unwrap();
        String::from_utf8_lossy(&bytes[..4096]).contains(r#""amp":"true""#)
    };
    assert!(says("amp.safetensors") && !says("plain.safetensors"));
    near(&read("amp.safetensors", 0), &read("plain.safetensors", 0));

    let latents = |folder: &str| {
        let store = LatentStore::open(&world().join(folder).join("train"), None).unwrap();
        (store.key().dtype.clone(), store.sample(0).to_vec())
    };
    let [(single, expected), (rounded, found)] = ["latents", "first"].map(latents);
    assert_eq!([single, rounded], ["f32", "bf16"]);
    near(&found, &expected);
    // Without the option they are made again, and with it after that.
    let again = done(&format!("{make} --json"));
    assert!(again.stdout.contains(r#""shards_kept":0"#), "{}", again.stdout);
    assert_eq!(latents("cached").1, expected);
    let portable = done(&format!("LONGHAUL_CPU=portable {make} --amp"));
    assert!(
        portable.stderr.contains("--amp: operands of products are rounded"),
        "{}",
        portable.stderr
    );
    near(&latents("cached").1, &expected);
}

/// Checks that values are within the tolerance of what they are expected to be, relative to their norm, and not equal.
fn near(found: &[f32], expected: &[f32]) {
    let square =
        |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let error = square(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let ratio = (error / square(&mut expected.iter().copied())).sqrt();
    assert!(ratio < TOLERANCE && ratio > 0.0, "{ratio:e}");
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu")]
fn on_a_device_models_compute_in_bf16() {
    for (words, to) in [("--device cpu", "here"), ("--device emu --amp", "emu-amp")] {
        let output = evaluate(&format!("operator --steps 1 --starts 1 {words} -o {to}"));
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        assert!(!output.stderr.contains("--amp: "), "{}", output.stderr);
    }
    let [here, there] = ["here", "emu-amp"].map(|to| json(&format!("{to}/metrics.json")));
    let found = difference(&there, &here, "operator");
    assert!((1e-5..TOLERANCE).contains(&found), "{found:e}");
}
