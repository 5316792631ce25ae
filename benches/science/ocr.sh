#!/bin/sh
# A Qwen3-VL of 1.6 million parameters learns to read clean headers from random weights, and LoRA adapts it, with its weights
# in NF4 and in bf16, to other fonts and to poor scans. Seeds one after another, because time counts. All choices were made
# on other pages than these.
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

# pages FOLDER PRESET NUMBER SEED: a store of pages in FOLDER/store.
pages() {
    once "$1/pages/pages.jsonl" ds-prep gen headers --preset "$2" --samples "$3" --seed "$4" -o "$1/pages"
    once "$1/store/index.json" ds-prep import "$1/pages/pages.jsonl" --columns "$1/pages/columns.yaml" -o "$1/store"
}

# swapped: the clean held-out pages, each with the answer of the one before.
swapped() {
    mkdir -p test-swapped/pages
    cp -R test-clean/pages/images test-clean/pages/columns.yaml test-swapped/pages
    awk -F '"answer":' '
        { head[NR] = $1; answer[NR] = $2 }
        END { answer[0] = answer[NR]; for (i = 1; i <= NR; i++) print head[i] FS answer[i - 1] }' \
        test-clean/pages/pages.jsonl > part
    mv part test-swapped/pages/pages.jsonl
}

# Held-out pages, the same for all seeds.
for preset in clean moderate shifted; do
    pages "test-$preset" $preset 200 1000
done
once test-swapped/pages/pages.jsonl swapped
pages test-swapped clean 200 1000

# tokens FOLDER TEST [OPTION...]: tokens of a store and of held-out pages.
tokens() {
    at=$1 test=$2
    shift 2
    once "$at/split-$test.json" ds-prep split "$at/store" --test-from "../test-$test/store" --validation 2% --seed 1 \
        -o "$at/split-$test.json"
    once "$at/tokens-$test/test/index.json" ds-prep tokenize "$at/split-$test.json" --tokenizer tokenizer \
        --max-length 512 -o "$at/tokens-$test" "$@"
}

# score_of RUN TOKENS NAME
score_of() {
    once "$3/metrics.json" evaluate score "$1" --data "$2" --max-new-tokens 192 -o "$3"
}

# adapt RUN BASE TOKENS [OPTION...]
adapt() {
    run=$1 base=$2 data=$3
    shift 3
    train sft "$run" "$configs/ocr-adapt.yaml" -c "$base.yaml" -s "seed=$seed" -s "data.tokens=$data" "$@"
}

# of_seed: in the folder of a seed.
of_seed() {
    pages clean clean 16200 "$seed"
    pages moderate moderate 3200 "$seed"
    pages shifted shifted 3200 "$seed"
    once clean/split.json ds-prep split clean/store --validation 2% --seed 1 -o clean/split.json
    once tokenizer/tokenizer.json ds-prep vocabulary clean/split.json --size 262 --patch-size 8 -o tokenizer
    for preset in clean moderate shifted; do tokens $preset $preset; done
    tokens clean swapped
    once tokens-all/test/index.json ds-prep tokenize shifted/split-shifted.json --tokenizer tokenizer --max-length 512 \
        --loss-on all -o tokens-all

    train sft base "$configs/ocr-base.yaml" -s "seed=$seed" -s data.tokens=clean/tokens-clean
    score_of base clean/tokens-clean base-clean
    score_of base clean/tokens-swapped base-swapped
    once folder ckpt export base --format hf -o folder
    once quantized ckpt quantize folder -o quantized
    for base in folder quantized; do
        once $base.yaml sh -c "ckpt config $base > part && mv part $base.yaml"
    done

    # One step of length almost zero: the base in NF4 alone.
    adapt nf4 quantized clean/tokens-clean -s training.updates=1 -s training.validate_every=1 -s optimizer.learning_rate=1e-12
    score_of nf4 clean/tokens-clean nf4-clean
    for preset in moderate shifted; do
        score_of nf4 $preset/tokens-$preset nf4-$preset
        adapt lora-$preset quantized $preset/tokens-$preset
        score_of lora-$preset $preset/tokens-$preset lora-$preset-score
        adapt bf16-$preset folder $preset/tokens-$preset -s init.storage=bf16 -s optimizer.method.kind=adamw
        score_of bf16-$preset $preset/tokens-$preset bf16-$preset-score
    done
    adapt all-shifted quantized tokens-all
    score_of all-shifted shifted/tokens-shifted all-shifted-score
}
for seed in 1 2 3; do
    mkdir -p "seed-$seed"
    (cd "seed-$seed" && of_seed)
done

minutes=$(for seed in 1 2 3; do hours "seed-$seed/base"; done | awk '{ printf "%.1f ", 60 * $1 }')
hash=$(for preset in clean moderate shifted; do
    (cd "test-$preset/pages" && cat pages.jsonl && find images -type f | LC_ALL=C sort | xargs cat) | sha256sum | cut -c 1-16
done | tr '\n' ' ')
notes --title "Reading headers of well logs" \
    --note "200 held-out pages of 2 to 5 rows of each kind (SHA-256 of list and images, clean, moderate and shifted: ${hash% }), answers generated greedily. Base: 2,000 updates of 8 clean pages with Muon; minutes of training by seed: ${minutes% }." \
    --note "Adapted: LoRA, r 16 in attention and feed-forward layers, 340 updates of 8 pages with a rate of 8e-3; on NF4 with AdamW in 8 bits, on bf16 with AdamW. NF4 alone is LoRA after one update with the learning rate 1e-12. Swapped: clean pages with the answer of another page, which only a leak could give." \
    --method "base, clean=base-clean" --method "base in NF4, clean=nf4-clean" --method "base, swapped=base-swapped" \
    --method "base in NF4, moderate=nf4-moderate" --method "LoRA on NF4, moderate=lora-moderate-score" \
    --method "LoRA on bf16, moderate=bf16-moderate-score" \
    --method "base in NF4, shifted=nf4-shifted" --method "LoRA on NF4, shifted=lora-shifted-score" \
    --method "LoRA on bf16, shifted=bf16-shifted-score" --method "LoRA on NF4, loss on all text, shifted=all-shifted-score" \
    --column "CER=cer" --column "CER of values=value_cer" --column "WER=wer" --column "exact pages=exact_match" \
    --column "loss=loss" --column "CER: most frequent answer=most frequent answer.cer"
