//! A project folder that is moved as a whole: models find those that they depend on.

use crate::common::shell;

#[test]
fn an_operator_finds_its_codec_after_a_move() {
    let folder = tempfile::tempdir().unwrap();
    let run = |script: &str| {
        let output = shell(folder.path(), script);
        (output.status, output.stderr)
    };
    let made = run("mkdir project; cd project
ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 11 --seed 5 -o data
ds-prep split data/*.hdf5 --seed 5 -o split.json
ds-prep stats split.json
cat > codec.yaml << END
data: {split: split.json, stats: stats.json}
model: {patch: 8, latent: 3, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 2, batch_size: 5, validation_samples: 8}
optimizer: {method: {kind: sgd}, learning_rate: 1e-2}
END
cat > operator.yaml << END
data: {train: latents/train, validation: latents/validation}
model: {backbone: {kind: pdet_stack, hidden: 12, depth: 1, kernel_size: 3}, condition_width: 5}
loss: {horizons: [1], validation_steps: 2}
training: {updates: 2, batch_size: 3, validation_samples: 4}
optimizer: {method: {kind: adamw}, learning_rate: 2e-3}
END
train-stage codec -c codec.yaml --run runs/codec --device cpu
latent-cache make runs/codec --data split.json -o latents --device cpu
train-stage operator -c operator.yaml --run runs/operator --device cpu");
    assert_eq!(made.0, Some(0), "{}", made.1);
    // The second operator is trained on latents that were moved before.
    let moved = run("mv project moved; cd moved
evaluate score runs/operator --data split.json --steps 2 --device cpu -o scores
train-stage operator -c operator.yaml --run runs/second --device cpu
cd ..; mv moved again; cd again
evaluate score runs/second --data split.json --steps 2 --device cpu -o more");
    assert_eq!(moved.0, Some(0), "{}", moved.1);
}
