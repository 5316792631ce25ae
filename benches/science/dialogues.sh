#!/bin/sh
# A decoder of 2.1 million parameters learns synthetic dialogues from random weights in about four minutes on two cores, first
# tables of two entries, then everything; the same in NF4; and LoRA on NF4 to answers in another form. One seed at a time,
# because time counts.
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

# Batches have all lengths: here length tells the kind of a question, so batches of one length would have one kind.
cat > base.yaml << END
data: {bucket_batches: 0}
model:
  decoder:
    hidden_size: 256
    intermediate_size: 384
    head_dim: 64
    rope_parameters: {rope_theta: 100.0}
training: {batch_size: 32, validate_every: 100}
optimizer: {method: {kind: muon}, learning_rate: 1.0e-3}
END
example sft

# dialogues FOLDER PATTERN OPTION...: the splits of generated dialogues, of those whose lines match the pattern.
dialogues() {
    at=$1 kind=$2
    shift 2
    once "$at/data" ds-prep gen dialogues "$@" -o "$at/data"
    once "$at/dialogues.jsonl" sh -c "grep '$kind' $at/data/dialogues.jsonl > $at/part && mv $at/part $at/dialogues.jsonl"
    once "$at/store/index.json" ds-prep import "$at/dialogues.jsonl" --columns "$at/data/columns.yaml" -o "$at/store"
    once "$at/split.json" ds-prep split "$at/store" --train 96% --validation 2% --test 2% --seed 1 -o "$at/split.json"
}

# tokens FOLDER TOKENIZER
tokens() {
    once "$1/tokens/test/index.json" ds-prep tokenize "$1/split.json" --tokenizer "$2" --max-length 96 -o "$1/tokens"
}

# score_of RUN DATA
score_of() {
    once "$1-$2/metrics.json" evaluate score "$1" --data "$2/tokens" -o "$1-$2"
}

# adapt RUN UPDATES RATE: LoRA of the decoder in NF4, trained on answers between tags.
adapt() {
    train sft "$1" sft.yaml -c nf4.yaml -s "seed=$seed" -s data.tokens=tagged/tokens -s data.bucket_batches=0 \
        -s 'model.lora={r: 2, alpha: 16, targets: all-linear}' -s "training.updates=$2" -s "training.validate_every=$2" \
        -s "optimizer.learning_rate=$3"
}

# of_seed: in the folder of a seed.
of_seed() {
    dialogues lookups '"lookup"' --seed "$seed" --samples 60000 --difficulty easy
    dialogues plain . --seed "$seed" --samples 100000
    dialogues tagged . --seed "$seed" --samples 20000 --answers tagged
    once tokenizer/tokenizer.json ds-prep vocabulary plain/split.json --size 512 -o tokenizer
    for data in lookups plain tagged; do tokens $data tokenizer; done
    train sft first sft.yaml -c ../base.yaml -s "seed=$seed" -s data.tokens=lookups/tokens -s training.updates=500 \
        -s 'schedule=[{kind: linear, updates: 25, start_factor: 0.0, end_factor: 1.0}, {kind: linear, start_factor: 1.0, end_factor: 1.0}]'
    train sft base sft.yaml -c ../base.yaml -s "seed=$seed" -s data.tokens=plain/tokens -s init.from=first \
        -s training.updates=1200 -s optimizer.learning_rate=2e-3
    score_of base plain
    score_of base tagged
    once folder ckpt export base --format hf -o folder
    once quantized ckpt quantize folder -o quantized
    once nf4.yaml sh -c 'ckpt config quantized > part && mv part nf4.yaml'
    # One step of length almost zero: the decoder in NF4 alone.
    adapt nf4 1 1e-12
    score_of nf4 plain
    adapt lora 1000 5e-3
    score_of lora tagged
}
for seed in 1 2 3; do
    mkdir -p "seed-$seed"
    (cd "seed-$seed" && cp ../sft.yaml . && of_seed)
done

minutes=$(for seed in 1 2 3; do hours seed-$seed/first seed-$seed/base; done | awk '{ printf "%.1f ", 60 * $1 }')
notes --title "Synthetic dialogues" \
    --note "100,000 dialogues of difficulty medium, 2 % held out, and 20,000 easy lookups. A Qwen3 of 2.1 million parameters: 500 updates of 32 easy lookups, 1,200 of 32 dialogues; minutes of training by seed: ${minutes% }." \
    --note "NF4 alone is LoRA after one update with the learning rate 1e-12. LoRA on NF4: r 2 in all linear layers, 1,000 updates of 32 dialogues with answers between tags." \
    --method "base=base-plain" --method "base in NF4=nf4-plain" \
    --method "base, tagged answers=base-tagged" --method "LoRA on NF4, tagged answers=lora-tagged" \
    --column "exact match=exact_match" --column "character error rate=cer" --column "loss=loss" \
    --column "exact match: most frequent answer=most frequent answer.exact_match" \
    --column "loss: unigram=unigram.loss" \
    --groups exact_match
