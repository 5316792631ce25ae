#!/bin/sh
# What saving costs training as a whole, the threads beside it included: the demo's operator with a
# checkpoint every 10 updates and with none, in turns, on an idle machine after `make demo`. One save is
# too cheap to be seen; of fifty the difference is taken, and told for a checkpoint every 500 updates, as
# in the demo. Prints one JSON object. Needs the programs in PATH.
set -eu
updates=500
every=10
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
train() {
    train-stage operator -c configs/burgers-operator.yaml --run "$work/$1-$2" \
        -o training.updates=$updates -o training.validate_every=1000000 -o checkpoint.every="$3" \
        2>/dev/null
    sed -n 's/.*"kind":"stop".*"seconds":\([0-9.]*\).*/\1/p' "$work/$1-$2/log.jsonl"
}
for turn in 1 2 3 4 5; do
    train none $turn 1000000 >> "$work/none"
    train many $turn $every >> "$work/many"
done
median() { sort -n "$1" | sed -n 3p; }
awk -v none="$(median "$work/none")" -v many="$(median "$work/many")" \
    -v updates=$updates -v every=$every 'BEGIN {
        save = (many - none) / (updates / every - 1)
        printf "{\"seconds_without\": %.3f, \"seconds_with\": %.3f, \"ms_a_save\": %.2f, ", none, many, 1e3 * save
        printf "\"overhead_every_500\": %.5f}\n", save / (none / updates * 500)
    }'
