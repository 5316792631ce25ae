#!/bin/sh
# Regression with a U-Net, in three minutes: the next state of a flow, and flows without their noise.
#   slurm/demo-unet.sh [FOLDER OF THE PROGRAMS]
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
say() { printf '\n== %s\n' "$*"; }

rm -rf demo-unet
mkdir demo-unet
configs=$PWD/configs
cd demo-unet

say "data: 150 decaying flows of 21 frames"
ds-prep gen navier-stokes --parameter 0.001 --constant forcing=0 --constant scale=10 --samples 150 --grid 32 \
    --frames 21 --end 12 --seed 1 -o flows

say "records: a frame and the next one, and a noisy frame and the frame itself"
ds-prep import flows/*.h5 --shift 1 -o next
ds-prep import flows/*.h5 --shift 0 --noise 1 -o noisy
for task in next noisy; do
    ds-prep split $task --seed 1 -o $task.json
    ds-prep stats $task.json -o $task-stats.json
    ds-prep check $task.json
    say "$task: a U-Net, and its errors on flows that it was not trained on, next to linear maps"
    train-stage regression -c "$configs/unet.yaml" -s data.split=$task.json -s data.stats=$task-stats.json --run $task-unet
    evaluate score $task-unet --data $task.json -o $task-score
done
printf '\npictures: demo-unet/next-score/pictures/records.png, demo-unet/noisy-score/pictures/records.png\n'
