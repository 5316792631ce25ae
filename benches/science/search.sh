#!/bin/sh
# A search for a better operator on the demo's data, in two rounds with successive halving, by two workers that are
# killed in the middle; then its result against the demo's configuration, trained for the same time.
# shellcheck disable=SC2086,SC2154 # lists of options; variables of common.sh
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once raw ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 440 --seed 1 -o raw
once split.json ds-prep split raw/*.hdf5 --train 400 --validation 20 --test 20 --seed 1 -o split.json
once stats.json ds-prep stats split.json
train codec codec "$configs/burgers-codec.yaml" -s data.split=split.json -s data.stats=stats.json
once latents/validation/index.json latent-cache make codec --data split.json -o latents
printf 'data: {train: latents/train, validation: latents/validation}\n' > data.yaml

cat > study.yaml << EOF
command: [train-stage, operator, -c, $configs/burgers-operator.yaml, -c, data.yaml]
metric: rollout_nrmse
seed: 1
space:
  optimizer.learning_rate: {kind: float, low: 1e-3, high: 3e-2, log: true}
  optimizer.weight_decay: {kind: float, low: 1e-6, high: 1, log: true}
  model.backbone.hidden: {kind: int, low: 64, high: 128, step: 32}
  model.backbone.depth: {kind: int, low: 2, high: 4}
  loss.horizons: {kind: categorical, choices: [[1], [1, 2], [1, 2, 3, 4], [1, 2, 4, 8], [4]]}
rounds:
  - name: coarse
    trials: 40
    fidelity: {training.updates: 1500, training.validate_every: 125, training.validation_samples: 240}
    pruner: {kind: halving, min_resource: 125, reduction: 3}
  - name: fine
    trials: 8
    fidelity: {training.updates: 4500, training.validate_every: 500, training.validation_samples: 480}
    narrow: {top: 8}
    pruner: {kind: halving, min_resource: 500, reduction: 3}
EOF
once study hpo new study -c study.yaml
export RAYON_NUM_THREADS=1
worker() { hpo worker study >> worker.log 2>&1 & }
ended() { hpo trials study --json | grep -c '"state":"\(complete\|pruned\)"'; }
if ! test -e killed; then
    worker
    one=$!
    worker
    while test "$(ended)" -lt 24; do sleep 1; done
    kill -9 "$one"
    kill -TERM $!
    wait || true
    hpo status study
    touch killed
fi
worker
worker
wait
hpo status study
hpo best study > best.yaml

# As many updates of the configuration that was found as take the time of the demo's 5000.
base="$configs/burgers-operator.yaml -c data.yaml"
demo=$(pace operator demo $base)
fits=$(updates "$(echo "$demo" | awk '{ print 5000 * $1 / 3600 }')" operator found $base -c best.yaml)
unset RAYON_NUM_THREADS

of_seed() {
    at=seed-$1
    mkdir -p "$at"
    train operator "$at/demo" $base -s seed=$1
    train operator "$at/found" $base -c best.yaml -s seed=$1 -s "training.updates=$fits"
    score "$at/demo" "$at/demo-score"
    score "$at/found" "$at/found-score"
}
seeds of_seed 1 2 3

counted() { hpo trials study --round "$1" --state "$2" --json | wc -l; }
errors_table --title "A search for the operator of the demo" \
    --note "Burgers' equation, 400/20/20 trajectories per viscosity; 16 steps of 2 frames from 8 start frames." \
    --note "$(counted coarse complete) trials of the first round went to the end and $(counted coarse pruned) were pruned, $(counted fine complete) and $(counted fine pruned) of the second, in $(hours study/trials/* | awk '{ printf "%.0f", 60 * $1 / 2 }') minutes of two workers with one thread each, which were killed after 24 trials, one with -9 and one with TERM." \
    --note "Found: $(hpo best study --flat --json)" \
    --note "Both are trained for the same time, that of the demo's 5000 updates: $fits updates of the configuration that was found." \
    --method "persistence=demo-score:persistence" \
    --method "demo=demo-score:operator" \
    --method "found by the search=found-score:operator"
