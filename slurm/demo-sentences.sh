#!/bin/sh
# Texts and vectors on one machine: sentences of a synthetic language with vectors of their
# meanings, one network for both directions, its scores beside baselines, and samples.
#   slurm/demo-sentences.sh [FOLDER OF THE PROGRAMS]
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
say() { printf '\n== %s\n' "$*"; }

rm -rf demo-sentences
mkdir demo-sentences
cd demo-sentences

say "data: 20000 sentences with vectors, 1000 unseen meanings, 200 groups of minimally different ones"
ds-prep gen sentences --language small --samples 20000 --seed 0 -o data
for part in pairs test; do
    ds-prep import "data/$part.jsonl" --columns data/columns.yaml --vectors "data/$part.npy" -o "$part"
done
ds-prep split pairs --test-from test --validation 2% -o split.json
ds-prep vocabulary split.json -o tokenizer
ds-prep tokenize split.json --tokenizer tokenizer --max-length 22 -o tokens

say "one network of two blocks"
train-stage cycle-vae --example > cycle-vae.yaml
train-stage cycle-vae -c cycle-vae.yaml --run run
evaluate score run --data tokens --similarity data/similar.jsonl -o scores

say "a text through its vector, and a sample of both"
head -n 3 data/test.jsonl | evaluate predict run --direction t2l --inputs - -o - |
    evaluate predict run --direction l2t --drafts 8 --inputs - -o -
evaluate predict run --direction unconditional --count 3 -o - | sed 's/,"vector".*/}/'
printf '\nscores in demo-sentences/scores, the worst texts in demo-sentences/scores/worst.html\n'
