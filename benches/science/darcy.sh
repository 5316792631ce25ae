#!/bin/sh
# Darcy flow at five forces: pdet_unet from the coefficient and the force to the pressure, against the mean of the
# training data, its nearest sample and a Fourier neural operator trained for the same wall time.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen darcy --parameter 0.01,0.1,1,10,100 --samples 78 --grid 64 --seed 1 -o raw
once split.json ds-prep split raw/*.hdf5 --train 52 --validation 13 --test 13 --seed 1 -o split.json
once stats.json ds-prep stats split.json

for seed in 1 2 3; do
    at=seed-$seed
    mkdir -p "$at"
    data="-s seed=$seed -s data.split=split.json -s data.stats=stats.json"
    train regression "$at/model" "$configs/darcy.yaml" $data
    once "$at/ours/metrics.json" evaluate score "$at/model" --data split.json -o "$at/ours" --views 8
    baseline "$(hours "$at/model")" regression "$at/fno" "$configs/fno-darcy.yaml" $data
    baseline "$(hours "$at/model")" regression "$at/unet" "$configs/unet-darcy.yaml" $data
    once "$at/fno-score/metrics.json" evaluate score "$at/fno" --data split.json -o "$at/fno-score" --views 8
    once "$at/unet-score/metrics.json" evaluate score "$at/unet" --data split.json -o "$at/unet-score" --views 8
done

errors_table --title "Darcy flow, 5 forces" \
    --note "52/13/13 samples per force, 64 x 64 points; the solutions of a coefficient at all forces are in one split." \
    --note "Other data: published FNO with the force as input 0.1224, persistence 0.972." \
    --note "FNO and U-Net: trained for the same wall time, $(updates_of fno)and $(updates_of unet)updates; 2000 of the pdet_unet." \
    --method "mean=ours:mean" \
    --method "nearest sample=ours:nearest" \
    --method "FNO=fno-score:regression" \
    --method "U-Net=unet-score:regression" \
    --method "pdet_unet=ours:regression" \
    --method "pdet_unet, 8 views=ours:views"
