#!/bin/sh
# The cost of saving for training as a whole, including its background threads: the demo's operator with a checkpoint
# every 10 updates and with none, alternately, on an idle machine after `make demo`. A single save is too cheap to
# measure; the difference is that of fifty, reported for a checkpoint every 500 updates, as in the demo. Also measures
# how long a save blocks training, on one rank and on two (which compare their parameters), and a copy of the tensors
# alone; HIDDEN changes the size of the model. Prints one JSON object. Needs the programs and mpirun in PATH.
set -eu
updates=500
every=10
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Name, turn, updates between saves, and arguments before the program.
train() {
    name=$1 turn=$2 between=$3
    shift 3
    "$@" train-stage operator -c configs/burgers-operator.yaml --run "$work/$name-$turn" \
        -s training.updates=$updates -s training.validate_every=1000000 -s checkpoint.every="$between" \
        -s model.backbone.hidden="${HIDDEN:-128}" 2>"$work/talk" || { cat "$work/talk" >&2; exit 1; }
    set -- "$name" "$turn"
    sed -n 's/.*"kind":"stop".*"seconds":\([0-9.]*\).*/\1/p' "$work/$1-$2/log.jsonl"
}
for turn in 1 2 3 4 5; do
    train none "$turn" 1000000 >> "$work/none"
    train many "$turn" $every >> "$work/many"
    train two "$turn" $every mpirun --oversubscribe --bind-to none -n 2 > /dev/null
done
median() { sort -n "$1" | sed -n 3p; }
# Median over all saves of some runs, except those that waited for the previous one: the log's seconds, in milliseconds.
middle() {
    name=$1 field=$2
    grep -h '"kind":"checkpoint"' "$work/$name"-*/log.jsonl | awk -F"\"$field\":" '
        { split($0, w, "\"wait_s\":"); if (w[2] + 0 < 1e-4) print 1e3 * $2 }' | sort -n |
        awk '{ all[NR] = $1 } END { printf "%.3f", all[int((NR + 1) / 2)] }'
}
awk -v none="$(median "$work/none")" -v many="$(median "$work/many")" \
    -v updates=$updates -v every=$every 'BEGIN {
        save = (many - none) / (updates / every - 1)
        printf "{\"seconds_without\": %.3f, \"seconds_with\": %.3f, \"ms_a_save\": %.2f, ", none, many, 1e3 * save
        printf "\"overhead_every_500\": %.5f, ", save / (none / updates * 500)
    }'
printf '"copy_ms": [%s, %s], "stall_ms": [%s, %s]}\n' "$(middle many snapshot_s)" "$(middle two snapshot_s)" \
    "$(middle many blocked_s)" "$(middle two blocked_s)"
