//! What is written: the resolved configuration without secrets, its hash, the list of keys.

use serde_json::json;
use unix::config::{hash, keys, to_yaml};

use super::types::Run;
use super::{Folder, SMALL};

#[test]
fn secrets_are_written_as_their_variables() {
    let folder = Folder::new(&[
        ("a.yaml", SMALL),
        (
            "b.yaml",
            "tracker: {url: 'http://x?${TRACKER_TOKEN}', token: '${TRACKER_TOKEN}', \
             pin: '${DOOR_PASSWORD}'}\nnotes: [hunter2-sesame]\nname: ${SCRATCH}",
        ),
    ]);
    let loaded = folder.load(&["a.yaml", "b.yaml"], &[]).unwrap();
    let tracker = loaded.config.tracker.unwrap();
    assert_eq!((tracker.token.as_str(), tracker.pin), ("hunter2-sesame", 7341));
    assert_eq!(tracker.url, "http://x?hunter2-sesame");
    let yaml = to_yaml(&loaded.resolved).unwrap();
    assert!(!yaml.contains("hunter2") && !yaml.contains("7341"), "{yaml}");
    assert_eq!(loaded.resolved["tracker"]["url"], "http://x?${TRACKER_TOKEN}");
    assert_eq!(loaded.resolved["tracker"]["pin"], "${DOOR_PASSWORD}");
    assert_eq!(loaded.resolved["name"], "/scratch/me");
}

#[test]
fn the_hash_is_of_the_values_and_not_of_their_order() {
    let one = json!({"a": 1, "b": {"x": [1, 2], "y": 0.1}});
    let two = json!({"b": {"y": 0.1, "x": [1, 2]}, "a": 1});
    let other = json!({"b": {"y": 0.1, "x": [2, 1]}, "a": 1});
    assert_eq!(hash(&one), hash(&two));
    assert_ne!(hash(&one), hash(&other));
    assert_eq!(hash(&one).len(), 64);
}

#[test]
fn every_key_is_listed() {
    let keys = keys::<Run>();
    let paths: Vec<&str> = keys.iter().map(|key| key.path.as_str()).collect();
    let expected = [
        "steps",
        "name",
        "model.kind",
        "model[pdet_stack].hidden",
        "model[pdet_stack].activation",
        "model[unet].widths",
        "model[unet].causal",
        "data.files",
        "data.fraction",
        "optimizer.learning_rate",
        "optimizer.betas",
        "optimizer.threads",
        "schedule",
        "schedule[].kind",
        "schedule[].updates",
        "clip",
        "tracker",
        "tracker.url",
        "tracker.token",
        "tracker.pin",
        "weights",
        "amount",
        "amount.share",
        "notes",
    ];
    assert_eq!(paths, expected);
    let of = |path: &str| keys.iter().find(|key| key.path == path).unwrap();
    assert_eq!(of("steps").takes, "integer ≥ 1");
    assert_eq!((of("steps").doc.as_str(), of("steps").required), ("Updates in all.", true));
    assert_eq!(of("optimizer.learning_rate").default, Some(json!(1e-3)));
    assert_eq!(of("model[pdet_stack].activation").takes, "one of relu, silu, gelu");
    assert_eq!(of("model[pdet_stack].hidden").doc, "Width of the tokens.");
    assert_eq!(of("model.kind").takes, "one of pdet_stack, unet, plain");
    assert_eq!(of("clip").takes, "number, or null");
    assert_eq!(of("tracker").takes, "mapping of url, token, pin, or null");
}
