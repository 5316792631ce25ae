#!/bin/sh
# Decaying two-dimensional turbulence of which the operator sees means over 4 x 4 points: the next state is ambiguous,
# because it depends on what the means hide. A diffusion corrector and its student sample it.
# shellcheck disable=SC2086 # lists of options
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once fine ds-prep gen navier-stokes --parameter 0.0005,0.001 --constant forcing=0 --constant scale=10 --samples 240 \
    --grid 64 --frames 41 --end 5 --seed 1 -o fine
once raw ds-prep import fine/*.h5 --grid 16x16 -o raw
once split.json ds-prep split raw/*.hdf5 --train 200 --validation 20 --test 20 --seed 1 -o split.json
once stats.json ds-prep stats split.json
example corrector
example distill
# The identity, on patches of 2 x 2 points.
train codec codec "$configs/identity-codec.yaml" -s data.split=split.json -s data.stats=stats.json \
    -s model.patch=2 -s model.latent=4
once latents/validation/index.json latent-cache make codec --data split.json -o latents
latents="-s data.train=latents/train -s data.validation=latents/validation"
smaller="-s training.batch_size=16 -s training.validation_samples=40"

# searched RUN: a search among 8 candidates of the next state, by the solver on the coarse grid.
searched() {
    score "$1" "$1-search" --starts 1 --search default --candidates 8 --reward solver --equation navier-stokes
}

for seed in 1 2 3 4 5; do
    at=seed-$seed
    mkdir -p "$at"
    all="-s seed=$seed $latents"
    train operator "$at/operator" "$configs/ns2d-small.yaml" $all -s data.start_bias=2
    train corrector "$at/corrector" corrector.yaml $all $smaller -s "data.operator=$at/operator"
    train distill "$at/student" distill.yaml $all $smaller -s "data.corrector=$at/corrector"
    for model in corrector student; do
        score "$at/$model" "$at/$model-members" --starts 1 --members 8
        searched "$at/$model"
    done
done

errors_table --title "Navier-Stokes in two dimensions, from a state coarsened by four" \
    --note "200/20/20 trajectories for each of 2 viscosities, means over 4 x 4 of 64 x 64 points; 16 steps of 2 frames from the first frame." \
    --method "persistence=corrector-members:persistence" \
    --method "operator=corrector-members:operator" \
    --method "corrector, one sample=corrector-members:corrector" \
    --method "corrector, mean of 8 rollouts=corrector-members:ensemble" \
    --method "corrector, mean of 8 at every step=corrector-search:candidate_mean" \
    --method "corrector, best of 8 by the solver on the coarse grid=corrector-search:search" \
    --method "corrector, oracle=corrector-search:oracle" \
    --method "student, one sample=student-members:student" \
    --method "student, mean of 8 rollouts=student-members:ensemble" \
    --method "student, best of 8 by the solver on the coarse grid=student-search:search" \
    --method "student, oracle=student-search:oracle" \
    --column "energy score=energy_score" \
    --column "spread / skill=spread_skill" \
    --column "denoiser evaluations=denoiser_evaluations_per_step" \
    --column "rank correlation of the reward=reward_rank_correlation" \
    --column "share of the oracle's gain=oracle_gain_captured"
