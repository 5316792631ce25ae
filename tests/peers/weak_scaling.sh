#!/bin/sh
# The cost of a second rank: the demo's operator on two ranks with one thread each, which sum their gradients, compared
# with two independent runs of one thread each, alternately, on an idle machine with two cores or more after `make
# demo`. A rank computes as many samples per update as one such run. Prints one JSON object: median seconds per update
# of both and their ratio; and the median seconds from exec to the end of the first update of an attempt. Needs the
# programs and mpirun in PATH. UPDATES, TURNS and HIDDEN change the number of updates and turns and the size of the
# model.
set -eu
updates=${UPDATES:-400}
batch=16
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export RAYON_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Number of ranks or none, name, samples per update.
train() {
    ranks=$1 run=$work/$2 samples=$3
    set -- train-stage operator -c configs/burgers-operator.yaml --run "$run" \
        -s training.updates="$updates" -s training.validate_every=1000000 -s training.log_every=10 \
        -s checkpoint.every=1000000 -s training.batch_size="$samples" -s training.threads=1 \
        -s model.backbone.hidden="${HIDDEN:-128}"
    test "$ranks" -eq 1 || set -- mpirun --oversubscribe --bind-to none -n "$ranks" "$@"
    "$@" 2>"$run.talk" || { cat "$run.talk" >&2; exit 1; }
}
middle() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
seconds() { sed -n 's/.*"kind":"update".*"seconds":\([0-9.e-]*\).*/\1/p' "$@" | middle; }
starts() { sed -n 's/.*"since_exec":\([0-9.e-]*\).*/\1/p' "$@" | middle; }

for turn in $(seq "${TURNS:-5}"); do
    train 1 "apart-$turn-a" $batch &
    other=$!
    train 1 "apart-$turn-b" $batch
    wait $other
    train 2 "together-$turn" $((2 * batch))
    seconds "$work/apart-$turn-"?/log.jsonl >> "$work/apart"
    seconds "$work/together-$turn/log.jsonl" >> "$work/together"
    paste "$work/apart" "$work/together" | tail -n 1 | awk '{ print $1 / $2 }' >> "$work/scaling"
done
printf '{"apart": %s, "together": %s, "weak_scaling": %s, "start_of_1": %s, "start_of_2": %s}\n' \
    "$(middle < "$work/apart")" "$(middle < "$work/together")" "$(middle < "$work/scaling")" \
    "$(starts "$work"/apart-*/log.jsonl)" "$(starts "$work"/together-*/log.jsonl)"
