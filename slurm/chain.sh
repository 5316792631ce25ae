#!/bin/sh
# The chain codec -> latents -> operator -> evaluation as four jobs. Each is requeued until it is finished; then the
# next one starts: longhaul-slurm(7).
#   chain.sh [--site FILE] CODEC.yaml OPERATOR.yaml SPLIT FOLDER [OPTIONS OF sbatch]
# Creates FOLDER/{codec,latents,operator,evaluation}, with the output of each job in it. SPLIT is the file written by
# ds-prep split. The operator is trained on FOLDER/latents, regardless of data.train and data.validation in
# OPERATOR.yaml. Paths are relative to the current directory.
#
# Before anything is submitted, chain.sh checks the configurations and the data, that all rollouts fit into the
# trajectories, and that the time limit is longer than the margin.
#
# A failed step is held in the queue, and the steps after it keep waiting: fix the cause, then run `scontrol release
# JOB`. Run again, chain.sh submits every step that is neither finished nor in the queue, and replaces jobs that wait
# for one that failed or was cancelled.
#
#   LONGHAUL_SLURM     directory of train.sbatch; default: that of this file
#   EVALUATE_OPTIONS   options for evaluate; default "--steps 16", which needs 1 + 16 * stride frames
set -eu
site=
if [ "${1-}" = --site ] && [ $# -gt 2 ]; then
    site=$2
    shift 2
fi
if [ $# -lt 4 ]; then
    sed -n 's/^#   //p' "$0" >&2
    exit 2
fi
codec=$1 operator=$2 split=$3 folder=${4%/}
shift 4
case $folder in
*%* | *\\*)
    echo "chain.sh: FOLDER is $folder: SLURM replaces % and \\ in output paths; choose another name" >&2
    exit 2
    ;;
esac
for file in "$codec" "$operator" "$split"; do
    if [ ! -r "$file" ]; then
        echo "chain.sh: cannot read $file" >&2
        exit 66
    fi
done
slurm=${LONGHAUL_SLURM:-$(cd "$(dirname "$0")" && pwd)}
options=$*

# of NAME DEFAULT: the value of a variable in the jobs, without surrounding blanks.
of() {
    value=
    [ -z "$site" ] || value=$(sed -n "s/^ *$1 *= *//p" "$site" | tail -n 1)
    [ -n "$value" ] || value=$(printenv "$1") || value=$2
    trim "$value"
}
trim() {
    printf '%s\n' "$1" | sed 's/^[[:space:]]*//; s/[[:space:]]*$//'
}
limit=$(of SBATCH_TIMELIMIT 04:00:00)
for word; do
    case $word in
    --time=*) limit=${word#--time=} ;;
    -t?*) limit=${word#-t} ;;
    *) case ${before-} in --time | -t) limit=$word ;; esac ;;
    esac
    before=$word
done
limit=$(trim "$limit")
case $limit in
'' | [Ii][Nn][Ff][Ii][Nn][Ii][Tt][Ee] | [Uu][Nn][Ll][Ii][Mm][Ii][Tt][Ee][Dd] | -1) limit=none ;;
*[!0:-]*) ;;
*) limit=none ;; # zero, for sbatch
esac
case $limit in
*[!0-9]*) ;;
*) limit=${limit}m ;; # minutes, for sbatch
esac
if ! said=$(timekeep run --limit "$limit" --margin "$(of LONGHAUL_MARGIN 5m)" true 2>&1); then
    echo "chain.sh: the time limit is too short for any step: $said" >&2
    exit 2
fi
if [ ! -e "$folder/codec" ]; then
    train-stage codec -c "$codec" --run "$folder/codec" --check >&2
fi
# shellcheck disable=SC2086 # several words
evaluate check --config "$operator" --data "$split" ${EVALUATE_OPTIONS:---steps 16} >&2
mkdir -p "$folder"

# submit NAME JOB-BEFORE COMMAND...: prints the job id of NAME, or nothing if it is finished.
submit() {
    name=$1 before=$2
    shift 2
    # shellcheck disable=SC2086 # several words
    timekeep submit ${site:+--site "$site"} "$folder/$name" -- sbatch --parsable \
        --job-name="$name" --output="$folder/$name/slurm-%j.out" --export=ALL,LONGHAUL_ON_FAILURE=hold \
        ${before:+--dependency=afterok:"$before"} $options "$slurm/train.sbatch" "$@"
}

first=$(submit codec "" train-stage codec -c "$codec" --run "$folder/codec")
# The latents must be made again if the codec is trained further.
[ -z "$first" ] || rm -f "$folder/latents/status.json"
second=$(submit latents "$first" \
    latent-cache make "$folder/codec" --data "$split" -o "$folder/latents")
third=$(submit operator "$second" train-stage operator -c "$operator" --run "$folder/operator" \
    -s data.train="$folder/latents/train" -s data.validation="$folder/latents/validation")
if [ -e "$folder/evaluation/metrics.json" ]; then
    last=
else
    # shellcheck disable=SC2086 # several words
    last=$(submit evaluation "$third" evaluate score "$folder/operator" \
        --data "$split" ${EVALUATE_OPTIONS:---steps 16} -o "$folder/evaluation" --force)
fi
echo "${first:-done} ${second:-done} ${third:-done} ${last:-done}"
