#!/bin/sh
# Burgers' equation with a viscosity that the operator is not told: the next state is ambiguous. A diffusion corrector
# and its student sample it, a reward that knows the viscosity chooses among 8 samples at every step, and an operator
# that is told the viscosity, and one of several guesses of it, stand beside them.
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
latents="-s data.train=latents/train -s data.validation=latents/validation"
# Early states are ambiguous, later ones show the viscosity. More than four steps of the sampler leave so much noise in
# the state that some rollouts run away.
diffusion="-s model.backbone.hidden=96 -s model.backbone.depth=4 -s training.updates=1800 -s data.start_bias=4
    -s loss.objective.noise.mean=0.5 -s loss.sampling.steps=4"

# searched RUN REWARD: a search among 8 candidates of the next state.
searched() {
    score "$1" "$1-$2" --starts 1 --search default --candidates 8 --reward "$2"
}

for seed in 1 2 3 4 5; do
    at=seed-$seed
    mkdir -p "$at"
    all="-s seed=$seed $latents"
    train operator "$at/operator" "$configs/burgers-operator.yaml" $all -s data.hide_parameter=true \
        -s "loss.horizons=[1, 2]" -s training.updates=1500
    train operator "$at/told" "$configs/burgers-operator.yaml" $all -s training.updates=1500
    train corrector "$at/corrector" corrector.yaml $all -s "data.operator=$at/operator" \
        $diffusion
    train distill "$at/student" distill.yaml $all -s "data.corrector=$at/corrector"
    score "$at/told" "$at/told-score" --starts 1
    for model in corrector student; do
        score "$at/$model" "$at/$model-members" --starts 1 --members 8
        searched "$at/$model" solver
        searched "$at/$model" residual
    done
    searched "$at/told" solver
done

errors_table --title "Burgers' equation, the operator is not told the viscosity" \
    --note "400/20/20 trajectories for each of 3 viscosities, 256 points; 16 steps of 2 frames from the first frame." \
    --method "persistence=corrector-members:persistence" \
    --method "operator=corrector-members:operator" \
    --method "corrector, one sample=corrector-members:corrector" \
    --method "corrector, mean of 8 rollouts=corrector-members:ensemble" \
    --method "corrector, mean of 8 at every step=corrector-solver:candidate_mean" \
    --method "corrector, best of 8 by solver=corrector-solver:search" \
    --method "corrector, best of 8 by residual=corrector-residual:search" \
    --method "corrector, oracle=corrector-solver:oracle" \
    --method "student, one sample=student-members:student" \
    --method "student, mean of 8 rollouts=student-members:ensemble" \
    --method "student, best of 8 by solver=student-solver:search" \
    --method "student, best of 8 by residual=student-residual:search" \
    --method "student, oracle=student-solver:oracle" \
    --method "operator told the viscosity=told-score:operator" \
    --method "operator told 3 guesses, by solver=told-solver:search" \
    --column "energy score=energy_score" \
    --column "spread / skill=spread_skill" \
    --column "denoiser evaluations=denoiser_evaluations_per_step" \
    --column "rank correlation of the reward=reward_rank_correlation" \
    --column "share of the oracle's gain=oracle_gain_captured"
