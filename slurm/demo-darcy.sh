#!/bin/sh
# A steady problem, in a few minutes: Darcy flow, from the permeability of the rock to the pressure.
#   slurm/demo-darcy.sh [FOLDER OF THE PROGRAMS]
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
say() { printf '\n== %s\n' "$*"; }

rm -rf demo-darcy

say "data: 1200 rocks and the flow through each"
ds-prep gen darcy --parameter 1 --samples 1200 --grid 64 --seed 1 -o demo-darcy/data
ds-prep split demo-darcy/data/*.hdf5 --train 1000 --validation 100 --test 100 --seed 1 \
    -o demo-darcy/data/split.json
ds-prep stats demo-darcy/data/split.json

say "model: from rock to pressure"
train-stage regression -c configs/darcy.yaml --run demo-darcy/model

say "errors on rocks it was not trained on, next to the mean and the nearest training sample"
evaluate score demo-darcy/model --data demo-darcy/data/split.json -o demo-darcy/evaluation
printf '\npictures in demo-darcy/evaluation/pictures\n'
