#!/bin/sh
# Regression with a U-Net, in three minutes: the next state of a flow, and porous media without noise.
#   slurm/demo-unet.sh [FOLDER OF THE PROGRAMS]
# shellcheck disable=SC2086 # options of several words
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
say() { printf '\n== %s\n' "$*"; }

rm -rf demo-unet
mkdir demo-unet
config=$PWD/configs/unet.yaml
cd demo-unet

say "data: 300 decaying flows of 21 frames; 1500 porous media of two permeabilities"
ds-prep gen navier-stokes --parameter 0.005 --constant forcing=0 --constant scale=10 --samples 300 --grid 32 \
    --frames 21 --end 12 --seed 1 -o flows
ds-prep gen darcy --parameter 1 --samples 1500 --grid 32 --seed 1 -o media

say "records: a frame and the next one; a medium with noise and the medium itself"
ds-prep import flows/*.h5 --shift 1 -o next
medium=media/2D_DarcyFlow_beta1.0.hdf5:nu
ds-prep import $medium --axes nxy --target $medium --target-axes nxy --noise 0.3 -o noisy
for task in next noisy; do
    ds-prep split $task --seed 1 -o $task.json       # all records of a flow stay together
    ds-prep stats $task.json -o $task-stats.json
    ds-prep check $task.json
done

say "next: a U-Net learns the change; its errors on other flows, next to linear maps"
# No channel is a component of a vector. Flips would change the sign of the vorticity.
rotations="-s data.augmentation.rotations=true -s data.augmentation.vectors={}"
train-stage regression -c "$config" -s data.split=next.json -s data.stats=next-stats.json $rotations \
    -s model.integrate=true --run next-unet
evaluate score next-unet --data next.json -o next-score

say "noisy: a U-Net, next to the best Gaussian blur"
train-stage regression -c "$config" -s data.split=noisy.json -s data.stats=noisy-stats.json $rotations \
    -s data.augmentation.flips=true -s model.padding_mode=zeros -s training.updates=200 --run noisy-unet
evaluate score noisy-unet --data noisy.json -o noisy-score
evaluate plot next-unet noisy-unet --metric nrmse
printf '\npictures: demo-unet/next-score/pictures/records.png, demo-unet/noisy-score/pictures/records.png\n'
