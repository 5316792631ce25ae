#!/bin/sh
# Burgers' equation with the viscosity as input, where the next state is nearly determined: what correctors of a trained
# operator gain over an operator that has their parameters and their training time from the start.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 440 --grid 256 --seed 1 -o raw
once split.json ds-prep split raw/*.hdf5 --train 400 --validation 20 --test 20 --seed 1 -o split.json
once stats.json ds-prep stats split.json
example corrector
example distill
train codec codec "$configs/burgers-codec.yaml" -s data.split=split.json -s data.stats=stats.json -s model.patch=8
once latents/validation/index.json latent-cache make codec --data split.json -o latents
larger="-s model.backbone.hidden=96 -s model.backbone.depth=4"

of_seed() {
    seed=$1 at=seed-$1
    mkdir -p "$at"
    all="-s seed=$seed -s data.train=latents/train -s data.validation=latents/validation"
    train operator "$at/operator" "$configs/burgers-operator.yaml" $all -s training.updates=2500
    # Half of the updates after a corrected step: trained on true states alone, some rollouts at the lowest viscosity run
    # away.
    correct="$all -s data.operator=$at/operator $larger -s loss.closed_loop=1"
    train corrector "$at/corrector" corrector.yaml $correct
    train corrector "$at/regression" corrector.yaml $correct -s loss.objective.kind=regression
    train distill "$at/student" distill.yaml $all -s "data.corrector=$at/corrector"
    # As many parameters as operator and corrector together: 162 features instead of 128.
    wide="$all -s model.backbone.hidden=162"
    fits=$(updates "$(hours "$at/operator" "$at/corrector")" operator "$at/wide" "$configs/burgers-operator.yaml" $wide)
    train operator "$at/wide" "$configs/burgers-operator.yaml" $wide -s "training.updates=$fits"
    score_correctors "$at" 3
}
seeds of_seed 1 2 3 4 5

correctors_table --title "Burgers' equation: correctors of an operator that is told the viscosity" \
    --note "400/20/20 trajectories for each of 3 viscosities, 256 points; 16 steps of 2 frames from 3 start frames." \
    --note "Wider operator: the parameters and the training time of operator and corrector, $(cat seed-*/wide.updates | tr '\n' ' ')updates; 2500 of the operator."
