#!/bin/sh
# Burgers' equation as in PDEBench: 1000 trajectories for each of three viscosities, 41 frames, of which the first 10 are
# given and the others predicted one after the other. The operator in latent space against a Fourier neural operator
# trained for the same wall time. Both are one model for all viscosities, and see only the last given frame.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 1000 --grid 256 --frames 41 --seed 1 -o raw
once split.json ds-prep split raw/*.hdf5 --train 880 --validation 20 --test 100 --seed 1 -o split.json
once stats.json ds-prep stats split.json
train codec identity "$configs/identity-codec.yaml" -s data.split=split.json -s data.stats=stats.json
once identity-latents/validation/index.json latent-cache make identity --data split.json -o identity-latents
loss="-s data.strides=[1] -s loss.horizons=[1,2,4,8]"
rollouts="--from 9 --starts 1 --steps 31"

for seed in 1 2 3; do
    at=seed-$seed
    mkdir -p "$at"
    train codec "$at/codec" "$configs/burgers-codec.yaml" -s seed=$seed -s data.split=split.json \
        -s data.stats=stats.json -s model.patch=8
    once "$at/latents/validation/index.json" latent-cache make "$at/codec" --data split.json -o "$at/latents"
    train operator "$at/operator" "$configs/burgers-operator.yaml" -s seed=$seed $loss -s training.updates=3300 \
        -s "data.train=$at/latents/train" -s "data.validation=$at/latents/validation"
    score "$at/operator" "$at/ours" $rollouts --views 8
    on_fields="-s seed=$seed $loss -s data.train=identity-latents/train -s data.validation=identity-latents/validation"
    spent=$(hours "$at/codec" "$at/operator")
    baseline "$spent" operator "$at/fno" "$configs/fno-burgers.yaml" $on_fields
    baseline "$spent" operator "$at/unet" "$configs/unet-burgers.yaml" $on_fields
    score "$at/fno" "$at/fno-score" $rollouts --views 2
    score "$at/unet" "$at/unet-score" $rollouts --views 2
done

errors_table --title "Burgers' equation as in PDEBench" \
    --note "880/20/100 trajectories for each of 3 viscosities, 256 points, 41 frames (dt = 0.05); frames 10 to 40 from frame 9." \
    --note "FNO and U-Net: trained on the fields for the wall time of codec and operator, $(updates_of fno)and $(updates_of unet)updates; 3300 of the operator." \
    --method "persistence=ours:persistence" \
    --method "FNO=fno-score:operator" \
    --method "FNO, 2 views=fno-score:views" \
    --method "U-Net=unet-score:operator" \
    --method "operator=ours:operator" \
    --method "operator, 8 views=ours:views" \
    --method "codec alone=ours:codec" \
    --column "nRMSE of PDEBench=nrmse_pdebench" \
    --groups nrmse_pdebench
