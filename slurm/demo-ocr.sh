#!/bin/sh
# Images to Markdown on one machine, in a minute: a small Qwen3-VL that reads clean headers of well logs learns other
# fonts and layouts with QLoRA, stopped once and resumed; its scores before and after, and the adapter for PEFT.
#   slurm/demo-ocr.sh [FOLDER OF THE PROGRAMS]
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
top=$(pwd)
say() { printf '\n== %s\n' "$*"; }

rm -rf demo-ocr
mkdir demo-ocr
cd demo-ocr

say "base: 1.6 million parameters in 4 bits, from make ocr-base"
(cd "$top/slurm/ocr-base" && sha256sum --check --quiet SHA256SUMS)
ckpt config "$top/slurm/ocr-base" > base.yaml

say "data: 2200 pages in slanted fonts, with ruled tables"
ds-prep gen headers --preset moderate --samples 2200 --seed 1 -o pages
ds-prep import pages/pages.jsonl --columns pages/columns.yaml -o store
ds-prep split store --train 1900 --validation 100 --test 200 --seed 1 -o split.json    # by well
ds-prep check store
ds-prep plot store -o pages.png
ds-prep tokenize split.json --tokenizer "$top/slurm/ocr-base" --max-length 512 -o tokens

cp "$top/configs/ocr-adapt.yaml" adapt.yaml

say "before: an adapter that has not learned"
train-stage sft -c adapt.yaml -c base.yaml -s training.updates=1 -s training.validate_every=1 \
    -s optimizer.learning_rate=1e-12 --run before
evaluate score before --data tokens --max-new-tokens 192 -o before-scores

say "QLoRA: stopped by SIGTERM in the middle"
train-stage sft -c adapt.yaml -c base.yaml --run run --check
train-stage sft -c adapt.yaml -c base.yaml --run run &
training=$!
until grep -qs '"update":150,' run/log.jsonl; do
    kill -0 "$training" || exit 1
    sleep 0.2
done
kill -TERM "$training"
status=0
wait "$training" || status=$?
test "$status" -eq 75

say "QLoRA: the same command resumes"
train-stage sft -c adapt.yaml -c base.yaml --run run

say "after, on pages of wells that are not in training"
evaluate score run --data tokens --max-new-tokens 192 -o scores        # with worst.html and predictions.jsonl
ds-prep gen headers --preset moderate --samples 3 --seed 99 -o new
sed 's/"answer":.*/"prompt":"Read."}/' new/pages.jsonl > new/prompts.jsonl
evaluate predict run --inputs new/prompts.jsonl --max-new-tokens 192 -o -

say "the adapter for PEFT"
ckpt export run --format peft -o adapter
printf '\nscores in demo-ocr/before-scores and demo-ocr/scores, mistakes in demo-ocr/scores/worst.html, pages in demo-ocr/pages.png\n'
