#!/bin/sh
# Real texts: the section of a Debian package from its description, with the package index of this machine; split by
# source package.
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

sections 1
once tokenizer/tokenizer.json ds-prep vocabulary split.json --size 12000 -o tokenizer
once tokens/test/index.json ds-prep tokenize split.json --tokenizer tokenizer --max-length 48 -o tokens
example classify

of_seed() {
    at=seed-$1
    mkdir -p "$at"
    train classify "$at/run" classify.yaml -s "seed=$1" -s training.updates=6000 -s training.validate_every=500 -s training.validation_samples=3000 \
        -s model.encoder.hidden_size=128 -s model.encoder.intermediate_size=256 -s model.head.pooling=mean \
        -s loss.class_weights.kind=none -s training.ema=0.995 -s "schedule=$schedule"
    once "$at/scores/metrics.json" evaluate score "$at/run" --data tokens -o "$at/scores"
}
schedule='[{kind: linear, updates: 300, start_factor: 0.0, end_factor: 1.0}, {kind: linear, start_factor: 1.0, end_factor: 0.0}]'
seeds of_seed 1 2 3

set --
for metric in accuracy f1_macro f1_weighted log_loss ece_top_label; do
    set -- "$@" --column "$metric=$metric" --column "$metric: bag of words=bag of words.$metric"
done
notes --title "Sections of Debian packages" \
    --note "$(tail -n +2 packages.csv | wc -l) packages, $(tail -n +2 packages.csv | cut -d, -f3 | sort -u | wc -l) sections; one line of description each; split by source package." \
    --method "test=scores" "$@" \
    --column "accuracy: constant=constant.accuracy" \
    --column "accuracy: stratified random=stratified.accuracy" \
    --column "accuracy without texts that resemble training texts=without leaks.accuracy"
