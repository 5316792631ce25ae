#!/bin/sh
# Texts on one machine, in a few minutes: annotated sentences, a small encoder trained from random weights, its scores
# beside baselines, answers in posts, a search and a refit.
#   slurm/demo-text.sh [FOLDER OF THE PROGRAMS]
set -eu
cd "$(dirname "$0")/.."
PATH="$(cd "${1:-target/release}" && pwd):$PATH"
say() { printf '\n== %s\n' "$*"; }

rm -rf demo-text
mkdir demo-text
cd demo-text

say "data: 6000 annotated sentences of posts"
ds-prep gen criteria --samples 6000 --seed 1 -o data
ds-prep import data/annotations.csv --columns data/columns.yaml -o store
ds-prep split store --seed 1 -o split.json               # by post; both labels in the same proportions
ds-prep check store
# Different posts have equal and similar sentences; scores are given with and without those that leak.
ds-prep audit split.json > leaks.txt || test $? -eq 1
tail -n 3 leaks.txt

say "tokens: a vocabulary of the training split"
ds-prep vocabulary split.json -o tokenizer
ds-prep tokenize split.json --tokenizer tokenizer --max-length 64 -o tokens

say "an encoder of two layers"
train-stage classify --example > classify.yaml
train-stage classify -c classify.yaml -s training.updates=1500 --run run
evaluate score run --data tokens -o scores               # with worst.html and predictions.jsonl
printf 'My sister tends to, to be honest, lie awake until dawn.\nI tend to, at home and elsewhere, skip most meals.\n' |
    evaluate predict run --inputs - -o -

say "answers: which sentence of a post states the symptom"
ds-prep gen criteria --samples 6000 --difficulty easy --per-post 1 --seed 1 -o posts
ds-prep import posts/annotations.csv --columns posts/spans.yaml -o post-store
ds-prep split post-store --seed 1 -o posts.json
ds-prep vocabulary posts.json -o post-tokenizer
ds-prep tokenize posts.json --tokenizer post-tokenizer --max-length 96 -o post-tokens
train-stage span --example > span.yaml
train-stage span -c span.yaml -s data.tokens=post-tokens -s training.updates=800 --run span
evaluate score span --data post-tokens -o span-scores

say "a search in two rounds, and the best configuration with three seeds"
cat > search.yaml << END
command: [train-stage, classify, -c, classify.yaml]
metric: macro_f1
direction: maximize
seed: 1
space:
  optimizer.learning_rate: {kind: float, low: 1.0e-4, high: 1.0e-2, log: true}
  model.head.dropout: {kind: float, low: 0.0, high: 0.3}
  training.batch_size: {kind: categorical, choices: [16, 32]}
pruner: {kind: median, startup: 3, warmup: 100}
rounds:
  - {name: coarse, trials: 8, fidelity: {training.updates: 300, training.validate_every: 50}}
  - {name: fine, trials: 4, fidelity: {training.updates: 1500, training.validate_every: 100}, narrow: {top: 3}}
END
hpo new search -c search.yaml
hpo worker search
hpo best search
hpo refit search --seeds 3
printf '\nscores in demo-text/scores and demo-text/span-scores, mistakes in demo-text/scores/worst.html, the search in demo-text/search/refit/report.html\n'
