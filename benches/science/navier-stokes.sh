#!/bin/sh
# Decaying two-dimensional turbulence at two viscosities: the operator in latent space against persistence and a Fourier
# neural operator on the fields, trained for the same wall time.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen navier-stokes --parameter 0.001,0.002 --constant forcing=0 --constant scale=10 --samples 140 \
    --grid 64 --frames 41 --end 5 --seed 1 -o raw
once split.json ds-prep split raw/*.h5 --train 120 --validation 10 --test 10 --seed 1 -o split.json
once stats.json ds-prep stats split.json
# Patches of 2 x 2 points with 4 features: still the identity, with a quarter of the tokens.
train codec identity "$configs/identity-codec.yaml" -s data.split=split.json -s data.stats=stats.json \
    -s model.patch=2 -s model.latent=4
once identity-latents/validation/index.json latent-cache make identity --data split.json -o identity-latents

for seed in 1 2 3; do
    at=seed-$seed
    mkdir -p "$at"
    train codec "$at/codec" "$configs/ns2d-codec.yaml" -s seed=$seed -s data.split=split.json -s data.stats=stats.json
    once "$at/latents/validation/index.json" latent-cache make "$at/codec" --data split.json -o "$at/latents"
    train operator "$at/operator" "$configs/ns2d-small.yaml" -s seed=$seed -s training.updates=4000 \
        -s "data.train=$at/latents/train" -s "data.validation=$at/latents/validation"
    score "$at/operator" "$at/ours" --views 8
    on_fields="-s seed=$seed -s data.train=identity-latents/train -s data.validation=identity-latents/validation"
    on_fields="$on_fields -s training.validation_samples=32"
    on_fields="$on_fields -s training.batch_size=8 -s data.start_bias=1 -s loss.validation_steps=8"
    spent=$(hours "$at/codec" "$at/operator")
    baseline "$spent" operator "$at/fno" "$configs/fno-burgers.yaml" $on_fields -s model.backbone.hidden=24 -s model.backbone.modes=16
    baseline "$spent" operator "$at/unet" "$configs/unet-burgers.yaml" $on_fields -s model.backbone.hidden=16 -s model.backbone.levels=3
    score "$at/fno" "$at/fno-score" --views 8
    score "$at/unet" "$at/unet-score" --views 8
done

errors_table --title "Navier-Stokes in two dimensions, decaying, 2 viscosities" \
    --note "120/10/10 trajectories per viscosity, 64 x 64 points, 41 frames; 16 steps of 2 frames from 8 start frames." \
    --note "FNO and U-Net: trained on the fields for the wall time of codec and operator, $(updates_of fno)and $(updates_of unet)updates; 4000 of the operator." \
    --method "persistence=ours:persistence" \
    --method "FNO=fno-score:operator" \
    --method "U-Net=unet-score:operator" \
    --method "operator=ours:operator" \
    --method "operator, 8 views=ours:views" \
    --method "codec alone=ours:codec"
