#!/bin/sh
# Linear advection at eight speeds, from 0.1 to 7: the operator in latent space against persistence and a Fourier neural
# operator on the fields, trained for the same wall time.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen advection --parameter 0.1,0.2,0.4,0.7,1,2,4,7 --samples 96 --grid 256 --seed 1 -o raw
once split.json ds-prep split raw/*.hdf5 --train 64 --validation 16 --test 16 --seed 1 -o split.json
once stats.json ds-prep stats split.json
train codec identity "$configs/identity-codec.yaml" -s data.split=split.json -s data.stats=stats.json
once identity-latents/validation/index.json latent-cache make identity --data split.json -o identity-latents

# The flow is the same at all times.
data="-s data.start_bias=1 -s data.strides=[1] -s training.validation_samples=128"

for seed in 1 2 3; do
    at=seed-$seed
    mkdir -p "$at"
    # Reflections change the direction of the flow; they are no symmetry.
    train codec "$at/codec" "$configs/burgers-codec.yaml" -s seed=$seed -s data.split=split.json \
        -s data.stats=stats.json -s model.patch=8 -s data.random_reflection=false
    once "$at/latents/validation/index.json" latent-cache make "$at/codec" --data split.json -o "$at/latents"
    # The fastest flow moves by 18 cells in a frame, two patches and a quarter: filters must reach that far.
    train operator "$at/operator" "$configs/burgers-operator.yaml" -s seed=$seed $data \
        -s "data.train=$at/latents/train" -s "data.validation=$at/latents/validation" \
        -s optimizer.method.kind=muon -s optimizer.learning_rate=0.01
    score "$at/operator" "$at/ours" --views 8
    on_fields="-s seed=$seed -s data.train=identity-latents/train -s data.validation=identity-latents/validation"
    on_fields="$on_fields $data"
    spent=$(hours "$at/codec" "$at/operator")
    baseline "$spent" operator "$at/fno" "$configs/fno-burgers.yaml" $on_fields
    baseline "$spent" operator "$at/unet" "$configs/unet-burgers.yaml" $on_fields
    score "$at/fno" "$at/fno-score" --views 2
    score "$at/unet" "$at/unet-score" --views 2
done

errors_table --title "Advection, 8 speeds" \
    --note "64/16/16 trajectories per speed, 256 points, 201 frames; 16 steps of 1 frame from 8 start frames." \
    --note "Other data: the published protocol has persistence 0.673, FNO 0.833." \
    --note "FNO and U-Net: trained on the fields for the wall time of codec and operator, $(updates_of fno)and $(updates_of unet)updates; 5000 of the operator." \
    --method "persistence=ours:persistence" \
    --method "FNO=fno-score:operator" \
    --method "U-Net=unet-score:operator" \
    --method "operator=ours:operator" \
    --method "operator, 8 views=ours:views" \
    --method "codec alone=ours:codec"
