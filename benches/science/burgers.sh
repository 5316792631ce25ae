#!/bin/sh
# Burgers' equation at twelve viscosities: the operator in latent space against persistence and a Fourier neural
# operator on the fields, trained for the same wall time.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen burgers --parameter 0.001,0.002,0.004,0.01,0.02,0.04,0.1,0.2,0.4,1,2,4 --samples 36 --grid 256 \
    --seed 1 -o raw
once split.json ds-prep split raw/*.hdf5 --train 24 --validation 6 --test 6 --seed 1 -o split.json
once stats.json ds-prep stats split.json
# The identity: a codec of single points, whose latents are the normalised fields.
train codec identity "$configs/identity-codec.yaml" -s data.split=split.json -s data.stats=stats.json
once identity-latents/validation/index.json latent-cache make identity --data split.json -o identity-latents

# Errors are pooled over all viscosities, so the loss weighs them by their size rather than by that of the field: with
# the default floor the few fields with a large mean, almost constant at high viscosity, would dominate the result. The
# FNO is better with the default (seed 1: 0.152 of the RMS against 0.190), and keeps it.
loss="-s loss.floor=3 -s loss.horizons=[1,2,4,8]"

for seed in 1 2 3; do
    at=seed-$seed
    mkdir -p "$at"
    train codec "$at/codec" "$configs/burgers-codec.yaml" -s seed=$seed -s data.split=split.json \
        -s data.stats=stats.json -s model.patch=8 -s training.validation_samples=384
    once "$at/latents/validation/index.json" latent-cache make "$at/codec" --data split.json -o "$at/latents"
    train operator "$at/operator" "$configs/burgers-operator.yaml" -s seed=$seed $loss -s training.updates=3300 \
        -s "data.train=$at/latents/train" -s "data.validation=$at/latents/validation"
    score "$at/operator" "$at/ours" --views 8
    on_fields="-s seed=$seed -s data.train=identity-latents/train -s data.validation=identity-latents/validation"
    spent=$(hours "$at/codec" "$at/operator")
    baseline "$spent" operator "$at/fno" "$configs/fno-burgers.yaml" $on_fields
    baseline "$spent" operator "$at/unet" "$configs/unet-burgers.yaml" $on_fields
    score "$at/fno" "$at/fno-score" --views 2
    score "$at/unet" "$at/unet-score" --views 2
done

errors_table --title "Burgers' equation, 12 viscosities" \
    --note "24/6/6 trajectories per viscosity, 256 points, 201 frames; 16 steps of 2 frames from 8 start frames." \
    --note "Other data: the published protocol (1024 points) has persistence 0.640, FNO 0.307." \
    --note "FNO and U-Net: trained on the fields for the wall time of codec and operator, $(updates_of fno)and $(updates_of unet)updates; 3300 of the operator." \
    --method "persistence=ours:persistence" \
    --method "FNO=fno-score:operator" \
    --method "FNO, 2 views=fno-score:views" \
    --method "U-Net=unet-score:operator" \
    --method "operator=ours:operator" \
    --method "operator, 8 views=ours:views" \
    --method "codec alone=ours:codec"
