#!/bin/sh
# Makes tests/golden/checkpoint-1, a small checkpoint of format 1 that later versions must be able to load. It is made
# once per format and never regenerated, because that would hide that an old one no longer loads.
# PATH=target/debug:$PATH tests/golden/checkpoint-1.sh
set -eu
golden=$(cd "$(dirname "$0")" && pwd)/checkpoint-1
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$work"
ds-prep gen burgers --parameter 0.01 --samples 10 --grid 64 --frames 11 --seed 5 -o data
ds-prep split data/*.hdf5 --seed 5 -o split.json
ds-prep stats split.json -o stats.json
cat > codec.yaml <<'END'
seed: 3
data: {split: split.json, stats: stats.json, random_shift: true, random_reflection: true}
model: {patch: 8, latent: 2, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {reencoding: 0.1}
training: {updates: 20, batch_size: 8, validate_every: 5, validation_samples: 8, ema: 0.9}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 10, keep_every: 10}
END
train-stage codec -c codec.yaml --run run
mkdir -p "$golden"
cp -R run/ckpt/step-00000010 "$golden/"
