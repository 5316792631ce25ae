#!/bin/sh
# Trains the model in slurm/ocr-base, which slurm/demo-ocr.sh adapts, in about five minutes on two cores: a Qwen3-VL of 1.6
# million parameters that reads clean headers. Writes ocr-base/model and its scores; the files in slurm/ocr-base stay as they are.
#   slurm/ocr-base.sh [FOLDER OF THE PROGRAMS]
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
top=$(pwd)

rm -rf ocr-base
mkdir ocr-base
cd ocr-base

ds-prep gen headers --samples 16400 --seed 7 -o pages
ds-prep import pages/pages.jsonl --columns pages/columns.yaml -o store
ds-prep split store --train 16000 --validation 200 --test 200 --seed 1 -o split.json
ds-prep vocabulary split.json --size 262 --patch-size 8 -o tokenizer
ds-prep tokenize split.json --tokenizer tokenizer --max-length 512 -o tokens
train-stage sft -c "$top/configs/ocr-base.yaml" --run run
ckpt export run --format hf -o full
ckpt quantize full --bf16 -o model
evaluate score run --data tokens --max-new-tokens 192 -o scores
(cd model && sha256sum -- * > SHA256SUMS)
printf '\nmodel in ocr-base/model\n'
