#!/bin/sh
# Decaying two-dimensional turbulence, where the next state is nearly determined: what correctors of a trained operator
# gain over an operator that has their parameters and their training time from the start.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen navier-stokes --parameter 0.001,0.002 --constant forcing=0 --constant scale=10 --samples 140 \
    --grid 32 --frames 41 --end 5 --seed 1 -o raw
once split.json ds-prep split raw/*.h5 --train 120 --validation 10 --test 10 --seed 1 -o split.json
once stats.json ds-prep stats split.json
example corrector
example distill
train codec codec "$configs/ns2d-codec.yaml" -s data.split=split.json -s data.stats=stats.json
once latents/validation/index.json latent-cache make codec --data split.json -o latents
# A state has twice as many tokens as one of Burgers' equation.
smaller="-s training.batch_size=16 -s training.validation_samples=16 -s loss.validation_steps=8"

for seed in 1 2 3 4 5; do
    at=seed-$seed
    mkdir -p "$at"
    all="-s seed=$seed -s data.train=latents/train -s data.validation=latents/validation"
    train operator "$at/operator" "$configs/ns2d-small.yaml" $all -s training.updates=1500
    correct="$all $smaller -s data.operator=$at/operator -s data.start_bias=1 -s training.updates=800 \
        -s loss.closed_loop=1"
    train corrector "$at/corrector" corrector.yaml $correct
    train corrector "$at/regression" corrector.yaml $correct -s loss.objective.kind=regression
    train distill "$at/student" distill.yaml $all $smaller -s "data.corrector=$at/corrector" -s data.start_bias=1 \
        -s training.updates=400
    # As many parameters as operator and corrector together: 82 features instead of 64.
    wide="$all -s model.backbone.hidden=82"
    fits=$(updates "$(hours "$at/operator" "$at/corrector")" operator "$at/wide" "$configs/ns2d-small.yaml" $wide)
    train operator "$at/wide" "$configs/ns2d-small.yaml" $wide -s "training.updates=$fits"
    score_correctors "$at" 1
done

correctors_table --title "Navier-Stokes in two dimensions: correctors of an operator" \
    --note "120/10/10 trajectories for each of 2 viscosities, 32 x 32 points; 16 steps of 2 frames from the first frame." \
    --note "Wider operator: the parameters and the training time of operator and corrector, $(cat seed-*/wide.updates | tr '\n' ' ')updates; 1500 of the operator."
