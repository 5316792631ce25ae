#!/bin/sh
# The whole pipeline in two dimensions, in a few minutes: decaying flow, from the solver to decoded rollouts.
#   slurm/demo-ns2d.sh [FOLDER OF THE PROGRAMS]
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
say() { printf '\n== %s\n' "$*"; }

rm -rf demo-ns2d

say "data: 140 trajectories for each of two viscosities"
ds-prep gen navier-stokes --parameter 0.001,0.002 --constant forcing=0 --constant scale=10 \
    --samples 140 --grid 64 --frames 25 --end 3 --seed 1 -o demo-ns2d/data
ds-prep split demo-ns2d/data/*.h5 --train 120 --validation 10 --test 10 --seed 1 \
    -o demo-ns2d/data/split.json
ds-prep stats demo-ns2d/data/split.json
ds-prep check demo-ns2d/data/split.json

say "codec: fields to a grid of latent tokens and back"
train-stage codec -c configs/ns2d-codec.yaml --run demo-ns2d/codec

say "latents of the training and validation splits"
latent-cache make demo-ns2d/codec --data demo-ns2d/data/split.json -o demo-ns2d/latents

say "operator: from state to state"
train-stage operator -c configs/ns2d-small.yaml --run demo-ns2d/operator

say "errors on trajectories it was not trained on, next to persistence"
evaluate score demo-ns2d/operator --data demo-ns2d/data/split.json \
    --steps 8 -o demo-ns2d/evaluation --summary demo-ns2d/summary.json
printf '\npictures in demo-ns2d/evaluation/pictures, numbers in demo-ns2d/summary.json\n'
