#!/bin/sh
# Synthetic annotations of symptoms: a small encoder from random weights against a bag of words, at three difficulties
# and with 0, 5 and 10 % wrong labels, and with labels that are random.
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

example classify

# of_case SEED DIFFICULTY NOISE UPDATES
of_case() {
    at=seed-$1/$2-$3
    mkdir -p "$at"
    once "$at/data" ds-prep gen criteria --samples 4000 --difficulty "$2" --noise "$3" --seed "$1" -o "$at/data"
    once "$at/store/index.json" ds-prep import "$at/data/annotations.csv" --columns "$at/data/columns.yaml" -o "$at/store"
    once "$at/split.json" ds-prep split "$at/store" --seed "$1" -o "$at/split.json"
    once "$at/tokenizer/tokenizer.json" ds-prep vocabulary "$at/split.json" -o "$at/tokenizer"
    once "$at/tokens/test/index.json" ds-prep tokenize "$at/split.json" --tokenizer "$at/tokenizer" --max-length 64 \
        -o "$at/tokens"
    train classify "$at/run" classify.yaml -s "seed=$1" -s "data.tokens=$at/tokens" -s "training.updates=$4"
    once "$at/scores/metrics.json" evaluate score "$at/run" --data "$at/tokens" -o "$at/scores"
}

of_seed() {
    for difficulty in easy medium hard; do
        for noise in 0 0.05 0.1; do of_case "$1" $difficulty $noise 1500; done
    done
    of_case "$1" medium 0.5 600
}
seeds of_seed 1 2 3

set --
for difficulty in easy medium hard; do
    for noise in 0 0.05 0.1; do set -- "$@" --method "$difficulty, noise $noise=$difficulty-$noise/scores"; done
done
notes --title "Annotated sentences" \
    --note "4000 sentences of posts, split by post, half of them positive; an encoder of two layers and 64 features, 1500 updates of 32 sentences. Labels of the test split are as noisy as those of the training split." \
    --note "Noise 0.5: the labels are random, so nothing can be learnt." \
    "$@" --method "medium, noise 0.5=medium-0.5/scores" \
    --column "macro F1=f1_macro" \
    --column "accuracy=accuracy" \
    --column "AUROC=auroc" \
    --column "ECE=ece" \
    --column "macro F1: bag of words=bag of words.f1_macro" \
    --column "constant=constant.f1_macro" \
    --column "stratified random=stratified.f1_macro"
