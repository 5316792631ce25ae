#!/bin/sh
# The whole pipeline on one machine, in a few minutes: Burgers' equation, from the solver to decoded rollouts. The
# training of the operator is stopped half-way by SIGTERM and resumed.
#   slurm/demo.sh [FOLDER OF THE PROGRAMS]
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
say() { printf '\n== %s\n' "$*"; }

rm -rf demo

say "data: 440 trajectories for each of three viscosities"
ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 440 --seed 1 -o demo/data
ds-prep split demo/data/*.hdf5 --train 400 --validation 20 --test 20 --seed 1 -o demo/data/split.json
ds-prep stats demo/data/split.json
ds-prep check demo/data/split.json

say "codec: fields to latent tokens and back"
train-stage codec -c configs/burgers-codec.yaml --run demo/codec

say "latents of the training and validation splits"
latent-cache make demo/codec --data demo/data/split.json -o demo/latents

say "operator: stopped by SIGTERM in the middle"
train-stage operator -c configs/burgers-operator.yaml --run demo/operator &
training=$!
until grep -qs '"update":2000,' demo/operator/log.jsonl; do
    kill -0 "$training" || exit 1
    sleep 0.2
done
kill -TERM "$training"
status=0
wait "$training" || status=$?
test "$status" -eq 75
ckpt ls demo/operator

say "operator: the same command resumes"
train-stage operator -c configs/burgers-operator.yaml --run demo/operator
ckpt verify demo/operator

say "errors on trajectories it was not trained on, next to persistence"
evaluate score demo/operator --data demo/data/split.json --steps 16 --stride 2 -o demo/evaluation --summary demo/summary.json
printf '\npictures in demo/evaluation/pictures, numbers in demo/summary.json\n'
