//! How a configuration is assembled from files, overrides and defaults.

use serde_json::json;
use unix::config::to_yaml;

use super::types::*;
use super::{Folder, SMALL};

#[test]
fn defaults_are_filled_in() {
    let loaded = Folder::new(&[("a.yaml", SMALL)]).load(&["a.yaml"], &[]).unwrap();
    let expected = json!({
        "steps": 100,
        "name": "",
        "model": {"kind": "plain"},
        "data": {"files": ["a.h5"], "fraction": 0.0},
        "optimizer": {"learning_rate": 0.001, "betas": [0.9, 0.999], "threads": 1},
        "schedule": [],
        "clip": null,
        "tracker": null,
        "weights": {},
        "amount": null,
        "notes": null,
    });
    assert_eq!(loaded.resolved, expected);
}

#[test]
fn later_files_and_overrides_win() {
    let folder = Folder::new(&[
        ("a.yaml", SMALL),
        ("b.yaml", "optimizer: {learning_rate: 1e-4}\nweights: {u: 1, v: 2}\nclip: 5"),
        ("c.yaml", "weights: {v: 3}\nclip:\nnotes: {deep: [1, {x: ~}]}"),
    ]);
    let overrides =
        ["steps=600e3", "data.files.0=b=c.h5", "optimizer.betas=[0, 0.5]", "name=1: #x"];
    let loaded = folder.load(&["a.yaml", "b.yaml", "c.yaml"], &overrides);
    let violations = loaded.unwrap_err().to_string();
    assert!(violations.contains("name: a blank"), "{violations}");
    let overrides =
        ["steps=600e3", "data.files.0=b=c.h5", "optimizer.betas=[0, 0.5]", "name='1e5'"];
    let config = folder.load(&["a.yaml", "b.yaml", "c.yaml"], &overrides).unwrap().config;
    assert_eq!(config.steps, 600_000);
    assert_eq!(config.data.files, [std::path::Path::new("b=c.h5")]);
    assert_eq!(config.optimizer, Optimizer { learning_rate: 1e-4, betas: [0.0, 0.5], threads: 1 });
    assert_eq!(
        config.weights.into_iter().collect::<Vec<_>>(),
        [("u".to_string(), 1.0), ("v".to_string(), 3.0)]
    );
    assert_eq!((config.clip, config.name.as_str()), (None, "1e5"));
    assert_eq!(config.notes, json!({"deep": [1, {"x": null}]}));
}

#[test]
fn another_kind_brings_its_own_keys() {
    let folder = Folder::new(&[
        ("a.yaml", SMALL),
        ("stack.yaml", "model: {kind: pdet_stack, hidden: 64, activation: silu}"),
        ("unet.yaml", "model: {kind: unet, widths: [8, 16], causal: yes}"),
        ("wider.yaml", "model: {kind: unet, widths: [9]}"),
    ]);
    let model = |files: &[&str], overrides: &[&str]| {
        folder.load(files, overrides).map(|loaded| loaded.config.model)
    };
    let unet = |widths: &[u32]| Model::Unet(Unet { widths: widths.into(), causal: true });
    assert_eq!(model(&["a.yaml", "stack.yaml", "unet.yaml"], &[]).unwrap(), unet(&[8, 16]));
    assert_eq!(model(&["a.yaml", "unet.yaml", "wider.yaml"], &[]).unwrap(), unet(&[9]));
    let stack = Model::PdetStack { hidden: 3, activation: Activation::Gelu };
    let words = ["model.kind=pdet_stack", "model.hidden=3"];
    assert_eq!(model(&["a.yaml", "unet.yaml"], &words).unwrap(), stack);
}

/// `kind` of a phase is an ordinary key: changing it keeps its sibling keys.
#[test]
fn an_ordinary_key_named_kind_is_no_tag() {
    let folder = Folder::new(&[
        ("a.yaml", SMALL),
        ("b.yaml", "schedule: [{kind: linear, updates: 10}, {kind: cosine}]"),
    ]);
    let loaded = folder.load(&["a.yaml", "b.yaml"], &["schedule.0.kind=cosine"]).unwrap();
    assert_eq!(
        loaded.config.schedule,
        [
            Phase { kind: Form::Cosine, updates: Some(10) },
            Phase { kind: Form::Cosine, updates: None }
        ]
    );
}

#[test]
fn variables_come_from_the_environment_and_the_env_file() {
    let folder = Folder::new(&[
        (".env", "SCRATCH=/wrong\nDATA=in the file\n"),
        (
            "a.yaml",
            "steps: ${STEPS}\nmodel: {kind: plain}\ndata: {files: ['${SCRATCH}/${DATA}']}\n\
             name: ${NAME:-default}$${X}",
        ),
    ]);
    let loaded = folder.load(&["a.yaml"], &[]).unwrap();
    assert_eq!(loaded.config.steps, 1200);
    assert_eq!(loaded.config.data.files, [std::path::Path::new("/scratch/me/in the file")]);
    assert_eq!(loaded.config.name, "default${X}");
}

/// An unset variable in a value that is overridden does not matter.
#[test]
fn overridden_values_are_not_substituted() {
    let folder = Folder::new(&[("a.yaml", SMALL), ("b.yaml", "name: ${NOT_SET}")]);
    assert_eq!(folder.load(&["a.yaml", "b.yaml"], &["name=n"]).unwrap().config.name, "n");
}

#[test]
fn the_resolved_configuration_loads_to_the_same() {
    let folder = Folder::new(&[
        ("a.yaml", SMALL),
        ("b.yaml", "name: a$${b}1e5\nclip: 0.1\namount: {share: 1e-9}\nnotes: ['on', '1e3', 2.0]"),
        ("c.yaml", "tracker: {url: 'http://${NAME:-x}/', token: '${TRACKER_TOKEN}', pin: 3}"),
    ]);
    let first = folder.load(&["a.yaml", "b.yaml", "c.yaml"], &[]).unwrap();
    std::fs::write(folder.path().join("d.yaml"), to_yaml(&first.resolved).unwrap()).unwrap();
    let again = folder.load(&["d.yaml"], &[]).unwrap();
    assert_eq!(first.config, again.config);
    assert_eq!(first.resolved, again.resolved);
}
