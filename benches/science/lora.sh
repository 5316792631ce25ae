#!/bin/sh
# Frozen bases: all-MiniLM-L6-v2 fine-tuned with LoRA on the sections of Debian packages, those of every fourth source, its
# weights in f32, bf16 and NF4, beside PEFT on f32 (PEER, a Python with PEFT; by default that of make interop).
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once encoder encoder
sections 4
once tokens/test/index.json ds-prep tokenize split.json --tokenizer encoder --max-length 48 -o tokens
once encoder.yaml sh -c 'ckpt config encoder > encoder.part && mv encoder.part encoder.yaml'
example classify
peer=${PEER:-$top/.deps/interop/bin/python}

# tune SEED RUN [OPTION...]
tune() {
    own=$1 at=$2
    shift 2
    train classify "$at" classify.yaml -c encoder.yaml -s "seed=$own" -s "training.updates=$updates" \
        -s "training.validate_every=$updates" -s training.validation_samples=1000 -s training.batch_size=32 \
        -s model.head.pooling=mean -s loss.class_weights.kind=none -s optimizer.learning_rate=1e-3 -s "schedule=$schedule" \
        -s 'model.lora={r: 8, alpha: 16, targets: [query, key, value, dense]}' "$@"
}
of_seed() {
    mkdir -p "seed-$1"
    seed=$1
    for base in f32 bf16 nf4 nf4-8bit; do
        set --
        case $base in
            bf16 | nf4) set -- -s "init.storage=$base" ;;
            nf4-8bit) set -- -s init.storage=nf4 -s 'optimizer.method={kind: adamw8bit}' ;;
        esac
        tune "$seed" "seed-$seed/$base" "$@"
        once "seed-$seed/$base-scores/metrics.json" evaluate score "seed-$seed/$base" --data tokens -o "seed-$seed/$base-scores"
    done
    once "seed-$seed/peft.txt" sh -c "'$peer' '$top/tests/peers/lora.py' --seed $seed --updates $updates > seed-$seed/part && mv seed-$seed/part seed-$seed/peft.txt"
}
updates=400
schedule='[{kind: linear, updates: 60, start_factor: 0.0, end_factor: 1.0}, {kind: linear, start_factor: 1.0, end_factor: 0.0}]'
seeds of_seed 1 2 3

notes --title "LoRA on frozen bases in f32, bf16 and NF4" \
    --note "all-MiniLM-L6-v2 on the sections of $(tail -n +2 packages.csv | wc -l) Debian packages, split by source package; r 8 in all linear layers, mean pooling, $updates updates of 32 descriptions." \
    --note "PEFT on f32, the same settings, accuracy for each seed: $(cat seed-*/peft.txt | tr '\n' ' ')" \
    --method "f32=f32-scores" --method "bf16=bf16-scores" --method "NF4=nf4-scores" \
    --method "NF4, AdamW in 8 bits=nf4-8bit-scores" \
    --column accuracy=accuracy --column f1_macro=f1_macro --column log_loss=log_loss \
    --column "accuracy: bag of words=bag of words.accuracy" --column "accuracy: constant=constant.accuracy"
