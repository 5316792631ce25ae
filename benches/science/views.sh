#!/bin/sh
# Two ways to lower the error of a trained operator of Burgers' equation after 16 steps: symmetry views, which need no
# training, and continued training through longer rollouts. Both together. The data are those of the demo, with more
# trajectories for the test.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 460 --seed 1 -o raw
once split.json ds-prep split raw/*.hdf5 --train 400 --validation 20 --test 40 --seed 1 -o split.json
once stats.json ds-prep stats split.json
train codec codec "$configs/burgers-codec.yaml" -s data.split=split.json -s data.stats=stats.json
once latents/validation/index.json latent-cache make codec --data split.json -o latents

for seed in 1 2 3; do
    at=seed-$seed
    mkdir -p "$at"
    latents="-s seed=$seed -s data.train=latents/train -s data.validation=latents/validation"
    train operator "$at/operator" "$configs/burgers-operator.yaml" $latents
    train operator "$at/long" "$configs/burgers-operator-long.yaml" $latents -s "init.from=$at/operator"
    for views in 2 4 8; do
        score "$at/operator" "$at/views-$views" --views $views
    done
    score "$at/long" "$at/long-views" --views 8
done

errors_table --title "Burgers' equation: symmetry views and longer rollouts in training" \
    --note "400/20/40 trajectories for each of 3 viscosities, 1024 points; 16 steps of 2 frames from 8 start frames." \
    --note "Operator: 5000 updates through rollouts of up to 4 steps. Continued: 1000 more through 4, then 8 steps." \
    --method "persistence=views-8:persistence" \
    --method "operator=views-8:operator" \
    --method "operator, 2 views=views-2:views" \
    --method "operator, 4 views=views-4:views" \
    --method "operator, 8 views=views-8:views" \
    --method "continued=long-views:operator" \
    --method "continued, 8 views=long-views:views" \
    --method "codec alone=views-8:codec" \
    --column "NRMSE by regime and start=nrmse_of_starts" \
    --column "spread ranks the error=spread_rank_correlation" \
    --column "relative=spread_rank_correlation_relative" \
    --groups nrmse_of_starts
