#!/bin/sh
# Runs a training command on a machine that may be taken away, such as a spot instance, until it is done:
#   spot.sh train-stage sft -c ocr.yaml --run runs/ocr
# Every start resumes the run. When the machine is about to go, send TERM to this script (examples/longhaul-spot.service does
# when systemd stops it): the run then saves a checkpoint and exits with 75, and so does this script. A run that exits with 75
# for another reason is started again.
set -u
if [ $# -eq 0 ]; then
    echo "spot.sh: no command: spot.sh train-stage TASK -c FILE --run RUN" >&2
    exit 2
fi
child=
stopped=
trap 'stopped=1; test -z "$child" || kill -TERM "$child" 2>/dev/null' TERM INT
while :; do
    "$@" &
    child=$!
    wait "$child"
    status=$?
    # A signal ends `wait`, not the program.
    while kill -0 "$child" 2>/dev/null; do
        wait "$child"
        status=$?
    done
    if [ -n "$stopped" ] || [ "$status" -ne 75 ]; then
        exit "$status"
    fi
    sleep "${SPOT_PAUSE:-10}"
done
