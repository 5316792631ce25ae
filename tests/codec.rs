//! Options of the codec: the identity in place of one, and the terms of its loss.

use std::path::Path;

use crate::common::run::{prepare, records};
use crate::common::{Captured, shell};
use serde_json::Value;

fn done(folder: &Path, script: &str) -> Captured {
    let output = shell(folder, script);
    assert_eq!(output.status, Some(0), "{}\n{}", output.stdout, output.stderr);
    output
}

/// The number under `key` in the last row of JSON that a command printed.
fn last(output: &Captured, key: &str) -> f64 {
    let row: Value = serde_json::from_str(output.stdout.lines().last().unwrap()).unwrap();
    row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"))
}

/// The records of updates, in order.
fn updates(run: &Path) -> Vec<Value> {
    records(run).into_iter().filter(|record| record["kind"] == "update").collect()
}

fn number(record: &Value, key: &str) -> f64 {
    record.pointer(key).and_then(Value::as_f64).unwrap_or_else(|| panic!("{key}: {record}"))
}

const IDENTITY: &str = "
data: {split: split.json, stats: stats.json}
model: {patch: 1, latent: 1, hidden: 0, encoder_depth: 0, decoder_depth: 0}
loss: {}
training: {updates: 3, batch_size: 4}
optimizer: {method: {kind: adamw}, learning_rate: 1e-2}
";

const FNO: &str = "
data: {train: latents/train, validation: latents/validation, random_shift: true}
model: {backbone: {kind: fno, hidden: 12, depth: 2, modes: 12}}
loss: {validation_steps: 2}
training: {updates: 150, batch_size: 8, validate_every: 150}
optimizer: {method: {kind: adamw}, learning_rate: 5e-3}
";

/// Its gradient is zero, so updates do not change it; only the normalisation rounds.
#[test]
fn an_operator_trains_on_the_fields_themselves() {
    let folder = prepare();
    let folder = folder.path();
    std::fs::write(folder.join("identity.yaml"), IDENTITY).unwrap();
    std::fs::write(folder.join("fno.yaml"), FNO).unwrap();
    let output = done(
        folder,
        "train-stage codec -c identity.yaml --run identity
         evaluate score identity --data split.json --steps 4 --json -o codec",
    );
    // (x - m)/s·s + m rounds four times, each time to one part in 2²⁴ of a number near the standard deviation.
    assert!(last(&output, "codec") < 4.0 * f64::from(f32::EPSILON), "{}", output.stdout);
    let log = updates(&folder.join("identity"));
    assert!(!log.is_empty() && log.iter().all(|record| number(record, "/loss") == 0.0));
    let output = done(
        folder,
        "latent-cache make identity --data split.json -o latents
         train-stage operator -c fno.yaml --run fno
         evaluate score fno --data split.json --steps 4 --json -o fno-report",
    );
    let (error, persistence) = (last(&output, "operator"), last(&output, "persistence"));
    assert!(error < 0.5 * persistence, "{error}, persistence {persistence}");
    let wrong = shell(folder, "train-stage codec -c codec.yaml -s model.hidden=0 --run x --check");
    assert_eq!(wrong.status, Some(78));
    assert!(wrong.stderr.contains("model.encoder_depth: must be 0, not 1"), "{}", wrong.stderr);
}

/// Without learning, the loss of an update depends only on its samples and points. Over many updates its mean at a few
/// points approaches that at all points.
#[test]
fn the_error_at_some_points_estimates_that_at_all() {
    let folder = prepare();
    let folder = folder.path();
    let train = |run: &str, queries: usize| {
        done(
            folder,
            &format!(
                "train-stage codec -c codec.yaml -s loss.reencoding=0 -s loss.queries={queries} \
                 -s 'optimizer.groups=[{{params: [\"*\"], learning_rate: 0}}]' -s training.validate_every=400 \
                 --run {run}"
            ),
        );
        let log = updates(&folder.join(run));
        log.iter().map(|record| number(record, "/loss")).collect::<Vec<_>>()
    };
    let (all, some) = (train("all", 0), train("some", 5));
    let n = all.len() as f64;
    assert_eq!((all.len(), some.len()), (400, 400));
    let differences: Vec<f64> = all.iter().zip(&some).map(|(all, some)| some - all).collect();
    let mean = differences.iter().sum::<f64>() / n;
    let variance = differences.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let (full, error) = (all.iter().sum::<f64>() / n, (variance / n).sqrt());
    // The estimate varies, by little enough for the test to notice a wrong factor.
    assert!(error > 0.0 && error < 0.05 * full, "{full} ± {error}");
    assert!(mean.abs() < 4.0 * error, "{full}: {mean} ± {error}");
    // All 64 points in any order are the whole field.
    let whole = train("whole", 64);
    let same = all.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-5 * a);
    assert!(same);
    let many = shell(folder, "train-stage codec -c codec.yaml -s loss.queries=65 --run x --check");
    assert_eq!(many.status, Some(78), "{}", many.stderr);
    assert!(many.stderr.contains("loss.queries (65) exceeds the 64 grid points"));
}

/// The weight is 0 for W updates, linear up to 2·W, and limited by the cap.
#[test]
fn the_weight_of_the_inverse_loss_follows_its_curriculum() {
    let folder = prepare();
    let folder = folder.path();
    done(
        folder,
        "train-stage codec -c codec.yaml -s training.updates=40 -s training.accumulation=2 --run run \
         -s loss.reencoding=50 -s loss.reencoding_warmup=10 -s loss.reencoding_cap=40 -s loss.queries=0",
    );
    let log = updates(&folder.join("run"));
    assert_eq!(log.len(), 40);
    for (update, record) in log.iter().enumerate() {
        let weight = match update {
            0..=10 => 0.0,
            11..=17 => 5.0 * (update as f64 - 10.0),
            _ => 40.0,
        };
        let [loss, error, inverse] =
            ["/loss", "/loss_terms/reconstruction", "/loss_terms/reencoding"]
                .map(|key| number(record, key));
        assert!(weight == 0.0 || weight * inverse > 1e-3 * error, "{record}");
        // Sums of two micro-batches in f32.
        let expected = error + weight * inverse;
        assert!((loss - expected).abs() < 1e-5 * loss, "{update}: {loss}, not {expected}");
    }
}
