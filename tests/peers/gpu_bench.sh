#!/bin/sh
# Measures speed on a GPU into benches/results/CARD-DATE.json: every op and update, ours and PyTorch's alternately
# at large sizes, training updates of the operator. `make gpu-bench` runs it; by hand:
#
#   LARGE=... SMALL=... gpu_bench.sh FOLDER
#
# where FOLDER has the examples opcheck and operator_update, built here or copied here, and LARGE and
# SMALL are the sizes in the Makefile. DEVICE and BELOW are for a dry run: DEVICE=emu BELOW=20000.
set -eu
programs=${1:?the folder of the examples opcheck and operator_update}
device=${DEVICE:-cuda}
below=${BELOW:-1000000000000000}
python=${PYTHON:-python3}
peers=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

say() { echo "gpu-bench: $*" >&2; }
# rows FIELDS < JSON lines: prefixes each line with these fields.
rows() { sed "s/^{/{$1, /" >> "$work/rows"; }
# A peer that fails gives a row and does not end the script.
peer() {
    fields=$1
    shift
    "$python" "$@" > "$work/now" || {
        words=$*
        say "failed: ${words##*/}"
        echo "{\"failed\": \"${words##*/}\"}" >> "$work/now"
    }
    rows "$fields" < "$work/now"
}
opcheck() { "$programs/opcheck" --json --device "$device" --below "$below" "$@" > "$work/now"; }

torch=yes
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || {
    torch=
    say "$python has no torch with CUDA, so there is no comparison; PYTHON=... names another"
}

for element in f32 bf16 f16; do
    say "every op, $element"
    opcheck --element $element
    test -n "${card:-}" || card=$(sed -n 's/.*(as asked: \(.*\)), f32".*/\1/p;q' "$work/now")
    rows "\"part\": \"ops\", \"element\": \"$element\"" < "$work/now"
done
for element in f32 tf32 bf16 f16; do
    for turn in 1 2 3; do
        say "large sizes, $element, turn $turn"
        opcheck --large --element $element
        fields="\"part\": \"large\", \"element\": \"$element\", \"turn\": $turn"
        cp "$work/now" "$work/ours"
        rows "$fields" < "$work/now"
        test -z "$torch" || peer "$fields" "$peers/gpu.py" --element $element < "$work/ours"
    done
done

# update SIZES PRECISION TURN
update() {
    fields="\"part\": \"operator_update\", \"sizes\": \"$1\", \"element\": \"$2\", \"turn\": $3"
    say "operator update, $1, $2, turn $3"
    # shellcheck disable=SC2086 # sizes are words
    "$programs/operator_update" --device "$device" --precision "$2" --filter 7 --repeats 30 $1 > "$work/now"
    rows "$fields" < "$work/now"
    test -n "$torch" || return 0
    for written in --no-plain "--plain --compile" "--plain --compile --compile-mode reduce-overhead"; do
        # shellcheck disable=SC2086
        peer "$fields" "$peers/operator_update.py" --device cuda --precision "$2" --local \
            --warmup 10 --updates 30 $written $1
    done
}
for turn in 1 2 3; do
    for element in f32 bf16; do
        for sizes in "$LARGE" "$SMALL"; do
            update "$sizes" $element $turn
        done
    done
done

commit=$(git -C "$peers" describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null || echo unknown)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1 || true)
card=${card:-$device}
results=$peers/../../benches/results
name=$(echo "$card" | tr -cs 'A-Za-z0-9\n' - | sed 's/-$//')-$(date -u +%F)
mkdir -p "$results"
{
    echo "{\"card\": \"$card\", \"driver\": \"$driver\", \"commit\": \"$commit\", \"date\": \"$(date -u +%FT%TZ)\", \"rows\": ["
    sed '$!s/$/,/' "$work/rows"
    echo "]}"
} > "$work/whole"
# A second one on the same day is CARD-DATE-2.
n=
while test -e "$results/$name$n.json"; do n=$((${n:--1} - 1)); done
cp "$work/whole" "$results/$name$n.json"
echo "benches/results/$name$n.json"
